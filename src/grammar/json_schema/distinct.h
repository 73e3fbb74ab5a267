// The values of a finite set, each apart, for arrays whose items must differ.
#pragma once

#include <optional>
#include <vector>

#include "grammar/json_schema/schema.h"

namespace sluice::grammar::json_schema {

// The JSON texts of each value that the alternatives have; texts of equal values are together. None if there may be
// more than `most` values, or lists or objects among them.
std::optional<std::vector<Automaton>> distinct_values(const Alternatives& alternatives, size_t most, Budget& budget);

}  // namespace sluice::grammar::json_schema
