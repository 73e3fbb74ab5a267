// The name that a user probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// Returns the name with the fewest edits (a letter added, left out, replaced, or two swapped). Empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

// Returns "; did you mean 'NAME'?", or nothing if no name is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& names);

}  // namespace sluice::cli
