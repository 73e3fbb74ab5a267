// Settings that published configurations carry along although every model of their family has the same, or the forward
// pass none: what code beside a checkpoint reads, what training or another program needed, what is said twice.
#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// Of the keys nobody has read, those that are not known to be settled for the family. A key that is known and has
// another value than the one that is understood stays, with that value behind its name: "'qk_norm' (false; true is
// supported)".
std::vector<std::string> unsettled(const Config& config, std::string_view family);

}  // namespace sluice
