// Grid sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

constexpr int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// The blocks of a grid-stride loop over `count` items: one thread per item, or as many blocks as fill the device a few
// times.
inline unsigned blocks_for(const Launch& l, int64_t count, int threads) {
  return static_cast<unsigned>(std::min<int64_t>(pieces(count, threads), int64_t{l.sm_count} * 16));
}

}  // namespace sluice::cuda
