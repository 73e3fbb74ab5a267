// Which build of the program this is.
#pragma once

#include <string>

namespace sluice {

// The linker's build id (a hash of all code and data) of the program or library that this is linked into, in
// hexadecimal. Empty when it was linked without one.
std::string build_id();

}  // namespace sluice
