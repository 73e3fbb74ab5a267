// What kernels of matmul/rows.cu and matmul/lora_rows.cu share: a block that multiplies up to 128 rows by 128 outputs,
// which rows.cu describes.
#pragma once

#include <type_traits>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/rows_out.cuh"
#include "kernels/cuda/device/tile_stages.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/matmul/rows.h"

namespace sluice::cuda::row_matmul {

inline constexpr int kGroupThreads = 128;  // threads of a warp group
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kGroupThreads;
inline constexpr int kOutputs = kConsumers * 64;  // of a block
static_assert(kOutputs == kTileOutputs);
inline constexpr int kChunk = 128;  // bytes of a row that are copied together

template <class T>
inline constexpr bool kScaled = std::is_same_v<T, __nv_fp8_e4m3>;

struct RowsParams {
  const float* weight_scales;  // for 8-bit floats, as x_scales is
  const float* bias;           // or null
  int64_t bias_step;           // from a matrix to the next one
  const std::byte* x;
  int64_t x_pitch;  // in bytes
  const float* x_scales;
  const int32_t* starts;  // where the rows of each matrix begin, or null
  int matrices;
  int64_t weight_rows;  // from a matrix to the next one
  int n, rows, chunks;
  bool accumulate;
};

// A stage is a chunk of the weights, then one of the inputs.
inline constexpr uint32_t kWeightBytes = kOutputs * kChunk;
constexpr int stages_of(int rows) { return rows > 64 ? 6 : rows > 32 ? 4 : 5; }

template <int rows>
struct RowsLayout : TileStages<stages_of(rows), kWeightBytes + rows * kChunk, rows> {
  static constexpr int kTogether = rows > 64 ? 1 : 2;  // blocks per SM

  __device__ uint32_t weights(int stage) const { return this->stage(stage); }
  __device__ uint32_t inputs(int stage) const { return this->stage(stage) + kWeightBytes; }
};

// Prepares the barriers of the stages, which `writers` threads fill.
template <int rows>
__device__ void init_stages(const RowsLayout<rows>& shared, int writers) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < RowsLayout<rows>::kStages; ++stage) {
      init_barrier(shared.full(stage), writers);
      init_barrier(shared.empty(stage), kConsumers * kGroupThreads / kWarp);
    }
  }
  fence_proxy_async();
  __syncthreads();
}

// Copies rows of a chunk to shared memory: a thread copies a pack of 16 bytes of every 16th row.
template <int rows>
class ChunkCopy {
 public:
  // Copies from `count` rows at `from`; the last row stands in for rows beyond.
  __device__ ChunkCopy(const std::byte* from, int64_t pitch, int count, int first_chunk)
      : to_(static_cast<uint32_t>(row() * kChunk + ((pack() ^ row()) & 7) * 16)) {
#pragma unroll
    for (int i = 0; i < rows / 16; ++i) {
      from_[i] = from + min(row() + 16 * i, count - 1) * pitch + first_chunk * kChunk + pack() * 16;
    }
  }
  // Copies only the rows that are needed.
  __device__ void copy(uint32_t matrix, int chunk, int used) const {
#pragma unroll
    for (int i = 0; i < rows / 16; ++i) {
      if (16 * i < used) copy_async(matrix + to_ + i * 16 * kChunk, from_[i] + chunk * kChunk);
    }
  }

 private:
  __device__ static int pack() { return static_cast<int>(threadIdx.x) % 8; }
  __device__ static int row() { return static_cast<int>(threadIdx.x) / 8; }

  uint32_t to_;
  const std::byte* from_[rows / 16];
};

// The producer. Weights of a single matrix are loaded before the kernel in front has written the inputs (PDL). One
// thread copies them as TMA tiles, because copies of 16 bytes cannot tell L2 to evict them first.
template <int rows>
__device__ void produce(const RowsParams& p, const CUtensorMap& weights, const Part& part, int output,
                        const RowsLayout<rows>& shared) {
  constexpr int kStages = RowsLayout<rows>::kStages;
  const int early = p.starts == nullptr ? min(part.count, kStages) : 0;
  const uint64_t policy = l2_evict_first();
  const auto copy_weights = [&](int64_t row, int i) {
    if (threadIdx.x != 0) return;
    const int stage = i % kStages;
    arrive_expecting(shared.full(stage), kWeightBytes);
    copy_tma_tile(shared.weights(stage), weights, (part.begin + i) * kChunk, static_cast<int>(row), shared.full(stage),
                  policy);
  };
  for (int i = 0; i < early; ++i) copy_weights(output, i);
  wait_for_earlier();
  const RowTile tile = find_row_tile(p.starts, p.matrices, p.rows, static_cast<int>(blockIdx.z), rows);
  if (tile.count == 0) return;
  const int64_t row = tile.matrix * p.weight_rows + output;
  const ChunkCopy<rows> inputs(p.x + tile.row * p.x_pitch, p.x_pitch, tile.count, part.begin);
  for (int i = 0; i < part.count; ++i) {
    const int stage = i % kStages;
    if (i >= early) {
      wait_barrier(shared.empty(stage), i / kStages % 2 ^ 1);
      copy_weights(row, i);
    }
    inputs.copy(shared.inputs(stage), i, tile.count);
    arrive_after_copies(shared.full(stage));
  }
}

// With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + j] of lane l of warp w belongs to output 16 w + g + 8 h of the
// consumer's 64 and row 8 i + 2 t + j.
template <class T, int rows>
__device__ void consume(int count, const RowsLayout<rows>& shared, int consumer, float (&sums)[rows / 2]) {
  constexpr int kStages = RowsLayout<rows>::kStages;
  const bool first_lane = threadIdx.x % kWarp == 0;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int i = 0; i < count; ++i) {
    const int stage = i % kStages;
    wait_barrier(shared.full(stage), i / kStages % 2);
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kChunk / 32; ++step) {
      Wgmma<T, rows>::from_shared(sums, matrix(shared.weights(stage) + consumer * 64 * kChunk + step * 32),
                                  matrix(shared.inputs(stage) + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && first_lane) arrive(shared.empty((i - 1) % kStages));
  }
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
}

// Puts the sums of a consumer where the blocks of the cluster find them, in place of the stages.
template <int rows>
__device__ void share(const RowsLayout<rows>& shared, int consumer, const float (&sums)[rows / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, t = thread % 4;
  const int output = consumer * 64 + thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
  for (int i = 0; i < rows / 2; ++i) {
    store_shared(shared.sums().at(i / 4 * 8 + 2 * t + i % 2, output + i / 2 % 2 * 8), sums[i]);
  }
}

// Adds up the sums of the cluster and writes them. Rows are dealt out to the cluster's warps; a lane has four outputs.
// Whatever does not depend on the sums is loaded before all of them are there.
template <class T, int rows, class Out>
__device__ void write(const RowsParams& p, const RowTile& tile, int first_output, const RowsLayout<rows>& shared,
                      const RowsOut<Out>& out) {
  const int blocks = static_cast<int>(gridDim.y), block = static_cast<int>(blockIdx.y),
            step = blocks * kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int output = first_output + 4 * lane, first = block + blocks * warp;
  const int count = output < p.n ? tile.count : 0;
  float4 scales{}, bias{};
  if (count > 0) {
    if constexpr (kScaled<T>) {
      scales = *reinterpret_cast<const float4*>(p.weight_scales + tile.matrix * p.weight_rows + output);
    }
    if (p.bias != nullptr) bias = *reinterpret_cast<const float4*>(p.bias + tile.matrix * p.bias_step + output);
  }
  const auto old_of = [&](int i) {
    if constexpr (sizeof(Out) == 4) {
      if (p.accumulate && i < count) {
        return *reinterpret_cast<const float4*>(out.data + (tile.row + i) * out.stride + output);
      }
    }
    return float4{};
  };
  float4 old = old_of(first);
  sync_cluster();
  for (int i = first; i < count; i += step) {
    float4 sum = shared.sums().of_blocks(blocks, i, 4 * lane);
    const int row = tile.row + i;
    if constexpr (kScaled<T>) {
      const float scale = p.x_scales[row];
      sum = {sum.x * scales.x * scale, sum.y * scales.y * scale, sum.z * scales.z * scale, sum.w * scales.w * scale};
    }
    // The order of a grouped GEMM, whose copies add to what is there.
    sum = {sum.x + bias.x, sum.y + bias.y, sum.z + bias.z, sum.w + bias.w};
    out.put(row, output / 4, {old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w}, 1.0f);
    old = old_of(i + step);
  }
  sync_cluster();  // other blocks may still read these sums
}

inline RowsParams rows_params(const MatmulProblem& p, const RowOperands& of) {
  return {.weight_scales = of.weight_scales,
          .bias = p.bias,
          .bias_step = p.bias_step,
          .x = of.x,
          .x_pitch = of.x_pitch,
          .x_scales = of.x_scales,
          .starts = p.starts,
          .matrices = p.matrices,
          .weight_rows = p.weight_rows,
          .n = static_cast<int>(p.n),
          .rows = static_cast<int>(p.x.rows()),
          .chunks = static_cast<int>(of.bytes / kChunk),
          .accumulate = p.accumulate};
}

// The blocks of a cluster, for ClusterCapacity::best. Of few rows 8 take longer, at 4096 x 4096 11.3 us instead of 7.9.
inline constexpr int kFixedChunks = 4;
constexpr int most_blocks(int rows) { return rows > 64 ? 8 : 4; }

// A grid whose columns are clusters.
inline ClusterGrid columns_grid(dim3 blocks, size_t shared) {
  return {.blocks = blocks, .cluster = dim3(1, blocks.y), .threads = kThreads, .shared = shared};
}

}  // namespace sluice::cuda::row_matmul
