// Grouped GEMM: matmuls of experts, or of one matrix, with many rows and with weights and inputs of one type, on
// compute capability 9.0 (sm_90a): 8-bit floats with a scale per row of each, or 16 bits. Bound by the rate of the
// tensor cores, and by memory traffic where experts have fewer than some hundred rows. Each result is one chain of sums
// over k. Measured on one H200 in a prompt of 8000 tokens: the two matmuls of 128 bf16 experts, [1536, 2048] and [2048,
// 768], with 500 rows each take 1057 us, 586 TFLOP/s.
//
// A tile is 128 outputs of up to 256 rows of an expert: out^T = weight * x^T. Blocks stay and take tiles in turn, in
// the order of the experts. Those of one matrix go through its outputs once per kBand tiles of rows. With few rows per
// expert, tiles of 128 rows leave room for more stages. Two blocks form a
// cluster and take neighbouring outputs of the same rows. One thread of a block copies weights and inputs, 128 bytes
// per row, as TMA tiles into stages of shared memory; the blocks of a cluster copy half of the inputs each, to both
// (multicast). It goes on to the next tile while two warp groups, which multiply 64 outputs each, write the results of
// the last one.
#include <algorithm>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/chain_results.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/tile_stages.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/rows.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

constexpr int kGroupThreads = 128, kConsumers = 2;            // warp groups that multiply
constexpr int kThreads = kConsumers * kGroupThreads + kWarp;  // the last warp copies
constexpr int kCluster = 2;                                   // blocks that share inputs
constexpr int kBand = 8;                                      // tiles of rows that share weights in the L2 cache
constexpr int kUnit = 64;                                     // rows of a tile whose inputs are copied together
constexpr int kChunk = 128;                                   // bytes of a row in a stage
constexpr uint32_t kWeightBytes = kTileOutputs * kChunk, kUnitBytes = kUnit * kChunk;

template <class T>
inline constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

// How results are written: as fp32, as bf16, or added to what is there.
enum class Writes { kFloat, kBFloat16, kAdded };

struct GroupedParams {
  ChainResults results;
  const float *weight_scales, *x_scales;  // for 8-bit floats
  const int32_t* starts;                  // null: one matrix with all rows
  int matrices;
  int64_t weight_rows;  // from a matrix to the next one
  int rows, chunks;
  int pairs;  // of blocks of outputs
};

// A stage is a chunk of the weights, then the units of the inputs.
template <int rows>
struct Stages : TileStages<rows == 256 ? 4 : 6, kWeightBytes + rows * kChunk, rows> {
  __device__ uint32_t weights(int i) const { return this->stage(i); }
  __device__ uint32_t inputs(int i) const { return this->stage(i) + kWeightBytes; }
};

// What the blocks of a cluster do next: a tile of rows and 256 outputs, of which each block has half.
class Work {
 public:
  __device__ Work(const GroupedParams& p, int rows)
      : tiles_(p.starts, p.matrices, p.rows, rows),
        band_(p.starts == nullptr ? kBand : 1),
        pairs_(p.pairs),
        next_(static_cast<int>(blockIdx.x) / kCluster),
        tile_count_(tiles_.count()) {}

  // Returns false at the end. Used by whole warps.
  __device__ bool take() {
    if (next_ >= tile_count_ * pairs_) return false;
    const int first = next_ / (band_ * pairs_) * band_, in_band = min(band_, tile_count_ - first);
    const int at = next_ - first * pairs_;
    tile = tiles_[first + at % in_band];
    output = (at / in_band * kCluster + static_cast<int>(blockIdx.x) % kCluster) * kTileOutputs;
    units = (tile.count + kUnit - 1) / kUnit;
    next_ += static_cast<int>(gridDim.x) / kCluster;
    return true;
  }

  RowTile tile{};
  int output = 0, units = 0;

 private:
  const RowTiles tiles_;
  const int band_, pairs_;
  int next_;
  const int tile_count_;
};

template <int rows>
__device__ void produce(const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs,
                        const Stages<rows>& shared) {
  constexpr int kStages = Stages<rows>::kStages;
  const uint64_t policy = l2_evict_normal();
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  uint32_t step = 0;
  for (Work work(p, rows); work.take(); step += p.chunks) {
    if (threadIdx.x % kWarp != 0) continue;
    const auto row = static_cast<int>(work.tile.matrix * p.weight_rows + work.output);
    for (int i = 0; i < p.chunks; ++i) {
      const auto stage = static_cast<int>((step + i) % kStages);
      wait_barrier(shared.empty(stage), static_cast<int>((step + i) / kStages % 2 ^ 1));
      arrive_expecting(shared.full(stage), kWeightBytes + work.units * kUnitBytes);
      copy_tma_tile(shared.weights(stage), weights, i * kChunk, row, shared.full(stage), policy);
      for (int unit = rank; unit < work.units; unit += kCluster) {
        multicast_tma_tile(shared.inputs(stage) + unit * kUnitBytes, inputs, i * kChunk, work.tile.row + unit * kUnit,
                           shared.full(stage), policy, (1 << kCluster) - 1);
      }
    }
  }
}

// Multiplies a tile of up to n rows and writes the results. `step` counts the stages that were used before.
template <class T, int n, int rows, Writes writes>
__device__ void multiply(const GroupedParams& p, const Work& work, const Stages<rows>& shared, int consumer,
                         uint32_t step) {
  constexpr int kStages = Stages<rows>::kStages;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto release = [&](uint32_t used) {
    if (lane < kCluster) arrive_at_block(lane, shared.empty(static_cast<int>(used % kStages)));
  };
  float sums[n / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int i = 0; i < p.chunks; ++i) {
    const auto stage = static_cast<int>((step + i) % kStages);
    wait_barrier(shared.full(stage), static_cast<int>((step + i) / kStages % 2));
    wgmma_arrive();
#pragma unroll
    for (int part = 0; part < kChunk / 32; ++part) {
      Wgmma<T, n>::from_shared(sums, matrix(shared.weights(stage) + consumer * 64 * kChunk + part * 32),
                               matrix(shared.inputs(stage) + part * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) release(step + i - 1);
  }
  wgmma_wait<0>();
  release(step + p.chunks - 1);
  wgmma_fence_operands(sums);
  // With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + j] of lane l of warp w is output 16 w + g + 8 h of row
  // 8 i + 2 t + j: eight lanes write 32 bytes of a row.
  const int warp = static_cast<int>(threadIdx.x) / kWarp % 4, t = lane % 4;
  const int first = work.output + consumer * 64 + warp * 16 + lane / 4;
  float scales[2], bias[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int output = first + 8 * h;
    scales[h] = kScaled<T> && output < p.results.n ? p.weight_scales[work.tile.matrix * p.weight_rows + output] : 1.0f;
    bias[h] = p.results.bias_of(output, work.tile.matrix);
  }
  // Calls write(row, output, sum, bias) for the results of eight rows.
  const auto eight_rows = [&](int i, const auto& write) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 8 * i + 2 * t + j;
      if (row >= work.tile.count) continue;
      const float scale = kScaled<T> ? p.x_scales[work.tile.row + row] : 1.0f;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = sums[4 * i + 2 * h + j];
        write(work.tile.row + row, first + 8 * h, kScaled<T> ? sum * scales[h] * scale : sum, bias[h]);
      }
    }
  };
  if constexpr (writes == Writes::kAdded) {
#pragma unroll
    for (int i = 0; i < n / 8; ++i) {
      float added[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = 8 * i + 2 * t + k % 2, h = k / 2;
        added[k] = row < work.tile.count ? p.results.old(work.tile.row + row, first + 8 * h) : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = 8 * i + 2 * t + k % 2, h = k / 2;
        if (row < work.tile.count) {
          p.results.put_float(work.tile.row + row, first + 8 * h, __fadd_rn(sums[4 * i + k], bias[h]), added[k]);
        }
      }
    }
  } else if constexpr (writes == Writes::kBFloat16) {
#pragma unroll
    for (int i = 0; i < n / 8; ++i) {
      eight_rows(i,
                 [&](int row, int output, float sum, float b) { p.results.put_bf16(row, output, __fadd_rn(sum, b)); });
    }
  } else {
#pragma unroll
    for (int i = 0; i < n / 8; ++i) {
      eight_rows(i, [&](int row, int output, float sum, float b) { p.results.put_float(row, output, sum + b, 0.0f); });
    }
  }
}

template <class T, int rows, Writes writes>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_grouped(const __grid_constant__ GroupedParams p, const __grid_constant__ CUtensorMap weights,
                   const __grid_constant__ CUtensorMap inputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  constexpr int kStages = Stages<rows>::kStages;
  const Stages<rows> shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), kCluster * kConsumers * kGroupThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    prefetch_map(weights), prefetch_map(inputs);
  }
  sync_cluster();
  wait_for_earlier();
  const int consumer = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (consumer == kConsumers) {
    produce(p, weights, inputs, shared);
  } else {
    uint32_t step = 0;
    for (Work work(p, rows); work.take(); step += p.chunks) {
      if (work.units == 1) multiply<T, kUnit, rows, writes>(p, work, shared, consumer, step);
      if (work.units == 2) multiply<T, 2 * kUnit, rows, writes>(p, work, shared, consumer, step);
      if constexpr (rows > 2 * kUnit) {
        if (work.units == 3) multiply<T, 3 * kUnit, rows, writes>(p, work, shared, consumer, step);
        if (work.units == 4) multiply<T, 4 * kUnit, rows, writes>(p, work, shared, consumer, step);
      }
    }
  }
  sync_cluster();  // a block's barriers and stages stay until the other one needs them no more
#endif
}

// The clusters that the device runs at once.
template <class T, int rows, Writes writes>
int most_clusters(const Launch& l) {
  constexpr int kBytes = static_cast<int>(Stages<rows>::kBytes);
  static SharedMemoryLimit limit;
  limit.raise(l.device, matmul_grouped<T, rows, writes>, kBytes);
  static PerDevice<int> clusters;
  return std::max(1, clusters.get(l.device, [] {
    return ClusterCapacity(matmul_grouped<T, rows, writes>, kThreads, kBytes).clusters[kCluster];
  }));
}

int64_t work_of(const GroupedParams& p, int rows) {
  return int64_t{most_row_tiles(p.starts != nullptr, p.matrices, p.rows, rows)} * p.pairs;
}

template <class T, int rows, Writes writes>
void launch_tiles(const Launch& l, const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs) {
  const int64_t clusters = std::min<int64_t>(work_of(p, rows), most_clusters<T, rows, writes>(l));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(kCluster * clusters));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = Stages<rows>::kBytes;
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = l.pdl ? 2 : 1;
  check_cuda(cudaLaunchKernelEx(&config, matmul_grouped<T, rows, writes>, p, weights, inputs), "grouped matmul");
}

// Whether tiles of 128 rows take less time than tiles of 256. Experts have unequally many rows, so an average decides.
template <class T, Writes writes>
bool prefers_small_tiles(const Launch& l, const GroupedParams& p) {
  constexpr int kFew = 96;  // rows of an expert, on average
  if (p.starts != nullptr) return p.rows <= kFew * p.matrices;
  constexpr int kSmall = 9, kLarge = 16;  // the times that tiles take
  return kSmall * pieces(work_of(p, 128), most_clusters<T, 128, writes>(l)) <
         kLarge * pieces(work_of(p, 256), most_clusters<T, 256, writes>(l));
}

template <class T, Writes writes>
void launch_any(const Launch& l, const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs) {
  if (prefers_small_tiles<T, writes>(l, p)) {
    launch_tiles<T, 128, writes>(l, p, weights, inputs);
  } else {
    launch_tiles<T, 256, writes>(l, p, weights, inputs);
  }
}

template <class T>
void launch_grouped(const Launch& l, const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs) {
  if constexpr (!kScaled<T>) {
    if (p.results.accumulate) return launch_any<T, Writes::kAdded>(l, p, weights, inputs);
    if (p.results.bf16) return launch_any<T, Writes::kBFloat16>(l, p, weights, inputs);
  }
  launch_any<T, Writes::kFloat>(l, p, weights, inputs);
}

}  // namespace

bool matmul_grouped(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const bool plain = !p.accumulate && p.out.dtype == &kFloat32;
  if (p.starts == nullptr ? p.matrices != 1 || (of.type == &kFloat8E4M3 && !plain) : !plain) return false;
  const GroupedParams params{.results = chain_results(p),
                             .weight_scales = of.weight_scales,
                             .x_scales = of.x_scales,
                             .starts = p.starts,
                             .matrices = p.matrices,
                             .weight_rows = p.weight_rows,
                             .rows = static_cast<int>(p.x.rows()),
                             .chunks = static_cast<int>(of.bytes / kChunk),
                             .pairs = static_cast<int>(pieces(p.n, kCluster * kTileOutputs))};
  const int64_t weight_rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  const CUtensorMap weights = rows_map(p.weight, weight_rows, of.weight_pitch, of.bytes, kTileOutputs),
                    inputs = rows_map(of.x, p.x.rows(), of.x_pitch, of.bytes, kUnit);
  if (of.type == &kFloat8E4M3) {
    launch_grouped<__nv_fp8_e4m3>(l, params, weights, inputs);
  } else if (of.type == &kBFloat16) {
    launch_grouped<__nv_bfloat16>(l, params, weights, inputs);
  } else {
    launch_grouped<__half>(l, params, weights, inputs);
  }
  return true;
}
#else
bool matmul_grouped(const Launch&, const MatmulProblem&, const RowOperands&) { return false; }
#endif

}  // namespace sluice::cuda
