// Tests how byte counts are formatted.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace sluice::bytes_test {
namespace {

TEST(FormatBytes, UsesTheLargestBinaryUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(size_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(SIZE_MAX), "16.0 EiB");
}

}  // namespace
}  // namespace sluice::bytes_test
