// Rows on their way into tiles (matmul_tiles.h).
#pragma once

#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/matmul/tiles.h"

namespace sluice::cuda {

// Where a row of x belongs: rows of the matrix that begins at or before it, the last one of those that begin at the
// same row, where `starts` is not null.
__device__ inline int64_t place_of_row(const int32_t* starts, int matrices, int row) {
  if (starts == nullptr) return row;
  const int matrix = last_of(0, matrices - 1, [&](int m) { return starts[m] <= row; });
  return tile_place(starts[matrix], matrix) + row - starts[matrix];
}

// Four of k inputs, zeros beyond. `aligned`: to 16 bytes.
__device__ inline float4 inputs_at(const float* x, int at, int k, bool aligned) {
  if (aligned && at + 4 <= k) return *reinterpret_cast<const float4*>(x + at);
  return {at < k ? x[at] : 0.0f, at + 1 < k ? x[at + 1] : 0.0f, at + 2 < k ? x[at + 2] : 0.0f,
          at + 3 < k ? x[at + 3] : 0.0f};
}

}  // namespace sluice::cuda
