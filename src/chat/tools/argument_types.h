// What the schema of a function says of the types of its arguments.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace sluice {

// A set of types of JSON values.
using ArgumentTypes = unsigned;
inline constexpr ArgumentTypes kNullType = 1, kBooleanType = 2, kIntegerType = 4, kFractionType = 8, kStringType = 16,
                               kArrayType = 32, kObjectType = 64, kAnyType = 127;

// The types that an argument may have; kAnyType where the schema does not say.
ArgumentTypes argument_types(const Json& parameters, std::string_view name);

// The JSON of an argument that was written as a text without quotes. It is a value of one of the types if the text is
// one in JSON or in Python, and else a string. Where strings are allowed among others, a text in quotes keeps them.
std::string argument_json(std::string_view text, ArgumentTypes types);

}  // namespace sluice
