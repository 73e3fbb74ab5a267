// Sizes of grids.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

constexpr int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Blocks of a grid-stride loop over `count` items: one thread each, or as many as fill the device a few times over.
inline unsigned blocks_for(const Launch& l, int64_t count, int threads) {
  return static_cast<unsigned>(std::min<int64_t>(pieces(count, threads), int64_t{l.sm_count} * 16));
}

}  // namespace sluice::cuda
