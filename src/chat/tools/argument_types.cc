#include "chat/tools/argument_types.h"

#include <cmath>

#include "chat/tools/json_pieces.h"
#include "chat/tools/literal_reader.h"
#include "sluice/error.h"

namespace sluice {
namespace {

ArgumentTypes type_of(const Json& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_number_integer()) return kIntegerType;
  if (value.is_number()) {
    const auto number = value.get<double>();
    return number == std::floor(number) ? kIntegerType : kFractionType;
  }
  if (value.is_string()) return kStringType;
  return value.is_array() ? kArrayType : kObjectType;
}

ArgumentTypes named_type(std::string_view name) {
  if (name == "null") return kNullType;
  if (name == "boolean") return kBooleanType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kIntegerType | kFractionType;
  if (name == "string") return kStringType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return kAnyType;
}

const Json* member(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

// Finds types in the schema of a function. References may lead anywhere, so that only so much is looked at.
class TypeFinder {
 public:
  explicit TypeFinder(const Json& root) : root_(root) {}

  // The types of a property wherever the schema of the object speaks of it; nullopt if nowhere.
  std::optional<ArgumentTypes> of_property(const Json& schema, const std::string& name, int depth = 0) {
    if (!schema.is_object() || !look(depth)) return std::nullopt;
    std::optional<ArgumentTypes> types;
    const auto add = [&](std::optional<ArgumentTypes> more) {
      if (more) types = types.value_or(0) | *more;
    };
    if (const Json* properties = member(schema, "properties"); properties != nullptr && properties->is_object()) {
      const auto found = properties->find(name);
      if (found != properties->end()) add(of(*found, depth + 1));
    }
    if (const Json* target = referred(schema)) add(of_property(*target, name, depth + 1));
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      for (const Json& one : list(schema, keyword)) add(of_property(one, name, depth + 1));
    }
    if (types) return types;
    const Json* additional = member(schema, "additionalProperties");
    if (additional != nullptr && additional->is_object()) add(of(*additional, depth + 1));
    return types;
  }

 private:
  static constexpr int kDeepest = 16, kMost = 1000;  // schemas within each other, and all of them

  bool look(int depth) { return depth <= kDeepest && ++looked_ <= kMost; }

  ArgumentTypes of(const Json& schema, int depth) {
    if (!schema.is_object() || !look(depth)) return kAnyType;
    ArgumentTypes types = kAnyType;
    if (const Json* type = member(schema, "type")) {
      ArgumentTypes named = 0;
      for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
        named |= one.is_string() ? named_type(one.get_ref<const std::string&>()) : ArgumentTypes{kAnyType};
      }
      types &= named;
    }
    if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
      ArgumentTypes listed = 0;
      for (const Json& value : *values) listed |= type_of(value);
      types &= listed;
    }
    if (const Json* value = member(schema, "const")) types &= type_of(*value);
    if (const Json* target = referred(schema)) types &= of(*target, depth + 1);
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const Json& options = list(schema, keyword);
      ArgumentTypes any = 0;
      for (const Json& one : options) any |= of(one, depth + 1);
      if (!options.empty()) types &= any;
    }
    for (const Json& one : list(schema, "allOf")) types &= of(one, depth + 1);
    return types;
  }

  static const Json& list(const Json& schema, const char* keyword) {
    static const Json kNone = Json::array();
    const Json* found = member(schema, keyword);
    return found != nullptr && found->is_array() ? *found : kNone;
  }

  // What "$ref" means; null if it is not in the document.
  const Json* referred(const Json& schema) const {
    const Json* reference = member(schema, "$ref");
    if (reference == nullptr || !reference->is_string()) return nullptr;
    const auto& text = reference->get_ref<const std::string&>();
    if (!text.starts_with('#')) return nullptr;
    try {
      const Json::json_pointer pointer(text.substr(1));
      return root_.contains(pointer) ? &root_.at(pointer) : nullptr;
    } catch (const Json::exception&) {
      return nullptr;  // no pointer
    }
  }

  const Json& root_;
  int looked_ = 0;
};

// The text as a literal of Python; empty if it is none. Sets, expressions and names are none.
std::string python_json(std::string_view text) {
  LiteralReader reader(LiteralNotation{});
  std::string json;
  const size_t used = reader.read(text, json);
  reader.finish(json);
  return used == text.size() && !reader.guessed() ? json : "";
}

std::optional<ArgumentTypes> type_of_text(std::string_view json) {
  try {
    return type_of(parse_json(json, {.depth = 256}));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// What a JSON string holds; empty if the text is none.
std::string unquoted(std::string_view text) {
  if (!text.starts_with('"')) return {};
  try {
    return parse_json(text).get<std::string>();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

ArgumentTypes argument_types(const Json& parameters, std::string_view name) {
  const ArgumentTypes types =
      TypeFinder(parameters).of_property(parameters, std::string(name)).value_or(ArgumentTypes{kAnyType});
  return types == 0 ? ArgumentTypes{kAnyType} : types;
}

std::string argument_json(std::string_view text, ArgumentTypes types) {
  if (types == kStringType) return json_quoted(text);
  // Models write null for what they leave out, whatever its type.
  ArgumentTypes allowed = (types & kStringType) != 0 ? types : types | kNullType;
  if (types != kAnyType && (types & kStringType) != 0) allowed &= ~kStringType;
  if ((types & kStringType) == 0) allowed |= kStringType;  // a text in quotes
  const std::string_view value = trimmed(text);
  if (const std::string inner = unquoted(value); (types & kStringType) == 0 && !inner.empty()) {
    if (const auto type = type_of_text(inner); type && (*type & types) != 0) return inner;
  }
  if (const auto type = type_of_text(value); type && (*type & allowed) != 0) return std::string(value);
  if (!value.empty()) {
    const bool word = value == "True" || value == "False" || value == "None";
    const bool container = value[0] == '[' || value[0] == '{' || value[0] == '(';
    const bool number =
        (types & kStringType) == 0 && value.find_first_not_of("+-.0123456789_eE") == std::string_view::npos;
    if (word || container || number) {
      const std::string json = python_json(value);
      const auto type = type_of_text(json);
      if (type && (*type & allowed & ~kStringType) != 0) return json;
    }
  }
  return json_quoted(text);
}

}  // namespace sluice
