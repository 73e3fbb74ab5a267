// int8 matmuls of few rows with integers and levels of up to 8 bits: what bytes.cuh shares with the kernel that
// prepares its inputs.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// An input is scale * (high * 128 + low), with one scale per row, and the largest input of a row becomes
// kLargestByteNumber. So high and low are from -127 to 127. The rounding error is 1.8e-5 of the row's largest input in
// the mean square. Rounding to bf16 gives 8e-4 of the inputs' root mean square. So int8 is the more accurate where the
// largest input is at most 46 times the root mean square; it cannot be more than sqrt(k) times it.
inline constexpr int kByteBits = 7, kByteUnit = 1 << kByteBits;
inline constexpr float kLargestByteNumber = 127 * kByteUnit + kByteUnit / 2 - 1;

// Bytes of the inputs of two K-slices, which form a row of an operand in shared memory.
inline constexpr int kPairBytes = 128;
constexpr int64_t byte_pairs(int64_t k) { return (k + kPairBytes - 1) / kPairBytes; }

// Pairs of K-slices one after the other. Each has all rows, whose packs of 16 bytes are swizzled
// (device/warpgroup.cuh). Rows lie at tile_place().
struct ByteInputs {
  std::byte *high, *low;
  float* scales;  // per row
  float* sums;    // sums of the integers, per pair, set of inputs and row
  int64_t rows;
};

// Rounds p.x, fp32. `sets`: sets of inputs per pair, 1, 2, 4 or 8.
void round_to_bytes(const Launch&, const ByteInputs&, int sets, const MatmulProblem& p);

}  // namespace sluice::cuda
