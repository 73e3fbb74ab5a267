// Packs rows of quantized weights into panels and reads them back weight by weight, by the layout that panel_layout.h
// documents.
#include "kernels/cuda/matmul/pack_panels.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace sluice::cuda::pack_panels_test {
namespace {

using quant::Scales;

float half(uint32_t pair, int i) { return quant::half_to_float(static_cast<uint16_t>(pair >> (16 * i))); }

// The weights of a panel of a format.
template <class Form>
class Panel {
 public:
  explicit Panel(int64_t k) : slices_(panel_slices(k)), bytes_(static_cast<size_t>(panel_bytes<Form>(k))) {}

  std::byte* data() { return bytes_.data(); }

  float weight(int output, int64_t input) const {
    const int64_t slice = input / kPanelSlice;
    const int at = static_cast<int>(input % kPanelSlice), g = output % kPairsOfRows, r = output / kPairsOfRows;
    const int step = at / kPanelStep, t = at % kPanelStep / 4, second = at % 2, pair = at % 4 / 2 * 2 + r;
    const uint32_t stored = code(slice, g * 4 + t, step, pair, second);
    if constexpr (kFormat.scales == Scales::kGroup) {
      const uint32_t group = group_word(slice, g, r);
      return quant::Int4G32::scale(group) * static_cast<float>(static_cast<int>(stored) - quant::Int4G32::zero(group));
    } else {
      return scale(slice, g, r, at / kFormat.sub_block) * level(stored);
    }
  }

 private:
  static constexpr quant::Integers kFormat = kPanelFormat<Form>;
  static constexpr PanelLayout kLayout = panel_layout<Form>();

  uint32_t word(int64_t at) const { return quant::load_u32(reinterpret_cast<const uint8_t*>(bytes_.data() + at)); }

  uint32_t code(int64_t slice, int lane, int step, int pair, int second) const {
    const int64_t at = slice * kLayout.slice_bytes();
    if constexpr (kFormat.low == 2) {
      return word(at + lane * 8 + step / 2 * 4) >> (2 * (4 * (step % 2) + pair) + 16 * second) & 3;
    } else if constexpr (kFp4Panels<Form>) {
      const int64_t words = at + lane * 16 + step / 2 * 8;
      const uint32_t both = (word(words) & 0x06030603) | (std::rotl(word(words + 4), 2) & ~0x06030603U);
      const uint32_t turned = pair < 3 ? std::rotl(word(words + step % 2 * 4), std::array{0, 4, 10}[pair])
                                       : std::rotl(both, step % 2 == 0 ? 6 : 12);
      const uint32_t bf16 = turned >> (16 * second);
      return (bf16 >> 6 & 7) | (bf16 >> 15 & 1) << 3;
    } else {
      const int nibble = std::is_same_v<Form, quant::NF4> ? 2 * pair + second : pair + 4 * second;
      return word(at + lane * 16 + step * 4) >> (4 * nibble) & 15;
    }
  }
  float level(uint32_t code) const {
    if constexpr (std::is_same_v<Form, quant::NF4>) return quant::kNf4Levels[code];
    if constexpr (kFp4Panels<Form>) return quant::kFp4Levels[code];
    return static_cast<float>(static_cast<int>(code) - kFormat.offset);
  }
  uint32_t group_word(int64_t slice, int g, int r) const {
    const int64_t block = slice / kLayout.scale_slices * kPairsOfRows + g;
    return word(kLayout.scales_at(slices_) + (block * kLayout.scale_words + r) * 4);
  }
  float scale(int64_t slice, int g, int r, int sub) const {
    const int64_t scales = kLayout.scales_at(slices_) + (slice * kPairsOfRows + g) * kLayout.scale_words * 4;
    const int64_t super_scales =
        kLayout.super_scales_at(slices_) +
        (slice / kLayout.super_scale_slices * kPairsOfRows + g) * kLayout.super_scale_words * 4;
    if constexpr (kFormat.scales == Scales::kFloat) {
      return std::bit_cast<float>(word(scales + r * 4));
    } else if constexpr (kFormat.scales == Scales::kFloat8) {
      const auto bits = static_cast<uint8_t>(word(scales + r * 4) >> (8 * sub));
      return (bits == 0x7f ? 480.0f : quant::Fp8::value(bits)) / 2 * std::bit_cast<float>(word(super_scales + r * 4));
    } else if constexpr (kFormat.scales == Scales::kExponent) {
      return std::ldexp(0.25f, static_cast<int>(word(scales) >> (8 * (2 * r + sub)) & 255) - 127);
    } else {
      static_assert(kFormat.scales == Scales::kSuper);
      const int byte = r * (kPanelSlice / kFormat.sub_block) + sub;
      return half(word(super_scales), r) * static_cast<float>(static_cast<int8_t>(word(scales) >> (8 * byte)));
    }
  }

  int64_t slices_;
  std::vector<std::byte> bytes_;
};

template <class Codec>
class PackPanelsTest : public ::testing::Test {
 protected:
  using Block = typename Codec::Block;

  std::vector<Block> random_row(int64_t blocks) {
    std::vector<Block> row(static_cast<size_t>(blocks));
    const float whole = 0.01f + 1e-4f * static_cast<float>(random() % 100);
    for (Block& block : row) {
      std::vector<uint8_t> bytes(sizeof block);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      std::memcpy(&block, bytes.data(), sizeof block);
      if constexpr (requires { block.scale; }) block.scale = whole;
      if constexpr (kPanelFormat<Form>.scales == Scales::kExponent) block.e = 100 + random() % 50;
      if constexpr (kPanelFormat<Form>.scales == Scales::kSuper || kPanelFormat<Form>.scales == Scales::kGroup) {
        block.d = 0x2c00 + random() % 1024;
      }
    }
    if constexpr (std::is_same_v<Codec, quant::NVFP4>) row[0].d[1] = 0x7f, row[0].d[2] = 0xff, row[0].d[3] = 5;
    return row;
  }

  using Form = typename PanelsOf<Codec>::Type;
  std::mt19937 random{5};
};

using Formats = ::testing::Types<quant::MXFP4, quant::NVFP4, quant::ScaledNVFP4, quant::NF4, quant::TQ1_0, quant::TQ2_0,
                                 quant::Q1_0, quant::Q2_0>;
TYPED_TEST_SUITE(PackPanelsTest, Formats);

TYPED_TEST(PackPanelsTest, WeightsLieWhereTheyShould) {
  // k is more than is packed at a time; formats of small blocks end with half a K-slice.
  constexpr int64_t kBlocks = TypeParam::kElements < kPanelSlice ? 13 : 5, k = kBlocks * TypeParam::kElements;
  static_assert(k > kPackedInputs);
  Panel<typename PanelsOf<TypeParam>::Type> panel(k);
  std::vector<std::vector<typename TypeParam::Block>> data;
  std::vector<std::vector<float>> expected;
  for (int output = 0; output < kPanelOutputs; ++output) {
    const auto& row = data.emplace_back(this->random_row(kBlocks));
    std::vector<float>& values = expected.emplace_back(static_cast<size_t>(k));
    to_float(&TypeParam::kType, reinterpret_cast<const std::byte*>(row.data()), values.data(), values.size());
  }
  for (const bool late : {false, true}) {  // rows that are packed together, then rows that are added to a panel
    std::array<const typename TypeParam::Block*, kPanelOutputs> rows{};
    for (size_t output = 0; output < kPanelOutputs; ++output) {
      if ((output % 5 == 3) == late) rows[output] = data[output].data();
    }
    pack_rows<TypeParam>(rows, k, panel.data());
  }
  for (int output = 0; output < kPanelOutputs; ++output) {
    for (int64_t i = 0; i < k; ++i) {
      const float value = expected[static_cast<size_t>(output)][static_cast<size_t>(i)];
      ASSERT_NEAR(panel.weight(output, i), value, 1e-6f * std::abs(value)) << "output " << output << " input " << i;
    }
  }
}

TEST(PackPanels, BitsOfAWeight) {
  const auto bits = [](int64_t panel) { return static_cast<double>(panel) * 8 / (kPanelOutputs * 4096); };
  EXPECT_EQ(bits(panel_bytes<quant::NF4>(4096)), 4.5);
  EXPECT_LT(bits(panel_bytes<quant::ScaledNVFP4>(4096)), 4.52);
  EXPECT_LT(bits(panel_bytes<quant::TQ2_0>(4096)), 2.32);
}

TEST(PackPanels, ScalesOfMxfp4AreNoLargerThanKernelsTake) {
  std::vector<std::byte> panel(static_cast<size_t>(panel_bytes<quant::MXFP4>(64)));
  std::vector<quant::MXFP4::Block> row(2);
  for (const int e : {0, 253}) {
    row[0].e = static_cast<uint8_t>(e);
    RowPacker<quant::MXFP4>(panel.data(), 64, 0).pack(row.data(), 0, 64);
  }
  for (const int e : {254, 255}) {
    row[0].e = static_cast<uint8_t>(e);
    EXPECT_THROW(RowPacker<quant::MXFP4>(panel.data(), 64, 0).pack(row.data(), 0, 64), Error);
  }
}

TEST(PackPanels, ARowOfNvfp4HasOneScaleOfTheTensor) {
  Panel<quant::ScaledNVFP4> panel(128);
  std::vector<quant::ScaledNVFP4::Block> row(2);
  row[0].scale = 1.0f, row[1].scale = 2.0f;
  EXPECT_DEATH(RowPacker<quant::ScaledNVFP4>(panel.data(), 128, 3).pack(row.data(), 0, 128), "several scales");
}

}  // namespace
}  // namespace sluice::cuda::pack_panels_test
