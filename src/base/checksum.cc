// CRC32C with the instructions of SSE4.2. An instruction takes three cycles and one can start in each, so four lanes
// keep the unit busy.
#include "base/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sluice {
namespace {

constexpr size_t kLanes = 4;
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kGroup = kLanes * kWord;
constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, lowest power in the highest bit

using Lanes = std::array<uint32_t, kLanes>;

constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}();

uint32_t update(uint32_t crc, const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ from[i]) & 0xff];
  return crc;
}

constexpr Lanes kStart = {~0u, ~0u, ~0u, ~0u};

Lanes lanes_portable(const std::byte* data, size_t groups) {
  Lanes crc = kStart;
  for (size_t i = 0; i < groups; ++i) {
    for (size_t lane = 0; lane < kLanes; ++lane) crc[lane] = update(crc[lane], data + i * kGroup + lane * kWord, kWord);
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) Lanes lanes_sse42(const std::byte* data, size_t groups) {
  uint64_t a = ~0u, b = ~0u, c = ~0u, d = ~0u;
  for (const std::byte* end = data + groups * kGroup; data != end; data += kGroup) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data, kGroup);
    a = _mm_crc32_u64(a, words[0]);
    b = _mm_crc32_u64(b, words[1]);
    c = _mm_crc32_u64(c, words[2]);
    d = _mm_crc32_u64(d, words[3]);
  }
  return {static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(c), static_cast<uint32_t>(d)};
}
#endif

template <class F>
uint32_t combine(std::span<const std::byte> data, F&& lanes_of) {
  const size_t groups = data.size() / kGroup;
  const Lanes lanes = lanes_of(data.data(), groups);
  const uint64_t length = data.size();
  uint32_t crc = update(~0u, lanes.data(), sizeof lanes);
  crc = update(crc, data.data() + groups * kGroup, data.size() - groups * kGroup);
  return ~update(crc, &length, sizeof length);
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> data) { return ~update(~0u, data.data(), data.size()); }

uint32_t checksum_portable(std::span<const std::byte> data) { return combine(data, lanes_portable); }

uint32_t checksum(std::span<const std::byte> data) {
#if defined(__x86_64__)
  static const bool has_crc = __builtin_cpu_supports("sse4.2") != 0;
  if (has_crc) return combine(data, lanes_sse42);
#endif
  return checksum_portable(data);
}

}  // namespace sluice
