// Tests that packed numbers of quantizers read tile by tile match those read one by one, and the blocks made from them.
#include "formats/quantized/tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/json.h"
#include "base/thread_pool.h"
#include "formats/quantized/quantized.h"
#include "sluice/error.h"

namespace sluice::tensors_test {
namespace {

std::vector<uint32_t> random_words(int64_t count) {
  std::mt19937 random(7);
  std::vector<uint32_t> words(static_cast<size_t>(count));
  for (uint32_t& word : words) word = random();
  return words;
}

const std::byte* bytes_of(const std::vector<uint32_t>& words) {
  return reinterpret_cast<const std::byte*>(words.data());
}

// Tiles of rows at arbitrary positions, in a matrix with one full tile of inputs and a partial one.
constexpr int64_t kOutputs = 72, kInputs = kTileInputs + 104;
template <class Read, class At>
void expect_tiles(const Read& read, const At& at) {
  for (const auto& [output, outputs] : {std::pair<int64_t, int64_t>{0, kOutputs}, {8, 8}, {5, 11}, {61, 3}, {71, 1}}) {
    for (const int64_t input : {int64_t{0}, kTileInputs}) {
      const MatrixTile tile{output, outputs, input, std::min(kTileInputs, kInputs - input)};
      std::vector<uint8_t> values(static_cast<size_t>(tile.outputs * tile.inputs));
      read(tile, values.data());
      for (int64_t r = 0; r < tile.outputs; ++r) {
        for (int64_t i = 0; i < tile.inputs; ++i) {
          ASSERT_EQ(values[static_cast<size_t>(r * tile.inputs + i)], at(output + r, input + i))
              << "output " << output + r << " input " << input + i;
        }
      }
    }
  }
}

TEST(PackedFields, TilesHaveTheNumbersOfTheirRows) {
  for (const int bits : {2, 3, 4, 8}) {
    const int64_t words = words_of(kInputs, bits);
    const std::vector<uint32_t> data = random_words(kOutputs * words + 1);
    for (const PackedFields& fields :
         {PackedFields{bytes_of(data), 1, words, bits}, PackedFields{bytes_of(data), kOutputs, 1, bits}}) {
      expect_tiles([&](const MatrixTile& tile, uint8_t* to) { fields.read(tile, to); },
                   [&](int64_t output, int64_t input) { return fields.at(output, input); });
    }
  }
}

TEST(AwqFields, TilesHaveTheNumbersOfTheirRows) {
  const std::vector<uint32_t> data = random_words(kInputs * kOutputs / 8);
  const AwqFields fields{bytes_of(data), kOutputs / 8};
  expect_tiles([&](const MatrixTile& tile, uint8_t* to) { fields.read(tile, to); },
               [&](int64_t output, int64_t input) { return fields.at(input, output); });
}

// The layout as AutoAWQ writes it: output o of eight is in bits 4 * order[o] of the word.
TEST(AwqFields, OutputsOfAWordAreInTurn) {
  const std::vector<uint32_t> data = {0x76543210};
  const AwqFields fields{bytes_of(data), 1};
  const int expected[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int o = 0; o < 8; ++o) EXPECT_EQ(fields.at(0, o), expected[o]);
}

TEST(GroupMatrix, BlocksAndPlainRowsHaveTheValuesOfTheMatrix) {
  ThreadPool pool(2);
  constexpr int64_t kColumns = kTileInputs + 128;
  for (const int64_t group : {128, 48}) {  // no block format fits groups of 48
    const std::vector<uint32_t> data = random_words(kOutputs * kColumns / 8);
    const PackedFields fields{bytes_of(data), kOutputs, 1, 4};
    GroupMatrix matrix{.bits = 4, .outputs = kOutputs, .inputs = kColumns, .group = group};
    matrix.quants = [=](const MatrixTile& tile, uint8_t* to) { fields.read(tile, to); };
    matrix.scale = [](int64_t output, int64_t g) { return static_cast<float>(1 + output * 8 + g); };
    matrix.zero = [](int64_t output, int64_t g) { return static_cast<int>((output + g) % 16); };
    const TensorEntry entry = entry_of("w", matrix);
    ASSERT_EQ(entry.dtype->block_size > 1, group == 128);
    Buffer memory;
    const Tensor rows = entry.rows_in_memory(3, 66, pool, memory).front();
    std::vector<float> values(static_cast<size_t>(kColumns));
    for (int64_t r = 0; r < 66; ++r) {
      to_float(rows.dtype, rows.slice_rows(r, 1).data, values.data(), values.size());
      for (int64_t i = 0; i < kColumns; ++i) {
        const int64_t output = 3 + r, g = i / group;
        const float expected =
            matrix.scale(output, g) * static_cast<float>(fields.at(output, i) - matrix.zero(output, g));
        ASSERT_EQ(values[static_cast<size_t>(i)], expected)
            << "group " << group << " output " << output << " input " << i;
      }
    }
  }
}

// Two parts of 130 rows with two scales each: the second part's blocks begin at its first row.
TEST(Fp8Blocks, BeginAnewInEveryPartOfAFusedProjection) {
  constexpr int64_t kRows = 260, kColumns = 128;
  const std::vector<uint8_t> ones(static_cast<size_t>(kRows * kColumns), 0x38);  // 1.0
  const std::vector<float> scales = {1.0f, 2.0f, 3.0f, 4.0f};
  const auto entry = [](const char* name, DType type, const Shape& shape, const auto& values) {
    TensorEntry out;
    out.name = name, out.dtype = type, out.shape = shape;
    out.data = reinterpret_cast<const std::byte*>(values.data());
    out.bytes = values.size() * sizeof(values[0]);
    return out;
  };
  const auto read = [&](const Json& model) {
    TensorMap tensors;
    tensors.emplace("a.qkv_proj.weight", entry("a.qkv_proj.weight", &kFloat8E4M3, {kRows, kColumns}, ones));
    tensors.emplace("a.qkv_proj.weight_scale_inv", entry("a.qkv_proj.weight_scale_inv", &kFloat32, {4, 1}, scales));
    Json values = {{"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}};
    values.update(model);
    read_quantized(Config(std::move(values), "config.json"), tensors);
    return tensors.at("a.qkv_proj.weight");
  };
  const TensorEntry weight = read({{"attention_projection_layout", "fused_qkv"}, {"num_key_value_heads", 2}});
  ThreadPool pool(1);
  Buffer memory;
  const Tensor rows = weight.rows_in_memory(0, kRows, pool, memory).front();
  for (const auto& [row, expected] :
       {std::pair<int64_t, float>{0, 1}, {127, 1}, {128, 2}, {130, 3}, {257, 3}, {259, 4}}) {
    std::vector<float> values(static_cast<size_t>(kColumns));
    to_float(rows.dtype, rows.slice_rows(row, 1).data, values.data(), values.size());
    EXPECT_EQ(values.front(), expected) << "row " << row;
    EXPECT_EQ(values.back(), expected) << "row " << row;
  }
  EXPECT_THROW(read(Json::object()), Error);  // three blocks of 260 rows
}

// MXFP8: 8-bit floats with a power of two per 32 inputs, as each of the tools that write it names and describes it.
TEST(Mxfp8, ReadsTheFilesOfEveryTool) {
  constexpr int64_t kRows = 2, kColumns = 96;
  const std::vector<uint8_t> ones(static_cast<size_t>(kRows * kColumns), 0x38);  // 1.0
  const std::vector<uint8_t> exponents = {127, 128, 126, 130, 127, 0};           // 1, 2, 1/2; 8, 1, 2^-127
  const auto read = [&](const Json& quantization, const std::string& ending, const Shape& scales) {
    TensorMap tensors;
    const auto put = [&](const std::string& name, DType type, const Shape& shape, const std::vector<uint8_t>& values) {
      TensorEntry out;
      out.name = name, out.dtype = type, out.shape = shape;
      out.data = reinterpret_cast<const std::byte*>(values.data());
      out.bytes = values.size();
      tensors.emplace(name, out);
    };
    put("a.weight", &kFloat8E4M3, {kRows, kColumns}, ones);
    put("a" + ending, &kUInt8, scales, exponents);
    read_quantized(Config({{"quantization_config", quantization}}, "config.json"), tensors);
    EXPECT_EQ(tensors.size(), 1u);
    ThreadPool pool(1);
    Buffer memory;
    const Tensor rows = tensors.at("a.weight").rows_in_memory(0, kRows, pool, memory).front();
    std::vector<float> values(static_cast<size_t>(kRows * kColumns));
    to_float(rows.dtype, rows.data, values.data(), values.size());
    return values;
  };
  std::vector<float> want;
  for (const float scale : {1.0f, 2.0f, 0.5f, 8.0f, 1.0f, std::ldexp(1.0f, -127)}) want.insert(want.end(), 32, scale);
  const Json weights = {{"num_bits", 8}, {"type", "float"}, {"group_size", 32}, {"strategy", "group"}};
  const Json compressed = {{"quant_method", "compressed-tensors"},
                           {"format", "mxfp8-quantized"},
                           {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}}};
  const Shape shape{kRows, 3};
  EXPECT_EQ(read(compressed, ".weight_scale", shape), want);
  EXPECT_EQ(read({{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}}, ".weight_scale", shape), want);
  EXPECT_EQ(read({{"quant_method", "mxfp8"}, {"ignored_layers", {"lm_head"}}}, ".weight_scale_inv", shape), want);
  const Json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {1, 32}}, {"scale_fmt", "ue8m0"}};
  EXPECT_EQ(read(blocks, ".weight_scale_inv", shape), want);
  EXPECT_THROW(read(blocks, ".weight_scale_inv", Shape{1, 6}), Error);
}

// DeepSeek-V4: scales are powers of two in NAME.scale, per block of 8-bit floats, and per 32 inputs of 4-bit floats.
TEST(DeepseekV4, ScalesArePowersOfTwo) {
  constexpr int64_t kRows = 130, kColumns = 256;
  const std::vector<uint8_t> ones(static_cast<size_t>(kRows * kColumns), 0x38);  // 1.0
  const std::vector<uint8_t> scales = {127, 128, 126, 130};                      // 1, 2, 1/2, 8
  const std::vector<uint8_t> pairs(2 * 32, 0x52);              // 1.0 in the low half, 3.0 in the high half
  const std::vector<uint8_t> of_pairs = {127, 128, 126, 127};  // two rows of two groups
  TensorMap tensors;
  const auto put = [&](const char* name, DType type, const Shape& shape, const std::vector<uint8_t>& values) {
    TensorEntry out;
    out.name = name, out.dtype = type, out.shape = shape;
    out.data = reinterpret_cast<const std::byte*>(values.data());
    out.bytes = values.size();
    tensors.emplace(name, out);
  };
  put("a.wq_a.weight", &kFloat8E4M3, {kRows, kColumns}, ones);
  put("a.wq_a.scale", &kFloat8E8M0, {2, 2}, scales);
  put("a.w1.weight", &kInt8, {2, 32}, pairs);
  put("a.w1.scale", &kFloat8E8M0, {2, 2}, of_pairs);
  const Json model = {
      {"quantization_config",
       {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"scale_fmt", "ue8m0"}, {"weight_block_size", {128, 128}}}}};
  read_quantized(Config(model, "config.json"), tensors);
  EXPECT_EQ(tensors.size(), 2u);
  ThreadPool pool(1);
  const auto row_of = [&](const char* name, int64_t row) {
    Buffer memory;
    const Tensor rows = tensors.at(name).rows_in_memory(row, 1, pool, memory).front();
    std::vector<float> values(static_cast<size_t>(rows.shape[1]));
    to_float(rows.dtype, rows.data, values.data(), values.size());
    return values;
  };
  EXPECT_EQ(row_of("a.wq_a.weight", 0).front(), 1.0f);
  EXPECT_EQ(row_of("a.wq_a.weight", 0).back(), 2.0f);
  EXPECT_EQ(row_of("a.wq_a.weight", 129).front(), 0.5f);
  EXPECT_EQ(row_of("a.wq_a.weight", 129).back(), 8.0f);
  const std::vector<float> first = row_of("a.w1.weight", 0), second = row_of("a.w1.weight", 1);
  ASSERT_EQ(first.size(), 64u);
  EXPECT_EQ(first[0], 1.0f);
  EXPECT_EQ(first[1], 3.0f);
  EXPECT_EQ(first[33], 6.0f);
  EXPECT_EQ(second[1], 1.5f);
  EXPECT_EQ(second[62], 1.0f);
}

}  // namespace
}  // namespace sluice::tensors_test
