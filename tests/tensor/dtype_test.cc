// Tests scalar conversions: every 16-bit value, and rounding against a reference in fp64.
#include "tensor/dtype.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "sluice/error.h"

namespace sluice::dtype_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A 16-bit binary format evaluated from its definition in fp64, where every step is exact.
struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  float (*decode)(uint16_t);
  uint16_t (*encode)(float);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double value(uint16_t bits) const {
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa == 0 ? sign * kInfinity : std::numeric_limits<double>::quiet_NaN();
    }
    const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
    return sign * std::ldexp(hidden + mantissa, std::max(exponent, 1) - bias() - mantissa_bits);
  }
  // Rounds to the nearest value, ties to an even mantissa.
  double rounded(double x) const {
    if (x == 0 || !std::isfinite(x)) return x;
    const int exponent = std::max(std::ilogb(x), 1 - bias());
    const double unit = std::ldexp(1.0, exponent - mantissa_bits);
    const double result = std::nearbyint(x / unit) * unit;
    const double limit = std::ldexp(1.0, bias() + 1);
    return std::abs(result) >= limit ? std::copysign(kInfinity, x) : result;
  }
};

class FormatTest : public ::testing::TestWithParam<Format> {
 protected:
  const Format& format_ = GetParam();
  void expect_rounds(float x) const {
    const float got = format_.decode(format_.encode(x));
    const auto want = static_cast<float>(format_.rounded(x));
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << std::hexfloat << x;
  }
};

TEST_P(FormatTest, EveryValueDecodesAndSurvivesTheRoundTrip) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float decoded = format_.decode(bits);
    const double want = format_.value(bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(decoded)) << i;
      ASSERT_TRUE(std::isnan(format_.decode(format_.encode(decoded)))) << i;
      continue;
    }
    ASSERT_EQ(decoded, want) << i;
    ASSERT_EQ(std::signbit(decoded), (bits & 0x8000) != 0) << i;
    ASSERT_EQ(format_.encode(decoded), bits);
  }
}

TEST_P(FormatTest, BetweenTwoValuesTheNearestIsTakenAndTiesGoToEven) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const double low = format_.value(static_cast<uint16_t>(i));
    const double high = format_.value(static_cast<uint16_t>(i + 1));
    if (!std::isfinite(low)) continue;
    const double next = std::isfinite(high) ? high : std::copysign(std::ldexp(1.0, format_.bias() + 1), low);
    const auto middle = static_cast<float>(low + (next - low) / 2);
    expect_rounds(middle);
    expect_rounds(std::nextafter(middle, -std::numeric_limits<float>::infinity()));
    expect_rounds(std::nextafter(middle, std::numeric_limits<float>::infinity()));
  }
}

TEST_P(FormatTest, RandomBitPatternsRound) {
  std::mt19937 random(7);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(x)) expect_rounds(x);
  }
}

TEST_P(FormatTest, EveryNaNStaysNaN) {
  for (uint32_t bits : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(format_.decode(format_.encode(std::bit_cast<float>(bits))))) << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FormatTest,
                         ::testing::Values(Format{"fp16", 5, 10, fp16_to_float, float_to_fp16},
                                           Format{"bf16", 8, 7, bf16_to_float, float_to_bf16}),
                         [](const auto& info) { return info.param.name; });

TEST(DType, IsFoundByEitherName) {
  std::set<std::string_view> names, spellings;
  for (DType type : plain_dtypes()) {
    EXPECT_EQ(find_dtype(type->name), type);
    EXPECT_EQ(find_safetensors_dtype(type->safetensors), type);
    EXPECT_EQ(type->block_size, 1);
    EXPECT_TRUE(names.insert(type->name).second) << type->name;
    EXPECT_TRUE(spellings.insert(type->safetensors).second) << type->safetensors;
  }
  EXPECT_EQ(find_dtype("float31"), nullptr);
  EXPECT_EQ(find_safetensors_dtype("bf16"), nullptr);
  EXPECT_EQ(find_safetensors_dtype(""), nullptr);
}

TEST(DType, ArraysConvertFromAndToFp32AtAnyAlignment) {
  const std::vector<float> values = {0.0f, -1.5f, 2.0f, 256.0f};
  for (DType type : {&kFloat32, &kBFloat16, &kFloat16, &kFloat8E4M3}) {
    std::vector<std::byte> raw(values.size() * type->block_bytes + 1);
    from_float(type, values.data(), raw.data() + 1, values.size());
    std::vector<float> back(values.size());
    to_float(type, raw.data() + 1, back.data(), back.size());
    EXPECT_EQ(back, values) << type->name;
  }
  const double wide[] = {0.5, -3};
  const int32_t whole[] = {7, -8};
  float out[2];
  to_float(&kFloat64, reinterpret_cast<const std::byte*>(wide), out, 2);
  EXPECT_THAT(out, ::testing::ElementsAre(0.5f, -3.0f));
  to_float(&kInt32, reinterpret_cast<const std::byte*>(whole), out, 2);
  EXPECT_THAT(out, ::testing::ElementsAre(7.0f, -8.0f));
}

TEST(DType, EmptyArraysMayBeNull) {
  for (const DType type : {&kFloat32, &kBFloat16, &kFloat8E4M3}) {
    to_float(type, nullptr, nullptr, 0);
    from_float(type, nullptr, nullptr, 0);
  }
}

TEST(DType, TypesWithoutAMeaningAsWeightsAreRefusedByName) {
  float value = 0;
  std::byte raw[8] = {};
  for (DType type : {&kBool, &kUInt8, &kInt64, &kFloat8E8M0}) {
    for (const bool reading : {true, false}) {
      try {
        reading ? to_float(type, raw, &value, 1) : from_float(type, &value, raw, 1);
        ADD_FAILURE() << type->name;
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ErrorCode::kUnsupportedModel);
        EXPECT_NE(std::string(e.what()).find(type->name), std::string::npos);
      }
    }
  }
}

// 8-bit formats evaluated from their definition: every code, and the midpoints between codes.
struct ByteFormat {
  int mantissa_bits;
  int largest;  // code of the largest number
  float (*decode)(uint8_t);
  uint8_t (*encode)(float);

  double value(int code) const {
    const int bias = (1 << (6 - mantissa_bits)) - 1, exponent = code >> mantissa_bits;
    const int hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
    return std::ldexp(hidden + (code & ((1 << mantissa_bits) - 1)), std::max(exponent, 1) - bias - mantissa_bits);
  }
};

TEST(EightBits, RoundToTheNearestAndSaturate) {
  for (const ByteFormat& format :
       {ByteFormat{3, 0x7e, fp8_to_float, float_to_fp8}, ByteFormat{2, 0x7b, fp8_e5m2_to_float, float_to_fp8_e5m2}}) {
    for (int sign : {1, -1}) {
      const auto coded = [&](double x) { return int{format.encode(static_cast<float>(sign * x))}; };
      const int bit = sign < 0 ? 0x80 : 0;
      for (int code = 0; code <= format.largest; ++code) {
        SCOPED_TRACE(fmt::format("{} bits of mantissa, code {:#x}", format.mantissa_bits, code | bit));
        const double value = format.value(code);
        EXPECT_EQ(format.decode(static_cast<uint8_t>(code | bit)), sign * value);
        EXPECT_EQ(coded(value), code | bit);
        if (code == format.largest) break;
        const double middle = (value + format.value(code + 1)) / 2;
        EXPECT_EQ(coded(middle), (code + code % 2) | bit);  // ties go to the even code
        EXPECT_EQ(coded(middle * (1 - 1e-6)), code | bit);
        EXPECT_EQ(coded(middle * (1 + 1e-6)), (code + 1) | bit);
      }
      EXPECT_EQ(coded(format.value(format.largest) * 1.5), format.largest | bit);
      EXPECT_EQ(coded(kInfinity), format.largest | bit);
    }
    EXPECT_TRUE(std::isnan(format.decode(format.encode(std::nanf("")))));
    EXPECT_TRUE(std::isnan(format.decode(0x7f)));
  }
}

}  // namespace
}  // namespace sluice::dtype_test
