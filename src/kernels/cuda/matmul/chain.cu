// Matmuls whose results are one chain of sums each (chain.h): a wgmma accumulator runs over all of k, 16 inputs at a
// time and in order. The bits of a result do not depend on how many rows and outputs an instruction takes, so kernels
// may choose their tiles by the number of rows, but may not cut k. Few rows are multiplied here; many rows by
// grouped.cu, and experts by grouped.cu or rows.cu. Bound by memory traffic, and for matrices of few outputs by the
// instructions of a chain, which follow one another.
//
// A block of this file takes 64 outputs of up to 128 rows: out^T = weight * x^T. One thread copies weights and inputs
// as TMA tiles; a warp group multiplies. Stages are large, because about 70 ns pass from one to the next beside the
// 26 ns that an instruction takes (fitted to measurements on one H200). The blocks of a cluster have the same rows.
// Each copies a part of the inputs to all of them (multicast), because the L2 cache gives little more bytes per second
// than the memory. As k is not cut, a small matrix has fewer blocks than the device has SMs. Each block then has twice
// as much room for stages. Measured on one H200: 28672 x 4096 takes 59 us with one row and 61 us with 32, and 4096 x
// 14336 31 and 36 us.
#include "kernels/cuda/matmul/chain.h"

#include <algorithm>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/chain_results.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/rows.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

constexpr int kGroupThreads = 128, kThreads = kGroupThreads + kWarp;  // the last warp copies
constexpr int kChunk = 128;                                           // bytes of a row that are copied together
constexpr int kOutputs = 64, kMostRows = 128;                         // of a block
constexpr uint32_t kWeightBytes = kOutputs * kChunk;
constexpr int kMostTogether = 2;  // blocks of an SM

struct ChainParams {
  ChainResults results;
  int rows, chunks;
  int part, boxes;  // the rows that a block of a cluster copies, and how many blocks copy some
};

// The most rows of a block, the chunks of a stage, and the blocks that an SM has room for.
template <int rows_, int depth_, int together_>
struct Tile {
  static constexpr int rows = rows_, depth = depth_, together = together_;
};

// The blocks of the cluster.
__device__ inline int cluster_blocks() {
  int blocks;
  asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(blocks));
  return blocks;
}

// A stage is some chunks of the weights, then as many of the inputs. Chunks behind the last are zeros.
template <class Tile>
struct Stages {
  static constexpr int kDepth = Tile::depth;
  static constexpr uint32_t kInputBytes = Tile::rows * kChunk, kStageBytes = kDepth * (kWeightBytes + kInputBytes);
  static constexpr int kCount = (200 << 10) / Tile::together / static_cast<int>(kStageBytes);
  static constexpr int kBytes = kCount * static_cast<int>(kStageBytes + 2 * 8);
  uint32_t base;  // a multiple of 1024

  __device__ uint32_t weights(int i, int chunk) const { return base + i * kStageBytes + chunk * kWeightBytes; }
  __device__ uint32_t inputs(int i, int chunk) const { return weights(i, kDepth) + chunk * kInputBytes; }
  __device__ uint32_t full(int i) const { return base + kCount * kStageBytes + i * 2 * 8; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
};

// The first weights are copied before the kernel in front has written the inputs (PDL). A step took longer when
// further ones were prefetched to L2.
template <class Tile>
__device__ void produce(const ChainParams& p, const CUtensorMap& weights, const CUtensorMap& inputs, int output,
                        const Stages<Tile>& shared) {
  using Shared = Stages<Tile>;
  constexpr int kCount = Shared::kCount, kDepth = Shared::kDepth;
  if (threadIdx.x % kWarp != 0) return wait_for_earlier();
  const int blocks = cluster_blocks(), rank = static_cast<int>(blockIdx.y) % blocks, first = rank * p.part;
  const uint64_t often = l2_evict_normal(), once = l2_evict_first();
  const auto copy_weights = [&](int i) {
    const int stage = i % kCount;
    arrive_expecting(shared.full(stage), kDepth * (kWeightBytes + p.boxes * p.part * kChunk));
#pragma unroll
    for (int c = 0; c < kDepth; ++c) {
      copy_tma_tile(shared.weights(stage, c), weights, (i * kDepth + c) * kChunk, output, shared.full(stage), once);
    }
  };
  const auto copy_inputs = [&](int i) {
    const int stage = i % kCount;
    if (rank >= p.boxes) return;
#pragma unroll
    for (int c = 0; c < kDepth; ++c) {
      const uint32_t to = shared.inputs(stage, c) + first * kChunk;
      const int at = (i * kDepth + c) * kChunk;
      if (blocks == 1) {
        copy_tma_tile(to, inputs, at, 0, shared.full(stage), often);
      } else {
        multicast_tma_tile(to, inputs, at, first, shared.full(stage), often, (1 << blocks) - 1);
      }
    }
  };
  const int all = (p.chunks + kDepth - 1) / kDepth, early = min(all, kCount);
  for (int i = 0; i < early; ++i) copy_weights(i);
  wait_for_earlier();
  for (int i = 0; i < all; ++i) {
    if (i >= early) {
      wait_barrier(shared.empty(i % kCount), i / kCount % 2 ^ 1);
      copy_weights(i);
    }
    copy_inputs(i);
  }
}

template <class T, class Tile>
__device__ void consume(const ChainParams& p, int output, const Stages<Tile>& shared) {
  using Shared = Stages<Tile>;
  constexpr int kCount = Shared::kCount, kDepth = Shared::kDepth, rows = Tile::rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int blocks = cluster_blocks();
  // With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + j] of lane l of warp w is output 16 w + g + 8 h of row
  // 8 i + 2 t + j.
  const int first = output + warp * 16 + lane / 4, count = p.rows;
  const auto row_of = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
  const auto output_of = [&](int i) { return first + 8 * (i / 2 % 2); };
  const float bias[2] = {p.results.bias_of(first), p.results.bias_of(first + 8)};
  float sums[rows / 2], old[rows / 2];
  wait_for_earlier();
#pragma unroll
  for (int i = 0; i < rows / 2; ++i) {
    sums[i] = 0.0f;
    old[i] = row_of(i) < count ? p.results.old(row_of(i), output_of(i)) : 0.0f;
  }
  const int all = (p.chunks + kDepth - 1) / kDepth;
  for (int i = 0; i < all; ++i) {
    const int stage = i % kCount;
    wait_barrier(shared.full(stage), i / kCount % 2);
    wgmma_arrive();
#pragma unroll
    for (int part = 0; part < kDepth * kChunk / 32; ++part) {
      const int c = part / (kChunk / 32), at = part % (kChunk / 32) * 32;
      Wgmma<T, rows>::from_shared(sums, matrix(shared.weights(stage, c) + at), matrix(shared.inputs(stage, c) + at), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && lane < blocks) arrive_at_block(lane, shared.empty((i - 1) % kCount));
  }
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
#pragma unroll
  for (int i = 0; i < rows / 2; ++i) {
    if (row_of(i) < count) p.results.put(row_of(i), output_of(i), __fadd_rn(sums[i], bias[i / 2 % 2]), old[i]);
  }
}

// Grid: (1, tiles of outputs), in clusters.
template <class T, class Tile>
__global__ void __launch_bounds__(kThreads, Tile::together)
    matmul_chain(const __grid_constant__ ChainParams p, const __grid_constant__ CUtensorMap weights,
                 const __grid_constant__ CUtensorMap inputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  const Stages<Tile> shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Stages<Tile>::kCount; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), cluster_blocks() * kGroupThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  sync_cluster();
  const int output = static_cast<int>(blockIdx.y) * kOutputs;
  if (threadIdx.x >= kGroupThreads) {
    produce(p, weights, inputs, output, shared);
  } else {
    consume<T>(p, output, shared);
  }
  sync_cluster();  // barriers and stages stay until no block needs them any more
#endif
}

// The blocks of a cluster: as many as share enough inputs, unless the device then runs fewer blocks at once.
int cluster_of(const ClusterCapacity& capacity, int64_t tiles, int rows, int most) {
  const int64_t wanted = std::min<int64_t>(tiles, capacity.clusters[1] * 9 / 10);
  for (int blocks = std::min(most, rows / 8); blocks > 1; blocks /= 2) {
    if (int64_t{capacity.clusters[static_cast<size_t>(blocks)]} * blocks >= wanted) return blocks;
  }
  return 1;
}

template <class T, class Tile>
void launch_chain(const Launch& l, const MatmulProblem& p, const RowOperands& of, int64_t tiles) {
  constexpr int kBytes = Stages<Tile>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, matmul_chain<T, Tile>, kBytes);
  static PerDevice<ClusterCapacity> capacities;
  const ClusterCapacity& capacity =
      capacities.get(l.device, [] { return ClusterCapacity(matmul_chain<T, Tile>, kThreads, kBytes); });
  const int blocks = cluster_of(capacity, tiles, Tile::rows, Tile::together > 1 ? 4 : 2),
            rows = static_cast<int>(p.x.rows());
  // Parts are whole groups of eight rows, as rows are swizzled in such.
  const int part = blocks > 1 ? static_cast<int>(pieces(pieces(rows, blocks), 8)) * 8 : rows;
  const ChainParams params{.results = chain_results(p),
                           .rows = rows,
                           .chunks = static_cast<int>(of.bytes / kChunk),
                           .part = part,
                           .boxes = static_cast<int>(pieces(rows, part))};
  const CUtensorMap weights = rows_map(p.weight, p.n, of.weight_pitch, of.bytes, kOutputs),
                    inputs = rows_map(of.x, rows, of.x_pitch, of.bytes, static_cast<unsigned>(part));
  launch_clusters(l, "matmul by chains", matmul_chain<T, Tile>,
                  {.blocks = dim3(1, static_cast<unsigned>(pieces(tiles, blocks) * blocks)),
                   .cluster = dim3(1, static_cast<unsigned>(blocks)),
                   .threads = kThreads,
                   .shared = kBytes},
                  params, weights, inputs);
}

template <class T, int rows>
void launch_rows(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  constexpr int kDepth = rows <= 32 ? 4 : 2;
  const int64_t tiles = pieces(p.n, kOutputs);
  if (tiles <= l.sm_count) return launch_chain<T, Tile<rows, kDepth, 1>>(l, p, of, tiles);
  launch_chain<T, Tile<rows, kDepth / 2, kMostTogether>>(l, p, of, tiles);
}

template <class T>
void launch_type(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const int64_t rows = p.x.rows();
  if (rows <= 8) return launch_rows<T, 8>(l, p, of);
  if (rows <= 16) return launch_rows<T, 16>(l, p, of);
  if (rows <= 32) return launch_rows<T, 32>(l, p, of);
  if (rows <= 64) return launch_rows<T, 64>(l, p, of);
  launch_rows<T, kMostRows>(l, p, of);
}

// The most rows for which the kernel of this file takes less time than grouped.cu.
int64_t most_few_rows(const Launch& l, int64_t n) { return pieces(n, kOutputs) <= l.sm_count ? kMostRows : 64; }

}  // namespace

bool has_chains(const Launch& l, DType weights) {
  return l.compute_capability == 90 && (weights == &kBFloat16 || weights == &kFloat16);
}

bool matmul_by_chains(const Launch& l, const MatmulProblem& p) {
  if (!has_chains(l, p.type) || (p.matrices != 1 && p.starts == nullptr)) return false;
  if (p.starts != nullptr && !takes_rows(l, p)) return false;
  if (p.x.rows() == 0) return true;
  std::optional<RowOperands> operands = plain_operands(l, p);
  CHECK(operands,
        "matmul: {} rows of {} inputs of {} must be aligned, in whole slices of {}, or have room in {} bytes of "
        "workspace",
        p.x.rows(), p.k, p.x.dtype->name, kSliceElements, l.workspace_bytes);
  RowOperands& of = *operands;
  of.parts = 1;
  if (p.starts != nullptr) {
    matmul_rows(l, p, of);
    return true;
  }
  const int64_t rows = p.x.rows();
  if (rows > most_few_rows(l, p.n) && matmul_grouped(l, p, of)) return true;
  for (int64_t first = 0; first < rows; first += kMostRows) {
    MatmulProblem part = p;
    part.x = p.x.slice_rows(first, std::min<int64_t>(kMostRows, rows - first));
    part.out = p.out.slice_rows(first, part.x.rows());
    if (p.type == &kBFloat16) {
      launch_type<__nv_bfloat16>(l, part, of);
    } else {
      launch_type<__half>(l, part, of);
    }
    of.x += kMostRows * of.x_pitch;
  }
  return true;
}
#else
bool has_chains(const Launch&, DType) { return false; }
bool matmul_by_chains(const Launch&, const MatmulProblem&) { return false; }
#endif

}  // namespace sluice::cuda
