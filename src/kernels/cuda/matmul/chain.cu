// Matmuls whose results are one chain of sums each (chain.h): a wgmma accumulator runs over all of k, 16 inputs at a
// time and in order. The bits of a result do not depend on how many rows and outputs an instruction takes, so kernels
// may choose their tiles by the number of rows, but may not cut k. Few rows are bound by memory traffic and multiplied
// here; many rows, and experts, by grouped.cu.
//
// A block of this file takes 64 outputs of up to 64 rows: out^T = weight * x^T. One thread copies weights and inputs,
// 128 bytes per row, as TMA tiles; a warp group multiplies. Blocks of a cluster have the same rows. Each copies a part
// of the inputs to all of them (multicast), because the L2 cache gives little more bytes per second than the memory. As
// k is not cut, a small matrix has fewer blocks than the device has SMs. Each block then has twice as many stages.
// Measured on one H200 with the rounding of fp32 inputs: 28672 x 4096 with 32 rows takes 64 us, 3.7 TB/s of weights,
// and 4096 x 14336, which has 64 blocks, 44 us, 2.7 TB/s.
#include "kernels/cuda/matmul/chain.h"

#include <algorithm>

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
constexpr int kOutputs = 64, kChunk = 128;                            // of a block; bytes of a row in a stage
constexpr int kMostRows = 64;                                         // of a block
constexpr uint32_t kWeightBytes = kOutputs * kChunk;

struct ChainParams {
  ChainResults results;
  int rows, chunks, ahead;  // ahead: chunks of the weights that a block prefetches to L2
};

constexpr int64_t kAheadBytes = int64_t{24} << 20;  // of all blocks, half of the L2 cache

__device__ inline void prefetch_tma_tile(const CUtensorMap& map, int c0, int c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(c0), "r"(c1)
               : "memory");
}

// A block's rows, the blocks that an SM has room for, and the blocks of a cluster.
template <int rows_, int together_, int blocks_>
struct Tile {
  static constexpr int rows = rows_, together = together_, blocks = blocks_;
};

// A stage is a chunk of the weights, then one of the inputs.
template <class Tile>
struct Stages {
  static constexpr uint32_t kInputBytes = Tile::rows * kChunk, kStageBytes = kWeightBytes + kInputBytes;
  static constexpr int kCount = (200 << 10) / Tile::together / static_cast<int>(kStageBytes);
  static constexpr int kBytes = kCount * static_cast<int>(kStageBytes + 2 * 8);
  uint32_t base;  // a multiple of 1024

  __device__ uint32_t weights(int i) const { return base + i * kStageBytes; }
  __device__ uint32_t inputs(int i) const { return weights(i) + kWeightBytes; }
  __device__ uint32_t full(int i) const { return base + kCount * kStageBytes + i * 2 * 8; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
};

// The first weights are copied, and the next ones prefetched, before the kernel in front has written the inputs (PDL).
template <class Tile>
__device__ void produce(const ChainParams& p, const CUtensorMap& weights, const CUtensorMap& inputs, int row,
                        int output, const Stages<Tile>& shared) {
  constexpr int kCount = Stages<Tile>::kCount, kPart = Tile::rows / Tile::blocks;  // inputs that this block copies
  static_assert(kPart % 8 == 0);
  const int first = static_cast<int>(blockIdx.y) % Tile::blocks * kPart;
  // With several tiles of rows, other blocks read the same weights.
  const uint64_t often = l2_evict_normal(), policy = gridDim.x > 1 ? often : l2_evict_first();
  const auto copy_weights = [&](int i) {
    const int stage = i % kCount;
    arrive_expecting(shared.full(stage), Stages<Tile>::kStageBytes);
    copy_tma_tile(shared.weights(stage), weights, i * kChunk, output, shared.full(stage), policy);
  };
  const auto copy_inputs = [&](int i) {
    const int stage = i % kCount;
    const uint32_t to = shared.inputs(stage) + first * kChunk;
    if constexpr (Tile::blocks > 1) {
      multicast_tma_tile(to, inputs, i * kChunk, row + first, shared.full(stage), often, (1 << Tile::blocks) - 1);
    } else {
      copy_tma_tile(to, inputs, i * kChunk, row, shared.full(stage), often);
    }
  };
  const bool copies = threadIdx.x % kWarp == 0;
  const int early = min(p.chunks, kCount), prefetched = min(p.chunks, early + p.ahead);
  for (int i = 0; copies && i < early; ++i) copy_weights(i);
  for (int i = early; copies && i < prefetched; ++i) prefetch_tma_tile(weights, i * kChunk, output);
  wait_for_earlier();
  for (int i = 0; copies && i < p.chunks; ++i) {
    if (i >= early) {
      wait_barrier(shared.empty(i % kCount), i / kCount % 2 ^ 1);
      copy_weights(i);
    }
    copy_inputs(i);
  }
  __syncwarp();
}

template <class T, class Tile>
__device__ void consume(const ChainParams& p, int row, int output, const Stages<Tile>& shared) {
  constexpr int kCount = Stages<Tile>::kCount, rows = Tile::rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  // With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + j] of lane l of warp w is output 16 w + g + 8 h of row
  // 8 i + 2 t + j.
  const int first = output + warp * 16 + lane / 4, count = p.rows - row;
  const auto row_of = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
  const auto output_of = [&](int i) { return first + 8 * (i / 2 % 2); };
  const float bias[2] = {p.results.bias_of(first), p.results.bias_of(first + 8)};
  float sums[rows / 2], added[rows / 2];
  wait_for_earlier();
#pragma unroll
  for (int i = 0; i < rows / 2; ++i) {
    sums[i] = 0.0f;
    added[i] = row_of(i) < count ? p.results.added_to(row + row_of(i), output_of(i), bias[i / 2 % 2]) : 0.0f;
  }
  for (int i = 0; i < p.chunks; ++i) {
    const int stage = i % kCount;
    wait_barrier(shared.full(stage), i / kCount % 2);
    wgmma_arrive();
#pragma unroll
    for (int part = 0; part < kChunk / 32; ++part) {
      Wgmma<T, rows>::from_shared(sums, matrix(shared.weights(stage) + part * 32),
                                  matrix(shared.inputs(stage) + part * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && lane < Tile::blocks) arrive_at_block(lane, shared.empty((i - 1) % kCount));
  }
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
#pragma unroll
  for (int i = 0; i < rows / 2; ++i) {
    if (row_of(i) < count) p.results.put(row + row_of(i), output_of(i), sums[i], added[i]);
  }
}

// Grid: (tiles of rows, tiles of outputs), in clusters.
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
      init_barrier(shared.empty(stage), Tile::blocks * kGroupThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  sync_cluster();
  const int row = static_cast<int>(blockIdx.x) * Tile::rows, output = static_cast<int>(blockIdx.y) * kOutputs;
  if (threadIdx.x >= kGroupThreads) {
    produce(p, weights, inputs, row, output, shared);
  } else {
    consume<T>(p, row, output, shared);
  }
  if constexpr (Tile::blocks > 1) sync_cluster();  // barriers and stages stay until no block needs them any more
#endif
}

template <class T, class Tile>
void launch_chain(const Launch& l, const MatmulProblem& p, const RowOperands& of, int64_t row_tiles,
                  int64_t out_tiles) {
  constexpr int kBytes = Stages<Tile>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, matmul_chain<T, Tile>, kBytes);
  const int64_t blocks = std::min(row_tiles * out_tiles, int64_t{Tile::together} * l.sm_count);
  const ChainParams params{.results = chain_results(p),
                           .rows = static_cast<int>(p.x.rows()),
                           .chunks = static_cast<int>(of.bytes / kChunk),
                           .ahead = static_cast<int>(kAheadBytes / blocks / kWeightBytes)};
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  constexpr unsigned kBlocks = Tile::blocks;
  attributes[0].val.clusterDim = {1, kBlocks, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(row_tiles), static_cast<unsigned>(pieces(out_tiles, Tile::blocks) * Tile::blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = l.pdl ? 2 : 1;
  const CUtensorMap weights = rows_map(p.weight, p.n, of.weight_pitch, of.bytes, kOutputs),
                    inputs = rows_map(of.x, p.x.rows(), of.x_pitch, of.bytes, Tile::rows / Tile::blocks);
  check_cuda(cudaLaunchKernelEx(&config, matmul_chain<T, Tile>, params, weights, inputs), "matmul by chains");
}

template <class T, int rows>
void launch_rows(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  constexpr int kBlocks = rows >= 32 ? 4 : rows / 8;
  const int64_t row_tiles = pieces(p.x.rows(), rows), out_tiles = pieces(p.n, kOutputs);
  if (row_tiles * out_tiles <= l.sm_count) {
    return launch_chain<T, Tile<rows, 1, 1>>(l, p, of, row_tiles, out_tiles);
  }
  launch_chain<T, Tile<rows, 2, kBlocks>>(l, p, of, row_tiles, out_tiles);
}

template <class T>
void launch_type(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const int64_t rows = p.x.rows();
  if (rows <= 8) return launch_rows<T, 8>(l, p, of);
  if (rows <= 16) return launch_rows<T, 16>(l, p, of);
  if (rows <= 32) return launch_rows<T, 32>(l, p, of);
  launch_rows<T, kMostRows>(l, p, of);
}

// Whether the tiles of this file suit the problem better than those of grouped.cu.
bool takes_few(const Launch& l, const MatmulProblem& p) {
  const int64_t rows = p.x.rows(), tiles = pieces(rows, kMostRows);
  return p.starts == nullptr && (tiles == 1 || tiles * pieces(p.n, kOutputs) <= l.sm_count);
}

}  // namespace

bool has_chains(const Launch& l, DType weights) {
  return l.compute_capability == 90 && (weights == &kBFloat16 || weights == &kFloat16);
}

bool matmul_by_chains(const Launch& l, const MatmulProblem& p) {
  if (!has_chains(l, p.type) || (p.matrices != 1 && p.starts == nullptr)) return false;
  const int64_t bytes = padded_k(p.k) * 2;
  if (p.x.rows() == 0) return true;
  RowOperands of{.type = p.type,
                 .bytes = bytes,
                 .weight_pitch = bytes,
                 .x = p.x.data,
                 .x_pitch = p.x.row_stride * p.x.dtype->block_bytes};
  if (p.x.dtype != p.type) {
    round_rows(l, l.workspace, p.type, p.x, p.x_rows);
    of.x = l.workspace, of.x_pitch = bytes;
  } else {
    CHECK(padded_k(p.k) == p.k && of.x_pitch % 16 == 0 && reinterpret_cast<uintptr_t>(of.x) % 16 == 0 &&
              p.x_rows == nullptr,
          "matmul: inputs of {} must be aligned rows of a multiple of {}, but have {}", p.x.dtype->name, kSliceElements,
          p.k);
  }
  if (!takes_few(l, p)) {
    CHECK(matmul_grouped(l, p, of));
  } else if (p.type == &kBFloat16) {
    launch_type<__nv_bfloat16>(l, p, of);
  } else {
    launch_type<__half>(l, p, of);
  }
  return true;
}
#else
bool has_chains(const Launch&, DType) { return false; }
bool matmul_by_chains(const Launch&, const MatmulProblem&) { return false; }
#endif

}  // namespace sluice::cuda
