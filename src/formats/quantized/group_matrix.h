// Quantized matrices in the forms of quantizers, seen alike: small integers, places in a table of levels, or floats of
// 8 or 4 bits, with scales.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// Some rows of a matrix, some columns of each: `inputs` of them from a multiple of kTileInputs on.
struct MatrixTile {
  int64_t output, outputs, input, inputs;
};
inline constexpr int64_t kTileInputs = 256;

// A matrix of integers: weight [o, i] is scale(o, g) * (quant(o, i) - zero(o, g)) for the group g of input i.
struct GroupMatrix {
  int bits = 0;  // 4 or 8
  int64_t outputs = 0, inputs = 0;
  int64_t group = 0;                // inputs per group
  std::vector<int32_t> group_of{};  // of every input, where groups are no runs of inputs; else empty
  std::function<void(const MatrixTile&, uint8_t* to)> quants{};  // to [outputs, inputs] of the tile
  std::function<float(int64_t output, int64_t group)> scale{};
  std::function<int(int64_t output, int64_t group)> zero{};  // 0 .. 2^bits
};

// A matrix of 8-bit floats (E4M3): weight [o, i] is scale(o, i / group) times the number.
struct Fp8Matrix {
  const std::byte* data = nullptr;  // [outputs, inputs]
  int64_t outputs = 0, inputs = 0;
  bool row_scales = false;  // the scale depends on the output alone; else it is constant over runs of 128 inputs from a
                            // multiple of 128 on
  std::function<float(int64_t output, int64_t input)> scale;
};

// A matrix of places in a table: weight number e, rows in order, is scales[e / group] times the level of its place. Two
// to a byte, the first in its high half.
struct LevelMatrix {
  const std::byte* data = nullptr;
  int64_t outputs = 0, inputs = 0, group = 0;
  std::array<float, 16> levels{};
  std::vector<float> scales{};
};

// All but the groups and scales of signed 8-bit integers as they lie in an entry [outputs, inputs]; zero is zero.
GroupMatrix int8_rows(const TensorEntry& weight);

// Entries that are computed when they are read: as blocks, or as fp32 where no block format fits (groups in disorder or
// of odd sizes), which is then packed like any plain matrix.
TensorEntry entry_of(std::string name, GroupMatrix matrix);
TensorEntry entry_of(std::string name, Fp8Matrix matrix);
TensorEntry entry_of(std::string name, LevelMatrix matrix);
// 4-bit floats (E2M1) [outputs, inputs / 2], the even input in the low half of a byte, times `factor` and the scale of
// a group: E4M3, above zero, for 16 inputs (NVFP4) or a power of two, E8M0, for 32 (MXFP4). Throws for others.
TensorEntry fp4_entry(std::string name, const TensorEntry& packed, const TensorEntry& scales, float factor);

// Experts in MXFP4: blocks [experts, rows, groups, 16] and scales [experts, rows, groups] of uint8, as one entry
// [experts, rows, 32 * groups]. With `in_turn` its rows are the even ones of every expert before the odd ones.
TensorEntry mxfp4_experts(std::string name, const TensorEntry& blocks, const TensorEntry& scales, bool in_turn);

}  // namespace sluice
