// Tests the checksum of large data: the CRC against published values, the fast way against the portable one, and that
// single changes are detected wherever they are.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace sluice::checksum_test {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> out(count);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random() & 255);
  return out;
}

TEST(Checksum, Crc32cExamples) {  // RFC 3720, B.4, and the check value of the catalogue of CRCs
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(kDigits))), 0xE3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62A8AB43u);
}

TEST(Checksum, FastEqualsPortable) {
  for (size_t size = 0; size < 200; ++size) {
    const auto data = random_bytes(size);
    EXPECT_EQ(checksum(data), checksum_portable(data)) << size;
  }
  const auto large = random_bytes((1 << 20) + 13);
  EXPECT_EQ(checksum(std::span(large).subspan(3)), checksum_portable(std::span(large).subspan(3))) << "not aligned";
}

TEST(Checksum, EveryFlippedBitIsDetected) {
  auto data = random_bytes(101);
  const uint32_t before = checksum(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << bit % 8);
    data[bit / 8] ^= mask;
    EXPECT_NE(checksum(data), before) << bit;
    data[bit / 8] ^= mask;
  }
}

TEST(Checksum, LengthsOfZerosAndSwappedWordsAreDetected) {
  EXPECT_NE(checksum(std::vector<std::byte>(64)), checksum(std::vector<std::byte>(96)));
  auto data = random_bytes(64);
  const uint32_t before = checksum(data);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 8);  // between lanes
  EXPECT_NE(checksum(data), before);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 8);
  std::swap_ranges(data.begin(), data.begin() + 8, data.begin() + 32);  // within a lane
  EXPECT_NE(checksum(data), before);
}

}  // namespace
}  // namespace sluice::checksum_test
