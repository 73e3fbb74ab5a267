// Tests block formats against the Python package gguf: the values it reads from random blocks, and the blocks it writes
// (tests/goldens/quant, made by tests/tools/make_quant_goldens.py).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/registry.h"
#include "quant/all.h"

namespace sluice::codecs_test {
namespace {

template <class T>
std::vector<T> read(const std::string& name) {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/goldens/quant/" + name, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

template <class F>
std::vector<DType> block_types(F&& wanted) {
  std::vector<DType> types;
  for (DType type : Registry<TypeInfo>::all()) {
    if (type->block_size > 1 && wanted(type)) types.push_back(type);
  }
  return types;
}

bool in_files(DType type) { return type->gguf >= 0 && type != &quant::Q8_K::kType; }  // Q8_K is for activations
bool own_writer(DType type) { return type->name.ends_with("_k"); }  // that package has no reference writer
bool written(DType type) { return type->encode != nullptr; }

std::string name_of(const testing::TestParamInfo<DType>& info) { return std::string(info.param->name); }

class CodecTest : public testing::TestWithParam<DType> {};
class WritingTest : public testing::TestWithParam<DType> {};

TEST_P(CodecTest, ReadsWhatTheReferenceReads) {
  const DType type = GetParam();
  const auto blocks = read<std::byte>(std::string(type->name) + ".blocks");
  const auto expected = read<float>(std::string(type->name) + ".values");
  ASSERT_FALSE(blocks.empty());
  ASSERT_EQ(blocks.size() / type->block_bytes * type->block_size, expected.size());
  std::vector<std::byte> unaligned(blocks.size() + 1);
  std::memcpy(unaligned.data() + 1, blocks.data(), blocks.size());
  std::vector<float> values(expected.size());
  to_float(type, unaligned.data() + 1, values.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], expected[i]) << type->name << " element " << i;
}

TEST_P(WritingTest, WritesWhatTheReferenceWrites) {
  const DType type = GetParam();
  if (!in_files(type) || own_writer(type)) GTEST_SKIP() << "the reference has no writer for this type";
  const auto source = read<float>("source.values");
  const auto expected = read<std::byte>(std::string(type->name) + ".quantized");
  ASSERT_EQ(expected.size(), source.size() / type->block_size * type->block_bytes);
  std::vector<std::byte> blocks(expected.size());
  from_float(type, source.data(), blocks.data(), source.size());
  for (size_t i = 0; i < blocks.size(); ++i) ASSERT_EQ(blocks[i], expected[i]) << type->name << " byte " << i;
}

TEST_P(WritingTest, NoInputIsUndefined) {
  const DType type = GetParam();
  std::vector<float> wild(type->block_size, 1.0f);
  wild[0] = std::numeric_limits<float>::infinity();
  wild[1] = -std::numeric_limits<float>::infinity();
  wild[2] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> block(type->block_bytes);
  from_float(type, wild.data(), block.data(), wild.size());  // the sanitizers report any undefined behavior
  to_float(type, block.data(), wild.data(), wild.size());
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest, testing::ValuesIn(block_types(in_files)), name_of);
INSTANTIATE_TEST_SUITE_P(All, WritingTest, testing::ValuesIn(block_types(written)), name_of);

// Compares the root mean square error with formats of the same width that do not search for scales.
TEST(KQuants, AreNearerThanTheirPlainRelatives) {
  const auto source = read<float>("source.values");
  const auto error = [&](DType type) {
    std::vector<std::byte> blocks(source.size() / type->block_size * type->block_bytes);
    std::vector<float> values(source.size());
    from_float(type, source.data(), blocks.data(), source.size());
    to_float(type, blocks.data(), values.data(), values.size());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += std::pow(double{values[i]} - source[i], 2);
    return std::sqrt(sum);
  };
  EXPECT_LT(error(&quant::Q4_K::kType), error(&quant::Q4_0::kType));
  EXPECT_LT(error(&quant::Q5_K::kType), error(&quant::Q5_0::kType));
  EXPECT_LT(error(&quant::Q6_K::kType), 0.7 * error(&quant::Q5_K::kType));
  EXPECT_LT(error(&quant::Q8_0::kType), error(&quant::Q6_K::kType));
}

TEST(Q8K, IsWithinHalfALevelAndSumsItsBlocks) {
  const auto source = read<float>("source.values");
  for (size_t row = 0; row < source.size(); row += 256) {
    quant::Q8_K::Block block;
    quant::Q8_K::quantize(source.data() + row, block);
    float values[256];
    quant::Q8_K::dequantize(block, values);
    const float d = block.d;
    int sum = 0;
    for (int i = 0; i < 256; ++i) {
      EXPECT_LE(std::abs(values[i] - source[row + i]), std::abs(d) * 0.501f);
      sum += block.qs[i];
      if (i % 16 != 15) continue;
      const int16_t stored = block.bsums[i / 16];
      EXPECT_EQ(stored, sum);
      sum = 0;
    }
  }
}

TEST(HalfToFloat, AgreesForEveryHalf) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const float expected = fp16_to_float(static_cast<uint16_t>(bits));
    const float value = quant::half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(Registry, KnowsTypesByNameAndByNumber) {
  EXPECT_EQ(find_dtype("q4_k"), &quant::Q4_K::kType);
  EXPECT_EQ(find_gguf_dtype(12), &quant::Q4_K::kType);
  EXPECT_EQ(find_gguf_dtype(30), &kBFloat16);
  EXPECT_EQ(find_gguf_dtype(-1), nullptr);
  EXPECT_EQ(find_gguf_dtype(4), nullptr);  // Q4_2 was removed from ggml
  EXPECT_EQ(quant::Q4_K::kType.block_bytes, 144);
  EXPECT_EQ(quant::IQ1_M::kType.block_bytes, 56);
}

}  // namespace
}  // namespace sluice::codecs_test
