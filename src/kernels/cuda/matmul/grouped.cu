// Grouped GEMM: matmuls of experts, or of one matrix, with many rows and with weights and inputs of one type, on
// compute capability 9.0 (sm_90a): 8-bit floats with a scale per row of each, or 16 bits. Bound by the rate of the
// tensor cores, and by memory traffic where experts have fewer than some hundred rows. Each result is one chain of sums
// over k. Measured on one H200 (bench/results/2026-11-cuda-kernels.md): 128 experts [1536, 2048] with 512 rows each
// take 927 us in bf16 and 669 us in 8-bit floats, with the rounding of their inputs.
//
// A tile is 128 outputs of up to 256 rows of an expert: out^T = weight * x^T. Blocks stay and take tiles in turn, in
// the order of the experts. Those of one matrix go through its outputs once per kBand tiles of rows. With few rows per
// expert, tiles of 128 rows leave room for more stages. Two blocks form a cluster and take neighbouring outputs of the
// same rows. One thread of a block copies weights and inputs, 128 bytes per row, as TMA tiles into stages of shared
// memory; the blocks of a cluster copy half of the inputs each, to both (multicast). It goes on to the next tile while
// two warp groups, which multiply 64 outputs each, write the results of the last one (device/tile_results.cuh).
//
// The weights of gated units come as turns of eight gates and the eight outputs of up that belong to them (a tensor map
// of five dimensions). Both sums of a unit then lie in one lane, which writes their product.
#include <algorithm>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/chain_results.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/tile_results.cuh"
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

constexpr int kGroupThreads = 128, kConsumers = 2;          // warp groups that multiply
constexpr int kThreads = (kConsumers + 1) * kGroupThreads;  // a warp of the last group copies
constexpr int kCluster = 2;                                 // blocks that share inputs
constexpr int kBand = 8;                                    // tiles of rows that share weights in the L2 cache
constexpr int kUnit = 64;                                   // rows of a tile whose inputs are copied together
constexpr int kChunk = 128;                                 // bytes of a row in a stage
constexpr uint32_t kWeightBytes = kTileOutputs * kChunk, kUnitBytes = kUnit * kChunk;

template <class T>
inline constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

// How results are written: as fp32, as bf16, or as the products of gated units in the type of the inputs.
enum class Writes { kFloat, kBFloat16, kGated };
template <class T, Writes writes>
using Results = TileResults<
    std::conditional_t<writes == Writes::kFloat, float, std::conditional_t<writes == Writes::kGated, T, __nv_bfloat16>>,
    writes == Writes::kGated ? 32 : 64>;
constexpr int kTurn = 8;  // outputs of the gate, and of up

// Copies a TMA tile of gated units.
__device__ inline void copy_gated_tile(uint32_t to, const CUtensorMap& map, int k, int unit, int matrix,
                                       uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(k), "r"(0), "r"(unit), "r"(matrix), "r"(barrier), "l"(policy)
      : "memory");
}

struct GroupedParams {
  ChainResults results;
  const float *weight_scales, *x_scales;  // for 8-bit floats
  const int32_t* starts;                  // null: one matrix with all rows
  int matrices;
  int64_t weight_rows;  // from a matrix to the next one
  int rows, chunks;
  int pairs;  // of blocks of outputs
};

// A stage is a chunk of the weights, then the units of the inputs. Behind the stages each consumer has its results.
template <int rows>
struct Stages : TileStages<rows == 256 ? 4 : 6, kWeightBytes + rows * kChunk, rows> {
  using Base = TileStages<rows == 256 ? 4 : 6, kWeightBytes + rows * kChunk, rows>;
  static constexpr uint32_t kResults = (Base::kBytes + 1023) / 1024 * 1024;  // where they begin
  static constexpr uint32_t kBytes = kResults + kConsumers * TileResults<float, 64>::kBytes;
  static_assert(kBytes <= 227 << 10);
  __device__ uint32_t results(int consumer) const {
    return this->base + kResults + consumer * TileResults<float, 64>::kBytes;
  }
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

template <int rows, bool gated>
__device__ void produce(const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs,
                        const Stages<rows>& shared) {
  constexpr int kStages = Stages<rows>::kStages;
  // Where tiles are small, most experts have one, so that their weights are read once. Large tiles read them again.
  const bool once = rows < 256 && p.starts != nullptr;
  const uint64_t often = l2_evict_normal(), of_weights = once ? l2_evict_first() : often;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  uint32_t step = 0;
  for (Work work(p, rows); work.take(); step += p.chunks) {
    if (threadIdx.x % kWarp != 0) continue;
    const auto row = static_cast<int>(work.tile.matrix * p.weight_rows + work.output);
    for (int i = 0; i < p.chunks; ++i) {
      const auto stage = static_cast<int>((step + i) % kStages);
      wait_barrier(shared.empty(stage), static_cast<int>((step + i) / kStages % 2 ^ 1));
      arrive_expecting(shared.full(stage), kWeightBytes + work.units * kUnitBytes);
      if constexpr (gated) {
        copy_gated_tile(shared.weights(stage), weights, i * kChunk, work.output / 2 / kTurn, work.tile.matrix,
                        shared.full(stage), of_weights);
      } else {
        copy_tma_tile(shared.weights(stage), weights, i * kChunk, row, shared.full(stage), of_weights);
      }
      for (int unit = rank; unit < work.units; unit += kCluster) {
        multicast_tma_tile(shared.inputs(stage) + unit * kUnitBytes, inputs, i * kChunk, work.tile.row + unit * kUnit,
                           shared.full(stage), often, (1 << kCluster) - 1);
      }
    }
  }
}

// Multiplies a tile of up to n rows and writes the results. `step` counts the stages that were used before.
template <class T, int n, int rows, Writes writes>
__device__ void multiply(const GroupedParams& p, const Work& work, const Stages<rows>& shared, int consumer,
                         uint32_t step, Results<T, writes>& results) {
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
  constexpr int kOutputs = writes == Writes::kGated ? 32 : 64;  // results of a row
  const ResultTile tile{.matrix = work.tile.matrix,
                        .output = work.output * kOutputs / 64 + consumer * kOutputs,
                        .row = work.tile.row,
                        .count = work.tile.count};
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp;
  if constexpr (writes == Writes::kGated) {
    const int output = tile.output + warp * kTurn + lane / 4;
    const float gate_bias = p.results.bias_of(output, tile.matrix),
                up_bias = p.results.bias_of(output, tile.matrix, p.results.n);
    results.write_products(sums, tile,
                           [&](float gate, float up) { return silu_product(gate + gate_bias, up + up_bias); });
  } else if constexpr (kScaled<T>) {
    const int output = tile.output + warp * 16 + lane / 4;
    float scales[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scales[h] = output + 8 * h < p.results.n ? p.weight_scales[tile.matrix * p.weight_rows + output + 8 * h] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < n / 2; ++i) sums[i] *= scales[i / 2 % 2];
    results.write(sums, tile, [&](int row) { return row < tile.count ? p.x_scales[tile.row + row] : 0.0f; });
  } else {
    results.write(sums, tile, [](int) { return 1.0f; });
  }
}

template <class T, int rows, Writes writes>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_grouped(const __grid_constant__ GroupedParams p, const __grid_constant__ CUtensorMap weights,
                   const __grid_constant__ CUtensorMap inputs, const __grid_constant__ CUtensorMap outputs) {
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
    fewer_registers<40>();
    if (threadIdx.x % kGroupThreads < kWarp) produce<rows, writes == Writes::kGated>(p, weights, inputs, shared);
  } else {
    more_registers<232>();
    uint32_t step = 0;
    Results<T, writes> results(shared.results(consumer), 1 + consumer, p.results, outputs, p.starts == nullptr);
    for (Work work(p, rows); work.take(); step += p.chunks) {
      if (work.units == 1) multiply<T, kUnit, rows, writes>(p, work, shared, consumer, step, results);
      if (work.units == 2) multiply<T, 2 * kUnit, rows, writes>(p, work, shared, consumer, step, results);
      if constexpr (rows > 2 * kUnit) {
        if (work.units == 3) multiply<T, 3 * kUnit, rows, writes>(p, work, shared, consumer, step, results);
        if (work.units == 4) multiply<T, 4 * kUnit, rows, writes>(p, work, shared, consumer, step, results);
      }
    }
    results.finish();
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
  launch_clusters(l, "grouped matmul", matmul_grouped<T, rows, writes>,
                  {.blocks = dim3(static_cast<unsigned>(kCluster * clusters)),
                   .cluster = dim3(kCluster),
                   .threads = kThreads,
                   .shared = Stages<rows>::kBytes},
                  p, weights, inputs, Results<T, writes>::map(p.results, p.rows));
}

// Whether tiles of 128 rows take less time than tiles of 256. Experts have unequally many rows, so an average decides.
template <class T, Writes writes>
bool prefers_small_tiles(const Launch& l, const GroupedParams& p) {
  constexpr int kFew = 96;  // rows of an expert, on average
  if (p.starts != nullptr) return p.rows <= kFew * p.matrices;
  constexpr int kSmall = 2, kLarge = 3;  // the times that tiles take
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

// Returns false if the results cannot be written so.
template <class T, Writes writes>
bool launch_if(const Launch& l, const GroupedParams& p, const CUtensorMap& weights, const CUtensorMap& inputs) {
  if (!Results<T, writes>::takes(p.results)) return false;
  launch_any<T, writes>(l, p, weights, inputs);
  return true;
}

GroupedParams params_of(const MatmulProblem& p, const RowOperands& of, const ChainResults& results) {
  return {.results = results,
          .weight_scales = of.weight_scales,
          .x_scales = of.x_scales,
          .starts = p.starts,
          .matrices = p.matrices,
          .weight_rows = p.weight_rows,
          .rows = static_cast<int>(p.x.rows()),
          .chunks = static_cast<int>(of.bytes / kChunk),
          .pairs = static_cast<int>(pieces(p.n, kCluster * kTileOutputs))};
}

CUtensorMap inputs_map(const MatmulProblem& p, const RowOperands& of) {
  return rows_map(of.x, p.x.rows(), of.x_pitch, of.bytes, kUnit);
}

}  // namespace

bool matmul_grouped(const Launch& l, const MatmulProblem& p, const RowOperands& of) {
  const bool adds = p.starts == nullptr && of.type != &kFloat8E4M3;  // whether results can be added
  if ((p.starts == nullptr && p.matrices != 1) || (p.accumulate && !adds) ||
      (p.out.dtype != &kFloat32 && of.type != &kBFloat16)) {
    return false;
  }
  const GroupedParams params = params_of(p, of, chain_results(p));
  const int64_t weight_rows = p.starts != nullptr ? p.matrices * p.weight_rows : p.n;
  const CUtensorMap weights = rows_map(p.weight, weight_rows, of.weight_pitch, of.bytes, kTileOutputs),
                    inputs = inputs_map(p, of);
  if (of.type == &kFloat8E4M3) return launch_if<__nv_fp8_e4m3, Writes::kFloat>(l, params, weights, inputs);
  if (of.type == &kFloat16) return launch_if<__half, Writes::kFloat>(l, params, weights, inputs);
  if (params.results.bf16) return launch_if<__nv_bfloat16, Writes::kBFloat16>(l, params, weights, inputs);
  return launch_if<__nv_bfloat16, Writes::kFloat>(l, params, weights, inputs);
}

bool matmul_gated(const Launch& l, const MatmulProblem& p) {
  const int64_t units = p.n / 2;
  const ChainResults results{.out = p.out.data,
                             .stride = p.out.row_stride,
                             .bias = p.bias,
                             .bias_step = p.bias_step,
                             .n = static_cast<int>(units),
                             .bf16 = p.type == &kBFloat16,
                             .accumulate = false};
  const bool one_or_experts = p.starts != nullptr || p.matrices == 1;
  if (!one_or_experts || p.out.dtype != p.type || p.accumulate || units % kTurn != 0 ||
      !Results<__half, Writes::kGated>::takes(results)) {
    return false;
  }
  const std::optional<RowOperands> of = plain_operands(l, p);
  if (!of) return false;
  const GroupedParams params = params_of(p, *of, results);
  // Inputs; outputs of a turn; gate and up; turns; matrices.
  const auto pitch = static_cast<cuuint64_t>(of->weight_pitch);
  const CUtensorMap weights = tensor_map<5>(
      CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight,
      {static_cast<cuuint64_t>(of->bytes), kTurn, 2, static_cast<cuuint64_t>(units / kTurn),
       static_cast<cuuint64_t>(p.matrices)},
      {pitch, units * pitch, kTurn * pitch, static_cast<cuuint64_t>(p.starts != nullptr ? p.weight_rows : p.n) * pitch},
      {kChunk, kTurn, 2, kTileOutputs / 2 / kTurn, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
  const CUtensorMap inputs = inputs_map(p, *of);
  if (p.type == &kFloat16) {
    launch_any<__half, Writes::kGated>(l, params, weights, inputs);
  } else {
    launch_any<__nv_bfloat16, Writes::kGated>(l, params, weights, inputs);
  }
  return true;
}
#else
bool matmul_gated(const Launch&, const MatmulProblem&) { return false; }
bool matmul_grouped(const Launch&, const MatmulProblem&, const RowOperands&) { return false; }
#endif

}  // namespace sluice::cuda
