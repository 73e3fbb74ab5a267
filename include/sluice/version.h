// The version of Sluice; the same as CMake's project version (tests/server/server_test.cc compares them).
#pragma once

namespace sluice {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace sluice
