// Vectors in fewer bits.
#include "server/cohere/quantize.h"

#include <gtest/gtest.h>

namespace sluice::server::quantize_test {
namespace {

TEST(Quantize, BitsAndBytes) {
  const std::vector<float> values = {0.5f, -0.25f, 0, -1, 1, 1, -1, -0.0f, 1, -1, -1, -1, -1, -1, -1, -1};
  EXPECT_EQ(ubinary_of(values), (std::vector<int>{0b10101101, 0b10000000}));
  EXPECT_EQ(binary_of(values), (std::vector<int>{0b10101101 - 128, 0}));
  EXPECT_EQ(int8_of(std::vector<float>{0.5f, -0.25f, 0}), (std::vector<int>{127, -64, 0}));
  EXPECT_EQ(uint8_of(std::vector<float>{0.5f, -0.25f, 0}), (std::vector<int>{255, 64, 128}));
  EXPECT_EQ(int8_of(std::vector<float>{0, 0}), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace sluice::server::quantize_test
