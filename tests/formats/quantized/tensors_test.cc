// Tests that packed numbers of quantizers read tile by tile match those read one by one, and the blocks made from them.
#include "formats/quantized/tensors.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/thread_pool.h"

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

}  // namespace
}  // namespace sluice::tensors_test
