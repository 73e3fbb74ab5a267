// Quantized matrices in the forms of quantizers, seen alike: small integers or 8-bit floats with scales.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace sluice {

// A matrix of integers: weight [o, i] is scale(o, g) * (quant(o, i) - zero(o, g)) for the group g of input i.
struct GroupMatrix {
  int bits = 0;  // 4 or 8
  int64_t outputs = 0, inputs = 0;
  int64_t group = 0;                // inputs per group
  std::vector<int32_t> group_of{};  // of every input, where groups are no runs of inputs; else empty
  std::function<void(int64_t output, int64_t count, uint8_t* to)> quants{};  // rows of all inputs
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

// Entries that are computed when they are read: as blocks, or as fp32 where no block format fits (groups in disorder or
// of odd sizes), which is then packed like any plain matrix.
TensorEntry entry_of(std::string name, GroupMatrix matrix);
TensorEntry entry_of(std::string name, Fp8Matrix matrix);

}  // namespace sluice
