// Grammars of JSON values.
#pragma once

#include "grammar/builder.h"
#include "grammar/json_schema/schema.h"

namespace sluice::grammar {

struct JsonStyle {
  bool compact = false;  // no whitespace; else, between tokens, two blanks and one line break with its indentation
};
inline constexpr int kMostIndentation = 64;  // blanks

// The JSON texts that satisfy the schema. Throws GrammarError that names the path of what is not supported.
NodeId json_text(Builder& builder, const Json& schema, const JsonStyle& style, Budget& budget);

}  // namespace sluice::grammar
