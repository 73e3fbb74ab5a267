// Grammars of JSON values, and of values that a schema describes but another notation writes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/builder.h"
#include "grammar/json_schema/schema.h"

namespace sluice::grammar {

// Strings that a value may be.
struct Strings {
  std::optional<Automaton> texts{};  // decoded; none: any text
  int least = 0, most = -1;          // characters; most < 0: no limit
};
// Their texts in JSON.
NodeId json_string_text(Builder& builder, const Strings& strings, Budget& budget);

using StringsNode = std::function<NodeId(const Strings&)>;
// The text of keys whose names are in a language. `name`: the name if there is only one.
using KeyText = std::function<Automaton(const Automaton& names, const std::string* name)>;

struct JsonStyle {
  bool compact = false;  // no whitespace; else, between tokens, two blanks and one line break with its indentation
  // Notations other than JSON.
  std::string_view null = "null", true_text = "true", false_text = "false";
  StringsNode string{};  // unset: as in JSON
  KeyText key{};         // unset: as in JSON
};
inline constexpr int kMostIndentation = 64;  // blanks

// The JSON texts that satisfy the schema. Throws GrammarError that names the path of what is not supported.
NodeId json_text(Builder& builder, const Json& schema, const JsonStyle& style, Budget& budget);

// What a value may be. Several alternatives may allow strings.
struct ValueForms {
  std::vector<Strings> strings{};  // none: no strings
  std::optional<NodeId> others{};  // its texts where it is no string; none: it is always a string
  // Of the types of `others`: those whose every value is allowed.
  bool any_number = false, any_boolean = false, any_array = false, any_object = false;
  bool number = false, boolean = false, array = false, object = false;  // types that `others` has
};

// How the members of an object are written.
struct MemberStyle {
  KeyText key{};
  std::function<NodeId(const ValueForms& forms, const std::string& path)> value{};
  NodeId first = 0;  // before the first member
  NodeId colon = 0, separator = 0;
};

// The members, without anything around them, of the objects that satisfy the schema. `style` holds for the values
// within values. Throws GrammarError, as json_text does, and where the schema allows no object.
NodeId members_text(Builder& builder, const Json& schema, const JsonStyle& style, const MemberStyle& members,
                    Budget& budget);

}  // namespace sluice::grammar
