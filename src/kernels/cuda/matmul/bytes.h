// Products of few rows with integers and levels of up to 8 bits, in int8: what matmul_bytes.cuh shares with the kernel
// that prepares its inputs.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// An input is scale * (high * 128 + low) of its row's scale, the largest one of a row kLargestByteNumber: high and low
// are from -127 to 127 then. In the mean square that is off by 1.8e-5 of the row's largest input, where rounding to
// bf16 is off by 8e-4 of the inputs' root mean square: less where the largest one is up to 46 times that. More than
// sqrt(k) times it cannot be.
inline constexpr int kByteBits = 7, kByteUnit = 1 << kByteBits;
inline constexpr float kLargestByteNumber = 127 * kByteUnit + kByteUnit / 2 - 1;

// Inputs of two lines, whose bytes are a row of what tensor cores read.
inline constexpr int kPairBytes = 128;
constexpr int64_t byte_pairs(int64_t k) { return (k + kPairBytes - 1) / kPairBytes; }

// Pairs of lines one after the other, each with all rows, whose packs of 16 are exchanged (device/warpgroup.cuh); rows
// as in tile_place().
struct ByteInputs {
  std::byte *high, *low;
  float* scales;  // of each row
  float* sums;    // per pair, set of inputs and row: those of the numbers
  int64_t rows;
};

// p.x, fp32. `sets`: of a pair, 1, 2, 4 or 8.
void round_to_bytes(const Launch&, const ByteInputs&, int sets, const MatmulProblem& p);

}  // namespace sluice::cuda
