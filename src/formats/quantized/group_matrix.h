// A common view of quantized matrices: small integers, indices into a table of levels, or floats of 8 or 4 bits, each
// with scales.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// A tile of a matrix: some rows, and `inputs` columns starting at a multiple of kTileInputs.
struct MatrixTile {
  int64_t output, outputs, input, inputs;
};
inline constexpr int64_t kTileInputs = 256;

// A matrix of integers. Weight [o, i] is scale(o, g) * (quant(o, i) - zero(o, g)), where g is the group of input i.
struct GroupMatrix {
  int bits = 0;  // 4 or 8
  int64_t outputs = 0, inputs = 0;
  int64_t group = 0;                // inputs per group
  std::vector<int32_t> group_of{};  // group of every input; empty when groups are runs of inputs
  std::function<void(const MatrixTile&, uint8_t* to)> quants{};  // writes the quants of the tile: [outputs, inputs]
  std::function<float(int64_t output, int64_t group)> scale{};
  std::function<int(int64_t output, int64_t group)> zero{};  // 0 .. 2^bits
};

// A matrix of 8-bit floats (E4M3). Weight [o, i] is the number times scale(o, i).
struct Fp8Matrix {
  const std::byte* data = nullptr;  // [outputs, inputs]
  int64_t outputs = 0, inputs = 0;
  bool row_scales = false;  // whether the scale depends only on the output
  int64_t group = 128;      // inputs of an aligned run with one scale
  std::function<float(int64_t output, int64_t input)> scale;
};

// A matrix of table indices. Weight number e, counting row by row, is scales[e / group] times the level of its index.
// Two indices share a byte, the first in the high half.
struct LevelMatrix {
  const std::byte* data = nullptr;
  int64_t outputs = 0, inputs = 0, group = 0;
  std::array<float, 16> levels{};
  std::vector<float> scales{};
};

// Returns the signed 8-bit integers of an entry [outputs, inputs] with zero points of zero. The caller sets groups and
// scales.
GroupMatrix int8_rows(const TensorEntry& weight);

// Return entries that are computed when they are read. The result is blocks, or fp32 where no block format fits
// (unordered groups or unusual sizes); fp32 is then packed like any plain matrix.
TensorEntry entry_of(std::string name, GroupMatrix matrix);
TensorEntry entry_of(std::string name, Fp8Matrix matrix);
TensorEntry entry_of(std::string name, LevelMatrix matrix);
// Returns an entry of 4-bit floats (E2M1). `packed` is [outputs, inputs / 2], the even input in the low half of a byte.
// Weights are multiplied by `factor` and the scale of their group: a positive E4M3 per 16 inputs (NVFP4), or a power of
// two (E8M0) per 32 inputs (MXFP4). Throws for other types of scales.
TensorEntry fp4_entry(std::string name, const TensorEntry& packed, const TensorEntry& scales, float factor);

// Returns experts in MXFP4 as one entry [experts, rows, 32 * groups]. Blocks are [experts, rows, groups, 16] and scales
// [experts, rows, groups], both uint8. With `in_turn`, the even rows of every expert come before its odd rows.
TensorEntry mxfp4_experts(std::string name, const TensorEntry& blocks, const TensorEntry& scales, bool in_turn);

}  // namespace sluice
