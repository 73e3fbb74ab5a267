// Places of subschemas, and what references mean.
#include <fmt/core.h>

#include <algorithm>

#include "grammar/json_schema/schema.h"

namespace sluice::grammar::json_schema {

const Json kFalse = false;

namespace {

constexpr int kDeepestSubschema = 500;  // subschemas within each other

// Keywords whose values are data, not schemas.
bool holds_data(std::string_view key) {
  return key == "enum" || key == "const" || key == "default" || key == "examples" || key == "example";
}

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool percent = text[i] == '%' && i + 2 < text.size() &&
                         std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
                         std::isxdigit(static_cast<unsigned char>(text[i + 2]));
    if (percent) {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// One step of a JSON pointer (RFC 6901).
std::string unescaped(std::string_view step) {
  std::string out;
  for (size_t i = 0; i < step.size(); ++i) {
    if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1')) {
      out.push_back(step[++i] == '0' ? '~' : '/');
    } else {
      out.push_back(step[i]);
    }
  }
  return out;
}

std::string without_fragment(const std::string& id) { return id.substr(0, id.find('#')); }

// Joins the last part of a base with a relative reference, as far as schemas of one document need that (RFC 3986).
std::string joined(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  if (reference.find("://") != std::string::npos || reference.starts_with("urn:")) return reference;
  const size_t scheme = base.find("://");
  if (reference[0] == '/') {
    if (scheme == std::string::npos) return reference;
    const size_t path = base.find('/', scheme + 3);
    return base.substr(0, path) + reference;
  }
  const size_t slash = base.rfind('/');
  if (slash == std::string::npos || (scheme != std::string::npos && slash < scheme + 3)) {
    return scheme == std::string::npos ? reference : base + "/" + reference;
  }
  return base.substr(0, slash + 1) + reference;
}

// Whether keywords have the meaning that they have here: in the dialects of json-schema.org, and in Snowplow's, which
// adds a member to draft 4.
bool is_known_dialect(std::string_view uri) {
  const size_t scheme = uri.find("://");
  if (scheme == std::string_view::npos) return true;
  const std::string_view place = uri.substr(scheme + 3);
  return place.starts_with("json-schema.org/") || place.starts_with("iglucentral.com/");
}

}  // namespace

Document::Document(const Json& root, Budget& budget) : root_(root), budget_(budget) {
  if (root_.is_object()) {
    const auto draft = root_.find("$schema");
    if (draft != root_.end() && draft->is_string()) {
      const auto& name = draft->get_ref<const std::string&>();
      if (!is_known_dialect(name)) {
        throw GrammarError(
            fmt::format("schema.$schema: unknown dialect '{}' (expected one of json-schema.org's, or none)", name));
      }
      for (const char* old : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07", "iglucentral.com"}) {
        old_draft_ = old_draft_ || name.find(old) != std::string::npos;
      }
      for (const char* old : {"draft-03", "draft-04", "iglucentral.com"}) {
        plain_integers_ = plain_integers_ || name.find(old) != std::string::npos;
      }
      for (const char* draft_name : {"draft/2019-09", "draft/2020-12"}) {
        asserts_format_ = asserts_format_ && name.find(draft_name) == std::string::npos;
      }
    }
  }
  index();
}

// Every object of the document may be a schema that something refers to.
void Document::index() {
  struct Open {
    const Json* value;
    const Json* resource;
    int depth;
  };
  std::vector<Open> todo = {{&root_, &root_, 0}};
  places_[&root_] = {nullptr, "schema", &root_};
  while (!todo.empty()) {
    Open open = todo.back();
    todo.pop_back();
    budget_.step(4);
    budget_.allocate(160);
    if (open.depth > kDeepestSubschema)
      throw GrammarError(fmt::format("schema: nested more than {} deep", kDeepestSubschema));
    if (open.value->is_object()) {
      const auto id = open.value->find(open.value->contains("$id") ? "$id" : "id");
      const bool named =
          id != open.value->end() && id->is_string() && !id->get_ref<const std::string&>().starts_with('#');
      if (named) open.resource = open.value;
      places_[open.value].resource = open.resource;
      add_identifiers(*open.value, *open.resource);
      for (const auto& [key, member] : open.value->items()) {
        places_[&member] = {open.value, key, open.resource};
        if (!holds_data(key)) todo.push_back({&member, open.resource, open.depth + 1});
      }
    } else if (open.value->is_array()) {
      for (size_t i = 0; i < open.value->size(); ++i) {
        places_[&(*open.value)[i]] = {open.value, std::to_string(i), open.resource};
        todo.push_back({&(*open.value)[i], open.resource, open.depth + 1});
      }
    }
  }
}

void Document::add_identifiers(const Json& schema, const Json& resource) {
  const auto text = [](const Json& in, const char* key) -> std::string {
    const auto found = in.find(key);
    return found != in.end() && found->is_string() ? found->get<std::string>() : "";
  };
  std::string base = text(resource, resource.contains("$id") ? "$id" : "id");
  const Json* outer = places_[&resource].parent;
  // The base of an inner resource is relative to that of the one around it.
  for (int i = 0; outer != nullptr && i < 16; ++i) {
    const Json* around = places_[outer].resource;
    if (around == nullptr || around == &resource) break;
    base = joined(without_fragment(text(*around, around->contains("$id") ? "$id" : "id")), base);
    outer = places_[around].parent;
  }
  base = without_fragment(base);
  if (&schema == &resource) identifiers_.try_emplace(base, &schema);
  for (const char* key : {"$anchor", "$dynamicAnchor"}) {
    const std::string anchor = text(schema, key);
    if (!anchor.empty()) identifiers_.try_emplace(base + "#" + anchor, &schema);
  }
  for (const char* key : {"$id", "id"}) {
    const std::string id = text(schema, key);
    if (id.size() > 1 && id[0] == '#') identifiers_.try_emplace(base + id, &schema);
  }
}

const Json* Document::by_pointer(const Json& base, std::string_view pointer) const {
  const Json* at = &base;
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string step = unescaped(decoded(pointer.substr(1, end - 1)));
    pointer.remove_prefix(end);
    if (at->is_object()) {
      const auto found = at->find(step);
      if (found == at->end()) return nullptr;
      at = &*found;
    } else if (at->is_array()) {
      if (step.empty() || step.size() > 9 || step.find_first_not_of("0123456789") != std::string::npos) return nullptr;
      const size_t i = std::stoul(step);
      if (i >= at->size()) return nullptr;
      at = &(*at)[i];
    } else {
      return nullptr;
    }
  }
  return at;
}

const Json* Document::resolve(const Json& from, const std::string& reference) const {
  const auto place = places_.find(&from);
  const Json* resource = place != places_.end() && place->second.resource != nullptr ? place->second.resource : &root_;
  std::string base;
  for (const auto& [name, schema] : identifiers_) {
    if (schema == resource && name.find('#') == std::string::npos) base = name;
  }
  const size_t hash = reference.find('#');
  const std::string target = hash == 0 ? base : joined(base, reference.substr(0, hash));
  const std::string fragment = hash == std::string::npos ? "" : decoded(reference.substr(hash + 1));
  if (!fragment.empty() && fragment[0] != '/') {
    const auto found = identifiers_.find(target + "#" + fragment);
    return found != identifiers_.end() ? found->second : nullptr;
  }
  const Json* document = hash == 0 ? resource : nullptr;
  if (document == nullptr) {
    const auto found = identifiers_.find(target);
    if (found == identifiers_.end()) return nullptr;
    document = found->second;
  }
  const std::string_view pointer =
      hash == std::string::npos ? std::string_view() : std::string_view(reference).substr(hash + 1);
  const Json* found = by_pointer(*document, pointer);
  // Pointers of some documents are meant from their root, whatever identifiers lie between.
  return found != nullptr || hash != 0 ? found : by_pointer(root_, pointer);
}

std::string Document::path(const Json& schema) const {
  std::string out;
  for (const Json* at = &schema; at != nullptr;) {
    const auto place = places_.find(at);
    if (place == places_.end()) break;
    const bool item = place->second.parent != nullptr && place->second.parent->is_array();
    const std::string step = item ? "[" + place->second.key + "]" : place->second.key;
    out = step + (out.empty() || out[0] == '[' ? "" : ".") + out;
    at = place->second.parent;
  }
  return out;
}

void Document::refuse(const Json& schema, std::string_view keyword, std::string_view why) const {
  throw GrammarError(fmt::format("{}.{}: {}", path(schema), keyword, why));
}

const Json& Document::keep(Json made, const Json& origin) {
  budget_.allocate(256);
  made_.push_back(std::make_unique<Json>(std::move(made)));
  const auto place = places_.find(&origin);
  if (place != places_.end()) places_[made_.back().get()] = place->second;
  return *made_.back();
}

const Automaton& Document::pattern(const std::string& text, const std::string& where) {
  const auto found = patterns_.find(text);
  if (found != patterns_.end()) return found->second;
  try {
    return patterns_.emplace(text, parse_regex(text, RegexSyntax::kEcma, false, budget_)).first->second;
  } catch (const GrammarError& e) {
    throw GrammarError(fmt::format("{}: {}", where, e.what()));
  }
}

}  // namespace sluice::grammar::json_schema
