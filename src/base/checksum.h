// A checksum of large data that is computed about as fast as memory can be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// Every group of 32 bytes gives 8 bytes to each of four lanes. The result is the CRC32C (Castagnoli) of the lanes'
// CRC32Cs, the bytes after the last group, and the length. A damaged file passes with a probability of about 2^-32.
uint32_t checksum(std::span<const std::byte> data);

// The same without the CPU's CRC instructions. For CPUs without them, and for tests.
uint32_t checksum_portable(std::span<const std::byte> data);

uint32_t crc32c(std::span<const std::byte> data);  // portable, for short data

}  // namespace sluice
