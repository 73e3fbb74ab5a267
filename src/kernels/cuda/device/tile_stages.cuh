// Shared memory of a block that multiplies a tile of rows with 128 outputs: stages that copies fill, two barriers each,
// and in their place, when all is multiplied, the sums, which the blocks of a cluster add up.
#pragma once

#include "kernels/cuda/device/cluster.cuh"

namespace sluice::cuda {

inline constexpr int kTileOutputs = 128;
inline constexpr uint32_t kSumPitch =
    (kTileOutputs + 4) * 4;  // from a row's sums to the next one's: lanes meet all banks

// Sums of a tile, from `base` on.
template <int rows>
struct TileSums {
  static constexpr uint32_t kBytes = rows * kSumPitch;
  uint32_t base;

  __device__ uint32_t at(int row, int output) const { return base + row * kSumPitch + output * 4; }
  // Four sums of a row of all `blocks` blocks of the cluster, in order.
  __device__ float4 of_blocks(int blocks, int row, int output) const {
    float4 sum{};
    for (int block = 0; block < blocks; ++block) {
      const float4 v = load_shared_of(block, at(row, output));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
  }
};

// `base` is a multiple of 1024, all else bytes from there.
template <int stages, uint32_t stage_bytes, int rows>
struct TileStages {
  static constexpr int kStages = stages;
  static constexpr uint32_t kBytes = stages * (stage_bytes + 2 * 8);
  static_assert(TileSums<rows>::kBytes <= stages * stage_bytes);
  uint32_t base;

  __device__ uint32_t stage(int i) const { return base + i * stage_bytes; }
  __device__ uint32_t full(int i) const { return base + stages * stage_bytes + i * 2 * 8; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
  __device__ TileSums<rows> sums() const { return {base}; }
};

}  // namespace sluice::cuda
