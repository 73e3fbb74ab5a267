// Formats byte counts for people.
#pragma once

#include <cstddef>
#include <string>

namespace sluice {

// Returns a byte count in the largest binary unit that fits, with one decimal: "512 B", "12.1 MiB", "16.0 EiB".
std::string format_bytes(size_t bytes);

}  // namespace sluice
