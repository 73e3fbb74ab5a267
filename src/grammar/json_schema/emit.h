// Grammars of JSON values.
#pragma once

#include "grammar/builder.h"
#include "grammar/json_schema/schema.h"

namespace sluice::grammar {

struct JsonStyle {
  bool compact = false;  // no whitespace; else up to kMostSpace characters of it between tokens
};
inline constexpr int kMostSpace = 64;

// The JSON texts that satisfy the schema. Throws GrammarError that names the path of what is not supported.
NodeId json_text(Builder& builder, const Json& schema, const JsonStyle& style, Budget& budget);

}  // namespace sluice::grammar
