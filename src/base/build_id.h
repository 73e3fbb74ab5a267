// Identifies this build of the program.
#pragma once

#include <string>

namespace sluice {

// Returns the linker's build ID (a hash of all code and data) of the program or library that contains this function, in
// hexadecimal. Empty when it was linked without a build ID.
std::string build_id();

}  // namespace sluice
