// Tests grouped integers and 8-bit floats against their definitions.
#include "quant/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace sluice::quant::groups_test {
namespace {

// Value of an E4M3 code by definition.
double defined(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return bits & 0x80 ? -magnitude : magnitude;
}

TEST(Fp8, EveryCodeIsItsNumber) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = Fp8::value(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, defined(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 0x80) << bits;
      EXPECT_EQ(Fp8::nearest(value), bits) << bits;
      EXPECT_EQ(fp8_to_float(static_cast<uint8_t>(bits)), value) << bits;
    }
  }
}

TEST(Fp8, NearestIsNearestAndEvenAmongEquals) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponents(-12, 9.5), signs(-1, 1);
  for (int i = 0; i < 20000; ++i) {
    const float x = std::copysign(std::exp2(exponents(random)), signs(random));
    const double error = std::abs(defined(Fp8::nearest(x)) - x);
    for (int bits = 0; bits < 256; ++bits) {
      if ((bits & 0x7f) == 0x7f) continue;
      ASSERT_LE(error, std::abs(defined(bits) - x)) << x;
    }
  }
  for (int bits = 0; bits < 0x7e; ++bits) {
    const auto middle = static_cast<float>((defined(bits) + defined(bits + 1)) / 2);
    EXPECT_EQ(Fp8::nearest(middle) & 1, 0) << middle;
  }
  EXPECT_EQ(Fp8::nearest(1e30f), 0x7e);
  EXPECT_EQ(Fp8::nearest(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(Fp8::nearest(std::nanf("")) & 0x7f, 0x7f);
}

TEST(Fp8, ElementsThatAreWrittenTogetherShareAScale) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> in(3 * 128), out(in.size());
  for (float& v : in) v = normal(random);
  in[200] = -7.0f;
  std::vector<std::byte> blocks(3 * sizeof(Fp8::Block));
  from_float(&Fp8::kType, in.data(), blocks.data(), in.size());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reinterpret_cast<const Fp8::Block*>(blocks.data())[i].scale, 7.0f / 448.0f);
  }
  to_float(&Fp8::kType, blocks.data(), out.data(), out.size());
  for (size_t i = 0; i < in.size(); ++i) EXPECT_NEAR(out[i], in[i], std::abs(in[i]) / 16 + 7.0f / 448 * 0x1p-10f) << i;
}

template <class Codec>
class GroupTest : public testing::Test {};
using Codecs = testing::Types<Int4G32, Int4G64, Int4G128, Int8G128>;
TYPED_TEST_SUITE(GroupTest, Codecs);

TYPED_TEST(GroupTest, WritesTheNearestLevelAndKeepsZero) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.3f, 2.0f);
  for (int round = 0; round < 50; ++round) {
    float in[TypeParam::kElements], out[TypeParam::kElements];
    for (float& v : in) v = normal(random);
    in[5] = 0;
    typename TypeParam::Block block;
    TypeParam::quantize(in, block);
    TypeParam::dequantize(block, out);
    const float step = TypeParam::scale(block.scale_zero);
    EXPECT_EQ(out[5], 0.0f);
    const auto [least, most] = std::minmax_element(in, in + TypeParam::kElements);
    EXPECT_NEAR(step * ((1 << TypeParam::kBits) - 1), *most - *least, 0.001f * (*most - *least));
    for (int i = 0; i < TypeParam::kElements; ++i) {
      // The extremes lie up to half a step beyond the levels, because zero is one of the levels.
      EXPECT_LE(std::abs(out[i] - in[i]), 1.01f * step) << i;
      if (in[i] > *least + step && in[i] < *most - step) {
        EXPECT_LE(std::abs(out[i] - in[i]), 0.501f * step) << i;
      }
    }
  }
}

TYPED_TEST(GroupTest, HoldsScalesOfSixteenBitsExactly) {
  for (uint32_t bits = 1; bits < 0x7c00; bits += 7) {
    const float half = fp16_to_float(static_cast<uint16_t>(bits)), bf16 = bf16_to_float(static_cast<uint16_t>(bits));
    for (const float scale : {half, bf16, -half}) {
      const uint32_t word = TypeParam::scale_zero(scale, 129);
      EXPECT_EQ(TypeParam::scale(word), scale);
      EXPECT_EQ(TypeParam::zero(word), 129);
    }
  }
}

}  // namespace
}  // namespace sluice::quant::groups_test
