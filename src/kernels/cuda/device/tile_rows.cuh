// Where rows of x go in the tiles of matmul/tiles.h.
#pragma once

#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/matmul/tiles.h"

namespace sluice::cuda {

// The place of a row of x. Where `starts` is not null, the row belongs to the last matrix whose rows begin at or before
// it.
__device__ inline int64_t place_of_row(const int32_t* starts, int matrices, int row) {
  if (starts == nullptr) return row;
  const int matrix = last_of(0, matrices - 1, [&](int m) { return starts[m] <= row; });
  return tile_place(starts[matrix], matrix) + row - starts[matrix];
}

// Loads four of k inputs, zeros beyond k. `aligned`: x is aligned to 16 bytes.
__device__ inline float4 inputs_at(const float* x, int at, int k, bool aligned) {
  if (aligned && at + 4 <= k) return *reinterpret_cast<const float4*>(x + at);
  return {at < k ? x[at] : 0.0f, at + 1 < k ? x[at + 1] : 0.0f, at + 2 < k ? x[at + 2] : 0.0f,
          at + 3 < k ? x[at + 3] : 0.0f};
}

}  // namespace sluice::cuda
