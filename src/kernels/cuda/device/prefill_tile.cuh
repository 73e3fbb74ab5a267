// Which rows a block of prefill takes. The sequences' packed rows are cut into tiles, which the device counts from
// where the rows begin. A grid of the longest sequence's tiles times all sequences would consist mostly of blocks
// without rows, and starting one takes as long as starting any other.
#pragma once

#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/device/visible_keys.cuh"

namespace sluice::cuda {

struct PrefillTile {
  int sequence, kv_head, first_row;  // sequence -1: there is no such tile
};

inline constexpr int kMostPrefillWarps = 16;  // most warps of a block

// The block's own tile among the tiles of those of the `sequences` sequences that are not decoded. The tiles of a kv
// head follow one another, those with the most keys first. Called by all threads of the block. They need a barrier
// before they write to `scratch`, 128 bytes of shared memory.
__device__ inline PrefillTile prefill_tile(const AttentionParams& p, int sequences, uint4* scratch) {
  auto* sums = reinterpret_cast<int*>(scratch);
  PrefillTile& found = *reinterpret_cast<PrefillTile*>(sums + kMostPrefillWarps);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  int number = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) found = {-1, 0, 0};
  for (int first = 0; first < sequences; first += static_cast<int>(blockDim.x)) {
    const int s = first + static_cast<int>(threadIdx.x);
    const int rows = s < sequences ? (p.query_start[s + 1] - p.query_start[s]) * p.group : 0;
    const int tiles = rows > kMostDecodeRows ? (rows + kPrefillTileRows - 1) / kPrefillTileRows : 0;
    int upto = sum_upto(tiles);
    if (lane == kWarp - 1) sums[warp] = upto;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) upto += sums[w];
      all += sums[w];
    }
    const int own = number - (upto - tiles) * p.kv_heads;
    if (own >= 0 && own < tiles * p.kv_heads) {
      found = {s, own / tiles, (tiles - 1 - own % tiles) * kPrefillTileRows};
    }
    number -= all * p.kv_heads;
    __syncthreads();
    if (number < 0) break;
  }
  return found;
}

}  // namespace sluice::cuda
