// Thread block clusters (compute capability 9.0): launching them, and how many blocks share a tile or its inputs.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

inline constexpr int kMostClusterBlocks = 8;  // supported by every device

struct ClusterGrid {
  dim3 blocks, cluster;  // the blocks of the grid are whole clusters
  unsigned threads = 0;
  size_t shared = 0;  // bytes
};

// Launches a kernel that begins as device/pdl.cuh describes. Devices without clusters take clusters of one block.
template <class... Parameters>
void launch_clusters(const Launch& l, const char* name, void (*kernel)(Parameters...), const ClusterGrid& grid,
                     const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {grid.cluster.x, grid.cluster.y, grid.cluster.z};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  const bool clusters = l.compute_capability >= 90;
  CHECK(clusters || grid.cluster.x * grid.cluster.y * grid.cluster.z == 1, "{}: no clusters on this device", name);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared;
  config.stream = l.stream;
  config.attrs = clusters ? attributes : attributes + 1;
  config.numAttrs = (clusters ? 1 : 0) + (l.pdl ? 1 : 0);
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

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
