// Matmuls with fewer tiles than SMs: how many blocks of a cluster split k of each tile.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

inline constexpr int kMostClusterBlocks = 8;  // supported by every device

// How many clusters of 1, 2, ... blocks of a kernel the device runs at once.
struct ClusterCapacity {
  std::array<int, kMostClusterBlocks + 1> clusters{};

  template <class... Parameters>
  ClusterCapacity(void (*kernel)(Parameters...), int threads, int shared) {
    for (int blocks = 1; blocks <= kMostClusterBlocks; ++blocks) {
      cudaLaunchAttribute cluster{};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {1, static_cast<unsigned>(blocks), 1};
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(1, static_cast<unsigned>(blocks));
      config.blockDim = dim3(static_cast<unsigned>(threads));
      config.dynamicSmemBytes = static_cast<size_t>(shared);
      config.attrs = &cluster;
      config.numAttrs = 1;
      check_cuda(cudaOccupancyMaxActiveClusters(&clusters[static_cast<size_t>(blocks)], kernel, &config),
                 "querying the number of resident clusters");
    }
  }

  // The number of blocks per cluster, at most `most`, with which `tiles` tiles of `steps` steps of work finish soonest.
  // `fixed` is the overhead of starting and ending a block, in steps. A quarter of it is counted for the sums of every
  // further block.
  int best(int64_t tiles, int steps, int most, int fixed) const {
    int best = 1;
    int64_t least = 0;
    for (int blocks = 1; blocks <= std::min({most, steps, kMostClusterBlocks}); ++blocks) {
      const int64_t at_once = clusters[static_cast<size_t>(blocks)];
      if (at_once == 0) break;
      const int64_t time = pieces(tiles, at_once) * (pieces(steps, blocks) + fixed) + fixed * (blocks - 1) / 4;
      if (blocks == 1 || time < least) best = blocks, least = time;
    }
    return best;
  }
};

}  // namespace sluice::cuda
