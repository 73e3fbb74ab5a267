// The shared memory of a block that multiplies a tile of rows by 128 outputs. Copies fill its stages, which have two
// barriers each. After the last stage the sums take the place of the stages, and the blocks of a cluster add them up.
#pragma once

#include "kernels/cuda/device/cluster.cuh"

namespace sluice::cuda {

inline constexpr int kTileOutputs = 128;
inline constexpr uint32_t kSumPitch =
    (kTileOutputs + 4) * 4;  // bytes from a row's sums to the next row's, chosen so that lanes meet all banks

// The sums of a tile, from `base` on.
template <int rows>
struct TileSums {
  static constexpr uint32_t kBytes = rows * kSumPitch;
  uint32_t base;

  __device__ uint32_t at(int row, int output) const { return base + row * kSumPitch + output * 4; }
  // Four sums of a row, added over all `blocks` blocks of the cluster in order.
  __device__ float4 of_blocks(int blocks, int row, int output) const {
    float4 sum{};
    for (int block = 0; block < blocks; ++block) {
      const float4 v = load_shared_of(block, at(row, output));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
  }
};

// `base` is a multiple of 1024; all other addresses are offsets from it.
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
