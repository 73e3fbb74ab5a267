// The formats of JSON Schema that are enforced, as languages of decoded text.
#pragma once

#include <span>
#include <string_view>

#include "grammar/automaton.h"

namespace sluice::grammar::json_schema {

// Null for formats that are not enforced: like unknown ones, they are annotations.
const Automaton* format(std::string_view name);

}  // namespace sluice::grammar::json_schema
