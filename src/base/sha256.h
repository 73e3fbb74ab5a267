// SHA-256 (FIPS 180-4) of bytes in memory.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace sluice {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::initializer_list<std::string_view> pieces);  // digest of the concatenated pieces
inline Sha256 sha256(std::string_view bytes) { return sha256({bytes}); }
std::string hex(const Sha256& digest);  // 64 hexadecimal digits

}  // namespace sluice
