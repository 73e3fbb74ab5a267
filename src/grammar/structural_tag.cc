// Structural tags: free text in which certain strings begin a part with a grammar of its own. The forms are xgrammar's
// ("format") and vLLM's older one ("structures" and "triggers").
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/source.h"
#include "sluice/error.h"

namespace sluice::grammar::structural_tag {
namespace {

constexpr int kDeepestValue = 200;  // values within each other
constexpr int kMost = 1'000'000;    // repetitions
using Ends = std::vector<Builder::End>;

// A value with its place, as in "structural_tag.format.elements[1]".
struct Field {
  const Json& value;
  std::string path;

  [[noreturn]] void fail(std::string_view what) const { throw GrammarError(fmt::format("{}: {}", path, what)); }
  Field at(const char* key) const { return {value.at(key), path + "." + key}; }
  Field at(size_t i) const { return {value[i], fmt::format("{}[{}]", path, i)}; }
  bool has(const char* key) const { return value.contains(key) && !value.at(key).is_null(); }

  const std::string& text() const {
    if (!value.is_string()) fail("expected a string");
    return value.get_ref<const std::string&>();
  }
  std::string text(const char* key) const { return required(key).text(); }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).value.is_boolean()) at(key).fail("expected true or false");
    return value.at(key).get<bool>();
  }
  Field required(const char* key) const {
    if (!has(key)) fail(fmt::format("'{}' is missing", key));
    return at(key);
  }
  std::vector<Field> list(const char* key) const {
    const Field f = required(key);
    if (!f.value.is_array()) f.fail("expected an array");
    std::vector<Field> all;
    for (size_t i = 0; i < f.value.size(); ++i) all.push_back(f.at(i));
    return all;
  }
  void only(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, v] : value.items()) {
      if (key != "type" && std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail(fmt::format("unknown field '{}'", key));
      }
    }
  }
};

class Tags {
 public:
  Tags(Builder& builder, const CompileContext& context) : b_(builder), context_(context) {}

  NodeId whole(const Field& root) {
    if (!root.value.is_object()) root.fail("expected an object");
    if (!root.has("type") || root.text("type") != "structural_tag") root.fail("'type' must be \"structural_tag\"");
    if (root.has("format")) {
      root.only({"format"});
      return format(root.at("format"), nullptr);
    }
    root.only({"structures", "triggers"});
    return older(root);
  }

 private:
  // A tag of either form: it begins with text or with a special token.
  struct Tag {
    std::string begin;
    std::optional<TokenId> special;
    NodeId rest = 0;  // content and end
  };
  using Make = NodeId (Tags::*)(const Field&, const Ends*);
  struct Form {
    std::string_view type;
    Make make;
    bool takes_ends;  // text may go on until one of the ends; other forms are followed by an end
  };
  static const std::vector<Form>& forms();

  // The format and then one of `ends`, if there are any.
  NodeId format(const Field& f, const Ends* ends) {
    context_.budget.step();
    if (!f.value.is_object()) f.fail("expected an object");
    const std::string type = f.text("type");
    std::string known;
    for (const Form& form : forms()) {
      if (form.type == type) {
        const NodeId node = (this->*form.make)(f, form.takes_ends ? ends : nullptr);
        return form.takes_ends ? node : followed(node, ends);
      }
      known += (known.empty() ? "" : ", ") + std::string(form.type);
    }
    f.at("type").fail(fmt::format("'{}' is not supported (expected one of: {})", type, known));
  }

  NodeId join(std::initializer_list<NodeId> parts) { return b_.sequence({parts.begin(), parts.size()}); }
  NodeId node_of(const Builder::End& end) {
    return join({end.special ? b_.special(*end.special) : b_.literal(end.bytes), end.then});
  }
  NodeId followed(NodeId node, const Ends* ends) {
    if (ends == nullptr) return node;
    std::vector<NodeId> all;
    for (const Builder::End& end : *ends) all.push_back(node_of(end));
    return join({node, b_.choice(all)});
  }

  TokenId token(const Field& f) {
    if (f.value.is_number_integer()) {
      if (f.value < 0 || f.value > 1'000'000'000) f.fail("expected a token's id");
      return f.value.get<TokenId>();
    }
    const std::optional<TokenId> id = context_.special ? context_.special(f.text()) : std::nullopt;
    if (!id) f.fail(fmt::format("'{}' is not a special token of the model", f.text()));
    return *id;
  }

  // Free text up to one of `stops`, none of `excludes` in it.
  NodeId free(const Field& f, Ends stops, const Ends* ends, bool must_end) {
    if (f.has("excludes")) {
      for (const Field& e : f.list("excludes")) {
        if (e.text().empty()) e.fail("the text is empty");
        const auto same = [&](const Builder::End& end) { return end.bytes == e.text(); };
        // What ends the text is not in it anyway.
        if (ends != nullptr && std::any_of(ends->begin(), ends->end(), same)) continue;
        stops.push_back({.bytes = e.text(), .special = {}, .then = b_.nothing()});
      }
    }
    if (ends == nullptr) return b_.free_text(std::move(stops), must_end);
    for (const Builder::End& end : *ends) {
      // Text that ends at the empty text ends anywhere.
      if (end.bytes.empty() && !end.special) return join({b_.free_text(std::move(stops), false), end.then});
      stops.push_back(end);
    }
    return b_.free_text(std::move(stops), true);
  }

  NodeId any_text(const Field& f, const Ends* ends) {
    f.only({"excludes", "max_tokens", "max_chars"});
    for (const char* limit : {"max_tokens", "max_chars"}) {
      if (f.has(limit)) f.at(limit).fail("a limit is not supported; use 'regex'");
    }
    return free(f, {}, ends, false);
  }
  NodeId const_string(const Field& f, const Ends*) {
    f.only({"value"});
    return b_.literal(f.text("value"));
  }
  NodeId special(const Field& f, const Ends*) {
    f.only({"token"});
    return b_.special(token(f.required("token")));
  }
  NodeId nested(const Field& f, std::string_view kind, std::string_view text) {
    try {
      return build_source(b_, kind, text, context_);
    } catch (const GrammarError& e) {
      f.fail(e.what());
    }
  }
  NodeId grammar(const Field& f, const Ends*) {
    f.only({"grammar"});
    return nested(f.required("grammar"), "gbnf", f.text("grammar"));
  }
  NodeId regex(const Field& f, const Ends*) {
    f.only({"pattern", "excludes"});
    no_excludes(f);
    return nested(f.required("pattern"), "regex", f.text("pattern"));
  }
  static void no_excludes(const Field& f) {
    if (f.has("excludes") && !f.list("excludes").empty()) f.at("excludes").fail("not supported here");
  }
  NodeId json(const Field& f, const Ends*) {
    f.only({"json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"});
    no_excludes(f);
    f.flag("any_order", true);  // an object's properties may have any order in either case
    if (f.has("style") && f.text("style") != "json") {
      f.at("style").fail(fmt::format("'{}' is not supported (expected \"json\")", f.text("style")));
    }
    const bool compact = f.has("max_whitespace_cnt");
    if (compact && f.at("max_whitespace_cnt").value != 0) f.at("max_whitespace_cnt").fail("expected 0 or null");
    return schema(f.required("json_schema"), compact);
  }
  NodeId schema(const Field& f, bool compact) {
    return nested(f, compact ? "json_schema_compact" : "json_schema",
                  f.value.is_string() ? f.text() : dump_json(f.value));
  }

  NodeId sequence(const Field& f, const Ends* ends) {
    f.only({"elements"});
    const std::vector<Field> elements = f.list("elements");
    if (elements.empty()) return followed(b_.empty(), ends);
    // From the last one: free text ends where the next element begins, if that is a certain text.
    NodeId rest = 0;
    Ends begins;
    for (size_t i = elements.size(); i-- > 0;) {
      Ends own = begin_of(elements[i], ends);
      rest = own.empty() ? format(elements[i], ends) : node_of(own[0]);
      begins = std::move(own);
      if (begins.empty()) begins.push_back({.bytes = "", .special = {}, .then = rest});
      ends = &begins;
    }
    return rest;
  }
  // How an element begins, if with a certain text or token, and what follows that; else nothing.
  Ends begin_of(const Field& f, const Ends* ends) {
    if (!f.value.is_object()) f.fail("expected an object");
    const std::string type = f.text("type");
    Tag t;
    if (type == "const_string") {
      f.only({"value"});
      t = {.begin = f.text("value"), .special = {}, .rest = b_.empty()};
    } else if (type == "token") {
      f.only({"token"});
      t = {.begin = "", .special = token(f.required("token")), .rest = b_.empty()};
    } else if (type == "tag") {
      t = tag(f);
    }
    if (!t.special && t.begin.empty()) return {};
    return {{.bytes = t.begin, .special = t.special, .then = followed(t.rest, ends)}};
  }

  NodeId either(const Field& f, const Ends* ends) {
    f.only({"elements"});
    std::vector<NodeId> all;
    for (const Field& e : f.list("elements")) all.push_back(format(e, ends));
    if (all.empty()) f.at("elements").fail("expected at least one element");
    return b_.choice(all);
  }

  Tag tag(const Field& f) {
    if (!f.value.is_object()) f.fail("expected an object");
    f.only({"begin", "content", "end"});
    Tag t;
    const Field begin = f.required("begin");
    if (begin.value.is_object()) {
      t.special = token_of(begin);
    } else {
      t.begin = begin.text();
    }
    Ends ends;
    const Field end = f.required("end");
    if (end.value.is_object()) {
      ends.push_back({.bytes = "", .special = token_of(end), .then = b_.empty()});
    } else if (end.value.is_array()) {
      for (const Field& e : f.list("end")) ends.push_back({.bytes = e.text(), .special = {}, .then = b_.empty()});
      if (ends.empty()) end.fail("expected at least one end");
    } else {
      ends.push_back({.bytes = end.text(), .special = {}, .then = b_.empty()});
    }
    t.rest = format(f.required("content"), &ends);
    return t;
  }
  TokenId token_of(const Field& f) {
    f.only({"token"});
    if (f.text("type") != "token") f.at("type").fail("expected \"token\"");
    return token(f.required("token"));
  }
  NodeId whole_tag(const Tag& t) { return join({t.special ? b_.special(*t.special) : b_.literal(t.begin), t.rest}); }
  NodeId tag_format(const Field& f, const Ends*) { return whole_tag(tag(f)); }

  std::vector<Tag> tags(const Field& f) {
    std::vector<Tag> all;
    for (const Field& t : f.list("tags")) all.push_back(tag(t));
    if (all.empty()) f.at("tags").fail("expected at least one tag");
    return all;
  }

  // The trigger of each tag: the one that its begin starts with. `stops` gets a trigger's end with what comes after.
  NodeId triggered(const Field& f, const Ends* ends) {
    f.only({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"});
    std::vector<std::string> triggers;
    for (const Field& t : f.list("triggers")) {
      if (t.text().empty()) t.fail("the trigger is empty");
      triggers.push_back(t.text());
    }
    const std::vector<Tag> all = tags(f);
    std::vector<std::vector<NodeId>> of(triggers.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t trigger = trigger_of(all[i], triggers, f.at("tags").at(i));
      of[trigger].push_back(join({b_.literal(all[i].begin.substr(triggers[trigger].size())), all[i].rest}));
    }
    Ends starts;
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (of[i].empty()) f.at("triggers").at(i).fail("no tag begins with this trigger");
      starts.push_back({.bytes = triggers[i], .special = {}, .then = b_.choice(of[i])});
    }
    return dispatch(f, std::move(starts), all, ends);
  }
  size_t trigger_of(const Tag& t, const std::vector<std::string>& triggers, const Field& f) {
    if (t.special) f.at("begin").fail("expected a string");
    std::optional<size_t> found;
    for (size_t i = 0; i < triggers.size(); ++i) {
      if (!t.begin.starts_with(triggers[i])) continue;
      if (found) f.at("begin").fail("begins with more than one trigger");
      found = i;
    }
    if (!found) f.at("begin").fail("begins with none of the triggers");
    return *found;
  }
  NodeId token_triggered(const Field& f, const Ends* ends) {
    f.only({"trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens"});
    special_only(f);
    std::vector<TokenId> triggers;
    for (const Field& t : f.list("trigger_tokens")) triggers.push_back(token(t));
    const std::vector<Tag> all = tags(f);
    Ends starts;
    for (const TokenId trigger : triggers) {
      std::vector<NodeId> rests;
      for (const Tag& t : all) {
        if (t.special == trigger) rests.push_back(t.rest);
      }
      if (rests.empty()) f.at("trigger_tokens").fail("no tag begins with one of these tokens");
      starts.push_back({.bytes = "", .special = trigger, .then = b_.choice(rests)});
    }
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].special || std::find(triggers.begin(), triggers.end(), *all[i].special) == triggers.end()) {
        f.at("tags").at(i).at("begin").fail("expected one of the trigger tokens");
      }
    }
    return dispatch(f, std::move(starts), all, ends);
  }
  // Free text has no special tokens, so that these may be excluded; excluding others would need their ids.
  void special_only(const Field& f) {
    if (!f.has("exclude_tokens")) return;
    for (const Field& t : f.list("exclude_tokens")) {
      if (!t.value.is_string()) t.fail("expected the text of a special token");
      token(t);
    }
  }

  // Free text with tags in it. With "at_least_one" the first tag comes at once, as in xgrammar.
  NodeId dispatch(const Field& f, Ends starts, const std::vector<Tag>& all, const Ends* ends) {
    const bool once = f.flag("stop_after_first", false);
    const bool first = f.flag("at_least_one", false);
    std::vector<NodeId> firsts;
    for (const Tag& t : all) firsts.push_back(whole_tag(t));
    if (first && once) return followed(b_.choice(firsts), ends);
    const NodeId text = between(f, std::move(starts), once, ends);
    return first ? join({b_.choice(firsts), text}) : text;
  }
  // Free text; after what a start begins, text again, or the end.
  NodeId between(const Field& f, Ends starts, bool once, const Ends* ends) {
    const NodeId text = b_.declare(f.path);
    const NodeId after = once ? followed(b_.empty(), ends) : text;
    for (Builder::End& start : starts) start.then = join({start.then, after});
    b_.define(text, free(f, std::move(starts), ends, false));
    return text;
  }

  NodeId rules(const Field& f, const Ends* ends, bool tokens) {
    Ends starts;
    for (const Field& rule : f.list("rules")) {
      if (!rule.value.is_array() || rule.value.size() != 2) rule.fail("expected a pattern and a format");
      const NodeId then = format(rule.at(size_t{1}), nullptr);
      const Field pattern = rule.at(size_t{0});
      if (!tokens && pattern.text().empty()) pattern.fail("the pattern is empty");
      starts.push_back({.bytes = tokens ? "" : pattern.text(), .special = {}, .then = then});
      if (tokens) starts.back().special = token(pattern);
    }
    return between(f, std::move(starts), !f.flag("loop", true), ends);
  }
  NodeId text_rules(const Field& f, const Ends* ends) {
    f.only({"rules", "loop", "excludes"});
    return rules(f, ends, false);
  }
  NodeId token_rules(const Field& f, const Ends* ends) {
    f.only({"rules", "loop", "exclude_tokens"});
    special_only(f);
    return rules(f, ends, true);
  }

  NodeId separated(const Field& f, const Ends*) {
    f.only({"tags", "separator", "at_least_one", "stop_after_first"});
    std::vector<NodeId> all;
    for (const Tag& t : tags(f)) all.push_back(whole_tag(t));
    const int least = f.flag("at_least_one", false) ? 1 : 0;
    const int most = f.flag("stop_after_first", false) ? 1 : -1;
    return b_.separated(b_.choice(all), b_.literal(f.text("separator")), least, most);
  }

  NodeId repeat(const Field& f, int least, int most) {
    return b_.repeat(format(f.required("content"), nullptr), least, most);
  }
  NodeId optional(const Field& f, const Ends*) { return f.only({"content"}), repeat(f, 0, 1); }
  NodeId plus(const Field& f, const Ends*) { return f.only({"content"}), repeat(f, 1, -1); }
  NodeId star(const Field& f, const Ends*) { return f.only({"content"}), repeat(f, 0, -1); }
  NodeId counted(const Field& f, const Ends*) {
    f.only({"content", "min", "max"});
    const auto number = [&](const char* key, int least) {
      const Field n = f.required(key);
      if (!n.value.is_number_integer() || n.value < least || n.value > kMost) {
        n.fail(fmt::format("expected an integer from {} to {}", least, kMost));
      }
      return n.value.get<int>();
    };
    const int least = number("min", 0), most = number("max", -1);
    if (most >= 0 && most < least) f.at("max").fail("is less than 'min'");
    return repeat(f, least, most);
  }

  NodeId older(const Field& root) {
    Json all = Json::array();
    for (const Field& s : root.list("structures")) {
      if (!s.value.is_object()) s.fail("expected an object");
      s.only({"begin", "schema", "end"});
      Json schema = s.required("schema").value;
      if (schema.is_string()) schema = parsed(schema.get_ref<const std::string&>(), s.at("schema").path);
      Json content = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
      all.push_back({{"begin", s.text("begin")}, {"content", std::move(content)}, {"end", s.text("end")}});
    }
    root.required("triggers");
    const Json converted = {{"type", "triggered_tags"}, {"triggers", root.value.at("triggers")}, {"tags", all}};
    return triggered({converted, root.path}, nullptr);
  }

 public:
  static Json parsed(std::string_view text, const std::string& path) {
    try {
      return parse_json(text, {.depth = kDeepestValue});
    } catch (const Error& e) {
      throw GrammarError(fmt::format("{}: {}", path, e.what()));
    }
  }

 private:
  Builder& b_;
  const CompileContext& context_;
};

const std::vector<Tags::Form>& Tags::forms() {
  static const std::vector<Form> all = {
      {"any_text", &Tags::any_text, true},
      {"const_string", &Tags::const_string, false},
      {"dispatch", &Tags::text_rules, true},
      {"grammar", &Tags::grammar, false},
      {"json_schema", &Tags::json, false},
      {"optional", &Tags::optional, false},
      {"or", &Tags::either, true},
      {"plus", &Tags::plus, false},
      {"regex", &Tags::regex, false},
      {"repeat", &Tags::counted, false},
      {"sequence", &Tags::sequence, true},
      {"star", &Tags::star, false},
      {"tag", &Tags::tag_format, false},
      {"tags_with_separator", &Tags::separated, false},
      {"token", &Tags::special, false},
      {"token_dispatch", &Tags::token_rules, true},
      {"token_triggered_tags", &Tags::token_triggered, true},
      {"triggered_tags", &Tags::triggered, true},
  };
  return all;
}

NodeId build(Builder& builder, std::string_view text, const CompileContext& context) {
  const Json root = Tags::parsed(text, "structural_tag");
  return Tags(builder, context).whole({root, "structural_tag"});
}

const SourceKind kind{
    .name = "structural_tag", .help = "a JSON object that says where free text turns into a grammar", .build = build};
const Registry<SourceKind> registered{kind};

}  // namespace
}  // namespace sluice::grammar::structural_tag
