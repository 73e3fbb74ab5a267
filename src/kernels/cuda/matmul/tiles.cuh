// Matmuls of many rows with weights of any type, with one matrix or one per expert. A template over what reads the
// weights: the codecs of device/panel_codec.cuh, or PlainWeights for 16 bits. Tiles are 128 outputs by up to 256 rows:
// out^T = weight * x^T. A block of 256 threads computes one tile or its part of k. Bound by tensor-core and
// weight-decoding rates for many rows, by reading the weights for few. Measured on one H200: 128 int4_g128
// experts [1536, 2048] with 512 rows each take 1265 us, 326 TFLOP/s.
//
// Every warp reads K-slices of 64 weights of 16 outputs. Panels come from a ring in shared memory that the warp fills
// by bulk copies (panel_ring.cuh). Row-major weights, and all weights on older devices, are loaded from device memory
// into registers some slices ahead. The warp turns them into the a operand of the tensor cores. For many rows weights
// are scaled and rounded to 16 bits, once for all rows of the tile. For few rows integers and levels are used as they
// are, and the sums over inputs that share a scale are scaled.
//
// The inputs were rounded before (tile_rows.cu) and lie in operand order: a slice of all rows of a tile is contiguous.
// On compute capability 9.0 (sm_90a) bulk copies bring them into stages of shared memory, and two warp groups multiply
// 64 outputs each. Where there are few tiles, the blocks of a cluster take a part of k each. They add up their sums, in
// order, from each other's shared memory. On other devices eight warps multiply 16 outputs each by mma.sync.
//
// Rows of experts are cut into tiles on the device: block (i, j, t) finds the t-th tile of all experts from where their
// rows begin. The grid has as many tiles as there may be; blocks without a tile end at once.
#pragma once

#include <algorithm>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/tile_weights.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {

namespace tiles {

// Writes four results of a row from `output` on, or as many of them as exist.
__device__ inline void put(const Arguments& a, const RowTile& tile, int row, int output, const float4& sum) {
  float v[4] = {sum.x, sum.y, sum.z, sum.w};
  const int count = min(4, a.n - output);
  if (a.bias != nullptr) {
    const float* bias = a.bias + tile.matrix * a.bias_step + output;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] += i < count ? bias[i] : 0.0f;
  }
  float* to = a.out + int64_t{tile.row + row} * a.out_stride + output;
  if (a.quads) {
    const float4 before = a.accumulate ? *reinterpret_cast<const float4*>(to) : float4{};
    *reinterpret_cast<float4*>(to) = {v[0] + before.x, v[1] + before.y, v[2] + before.z, v[3] + before.w};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = a.accumulate ? to[i] + v[i] : v[i];
  }
}

// Stores the sums c of 16 outputs and 8 rows in shared memory, from the layout of mma (device/tensor_core.cuh). `to` is
// where the sum of the first output and row goes.
__device__ inline void store_sums(uint32_t to, const float* c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    store_shared(to + (lane % 4 * 2 + i % 2) * kSumPitch + (lane / 4 + i / 2 * 8) * 4, c[i]);
  }
}

// Writes the rows of a tile that `blocks` blocks share, as block number `block`. Rows are dealt out to the blocks'
// warps; a lane has four outputs. sum(row, output) returns four sums over all blocks.
template <class F>
__device__ void write(const Arguments& a, const RowTile& tile, int blocks, int block, F&& sum) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, four = static_cast<int>(threadIdx.x) % kWarp * 4;
  const int output = static_cast<int>(blockIdx.x) * kOutputs + four;
  if (output >= a.n) return;
  for (int row = block + blocks * warp; row < tile.count; row += blocks * kPanels) {
    put(a, tile, row, output, sum(row, four));
  }
}

// The shared memory of a block: stages of the inputs and the rings of the weights, which the sums later replace.
template <int rows, class Slices>
struct Layout {
  static constexpr uint32_t kStagesBytes = (rows > 96 ? 5 : rows > 64 ? 4 : 6) * rows * kTileRowBytes;
  static constexpr int kMostStages = 16;
  using Sums = TileSums<rows>;
  static constexpr uint32_t kRingsAt = kStagesBytes, kBarriersAt = kRingsAt + kPanels * Slices::kWarpBytes;
  static_assert(Sums::kBytes <= kBarriersAt);
  static constexpr uint32_t kBytes = kBarriersAt + kMostStages * 2 * 8;
  uint32_t base;

  __device__ uint32_t full(int stage) const { return base + kBarriersAt + stage * 2 * 8; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  __device__ uint32_t slices() const { return base + kRingsAt; }
  __device__ Sums sums() const { return {base}; }
};

// Copies the inputs of `used` rows to shared memory: one stage per step of k, which holds `planes` planes of rows of
// 128 bytes. The warps take turns in refilling a stage after all warps have read it, some steps ago.
template <int used, int planes, class Shared>
class InputStages {
 public:
  static constexpr uint32_t kPlaneBytes = used * static_cast<uint32_t>(kTileRowBytes),
                            kStageBytes = planes * kPlaneBytes;
  static constexpr int kStages = std::min<int>(Shared::kStagesBytes / kStageBytes, Shared::kMostStages), kLag = 2;
  static_assert(kLag < kStages);

  // Covers steps begin .. begin + steps - 1 of the tile's rows. step_rows: rows from a step to the next one.
  __device__ InputStages(const Shared& shared, const std::byte* x, int64_t step_rows, const RowTile& tile, int begin,
                         int steps, int64_t plane_bytes = 0)
      : shared_(shared),
        from_(x + (begin * step_rows + tile_place_of(tile)) * kTileRowBytes),
        step_bytes_(step_rows * kTileRowBytes),
        plane_bytes_(plane_bytes),
        bytes_(static_cast<uint32_t>((tile.count + 7) / 8 * 8 * kTileRowBytes)),
        steps_(steps) {}

  __device__ void begin() const {
    if (threadIdx.x != 0) return;
    for (int step = 0; step < min(steps_, kStages); ++step) copy(step, step);
  }
  // Called before step `now` is multiplied.
  __device__ void go_on(int now) const {
    const int next = now - kLag + kStages;
    if (now % kPanels != static_cast<int>(threadIdx.x) / kWarp || now < kLag || next >= steps_) return;
    if (threadIdx.x % kWarp == 0) {
      wait_barrier(shared_.empty(next % kStages), (next / kStages - 1) % 2);
      copy(next, next % kStages);
    }
    __syncwarp();
  }
  __device__ uint32_t stage(int i) const { return shared_.base + i * kStageBytes; }

 private:
  __device__ void copy(int step, int stage) const {
    arrive_expecting(shared_.full(stage), planes * bytes_);
    for (int i = 0; i < planes; ++i) {
      copy_bulk(this->stage(stage) + i * kPlaneBytes, from_ + i * plane_bytes_ + step * step_bytes_, bytes_,
                shared_.full(stage));
    }
  }

  const Shared& shared_;
  const std::byte* from_;
  const int64_t step_bytes_, plane_bytes_;
  const uint32_t bytes_;
  const int steps_;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Stores the sums of a warp group's 64 outputs and n rows where the stages were, in the layout of TileSums. Called by
// all threads of the block at the end. With g = l / 4 and t = l % 4, sums[4 * i + 2 * h + c] of lane l of warp w
// belongs to output 16 w + g + 8 h of the group and row first + 8 i + 2 t + c.
template <int n, class Shared>
__device__ void store_group_sums(const Shared& shared, const float (&sums)[n / 2], int first) {
#pragma unroll
  for (int i = 0; i < n / 8; ++i) {
    store_sums(shared.sums().at(first + i * 8, static_cast<int>(threadIdx.x) / kWarp * 16), &sums[4 * i]);
  }
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Multiplies `used` rows of a tile and scales the sums over inputs that share a scale, then stores the sums. Weights
// are exact operands. Those of the next slice are made while the tensor cores multiply the current one.
template <int used, class Codec, class Slices, class Shared>
__device__ void multiply_exact(Slices& weights, const Arguments& arguments, const RowTile& tile, const Part& part,
                               const Shared& shared) {
  using Inputs = InputStages<used, 1, Shared>;
  using Factors = SliceFactors<Codec>;
  constexpr int kStages = Inputs::kStages, kSlicesOfSums = Slices::kSlicesOfScales;
  static_assert(Slices::kSlices % kSlicesOfSums == 0);
  using Mma = Wgmma<typename Operand<Codec>::Type, used>;
  const Inputs inputs(shared, arguments.x, arguments.x_rows, tile, part.begin, part.count);
  inputs.begin();
  const bool first_lane = threadIdx.x % kWarp == 0;
  float sums[used / 2], parts[Factors::kSets][used / 2];  // parts: sums of the slices that share scales
  Factors factors{}, next{};
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
#pragma unroll
  for (auto& some : parts) {
#pragma unroll
    for (float& part_sum : some) part_sum = 0.0f;
  }
  const auto add_parts = [&] {
#pragma unroll
    for (int set = 0; set < Factors::kSets; ++set) {
      wgmma_fence_operands(parts[set]);
#pragma unroll
      for (int i = 0; i < used / 2; ++i) sums[i] = fmaf(factors.scales[set][i / 2 % 2], parts[set][i], sums[i]);
    }
  };
  uint32_t made[kSteps][4], a[kSteps][4];
  const uint64_t stages = matrix(inputs.stage(0));
  int stage = 0, round = 0, last_stage = 0;
  for (int slice = 0; slice < part.count; slice += Slices::kSlices) {
#pragma unroll
    for (int i = 0; i < Slices::kSlices; ++i) {
      const int now = slice + i;
      if (now >= part.count) break;
      weights.take(now, i, [&](const typename Codec::Slice& taken) {
        prepare<Codec>(taken, made);
        if (i % kSlicesOfSums == 0) next.take(taken);
      });
      wgmma_wait<0>();
      if (now > 0 && first_lane) arrive(shared.empty(last_stage));
      if (i % kSlicesOfSums == 0) {
        add_parts();
        factors = next;
      }
      finish<Codec>(made, factors, arguments.zero, a);
      inputs.go_on(now);
      wait_barrier(shared.full(stage), round);
      wgmma_arrive();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t x = stages + (stage * Inputs::kStageBytes + step * 32) / 16;
        constexpr int kStepsOfSet = kSteps / Factors::kSets;
        if (i % kSlicesOfSums == 0 && step % kStepsOfSet == 0) {
          Mma::template by_rows<0>(parts[step / kStepsOfSet], a[step], x);
        } else {
          Mma::by_rows(parts[step / kStepsOfSet], a[step], x);
        }
      }
      wgmma_commit();
      last_stage = stage;
      if (++stage == kStages) stage = 0, round ^= 1;
    }
  }
  wgmma_wait<0>();
  add_parts();
  wgmma_fence_operands(sums);
  __syncthreads();  // no warp reads the stages any more
  store_group_sums<used>(shared, sums, 0);
}

// Multiplies `used` rows of a tile, at most 128 at a time, with weights that are scaled, and stores the sums. The
// operands of a slice are made while the tensor cores multiply the slice before it, in two sets of registers in turn.
// 96 rows are multiplied as 64 and 32.
template <int used, class Codec, class Slices, class Shared>
__device__ void multiply_scaled(Slices& weights, const Arguments& arguments, const RowTile& tile, const Part& part,
                                const Shared& shared) {
  using Inputs = InputStages<used, 1, Shared>;
  constexpr int kStages = Inputs::kStages, kAtOnce = used >= 128 ? 128 : used == 96 ? 64 : used;
  constexpr int kMatmuls = used / kAtOnce, kRest = used % kAtOnce;
  static_assert(Slices::kSlices % 2 == 0);
  using Mma = Wgmma<typename Operand<Codec>::Type, kAtOnce>;
  const Inputs inputs(shared, arguments.x, arguments.x_rows, tile, part.begin, part.count);
  inputs.begin();
  const bool first_lane = threadIdx.x % kWarp == 0;
  float sums[kMatmuls][kAtOnce / 2], rest[kRest == 0 ? 1 : kRest / 2];
#pragma unroll
  for (int j = 0; j < kMatmuls; ++j) {
#pragma unroll
    for (float& sum : sums[j]) sum = 0.0f;
  }
#pragma unroll
  for (float& sum : rest) sum = 0.0f;
  uint32_t a[2][kSteps][4];
  const uint64_t stages = matrix(inputs.stage(0));
  int now = 0, stage = 0, round = 0, last_stage = 0;
  const auto rows_at = [&](int row, int step) {
    return stages + (stage * Inputs::kStageBytes + row * kTileRowBytes + step * 32) / 16;
  };
  // Multiplies slice `now`, whose number within the weights' stage is i.
  const auto multiply_slice = [&](int i) {
    weights.take(now, i, [&](const typename Codec::Slice& taken) {
      if constexpr (!Operand<Codec>::kScaled) wgmma_wait<0>();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t(&own)[4] = a[i % 2][step];
        operand<Codec>(taken, step, own);
        if constexpr (!Operand<Codec>::kScaled) {  // else these would be the registers to which weights are loaded
#pragma unroll
          for (uint32_t& pair : own) pair ^= arguments.zero;
          wgmma_fence_operands(own);
        }
      }
    });
    inputs.go_on(now);
    wait_barrier(shared.full(stage), round);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kMatmuls; ++j) {
        Mma::by_rows(sums[j], a[i % 2][step], rows_at(j * kAtOnce, step));
      }
      if constexpr (kRest > 0) {
        Wgmma<typename Operand<Codec>::Type, kRest>::by_rows(rest, a[i % 2][step], rows_at(kMatmuls * kAtOnce, step));
      }
    }
    wgmma_commit();
  };
  const auto go_on = [&] {
    if (now > 0 && first_lane) arrive(shared.empty(last_stage));
    last_stage = stage, ++now;
    if (++stage == kStages) stage = 0, round ^= 1;
  };
  if (part.count >= Slices::kSlices) {
    do {  // do-while without a way out: otherwise the compiler would make the matmuls wait for each other
#pragma unroll
      for (int i = 0; i < Slices::kSlices; ++i) {
        multiply_slice(i);
        wgmma_wait<1>();
        go_on();
      }
    } while (now + Slices::kSlices <= part.count);
    wgmma_wait<0>();
  }
#pragma unroll
  for (int i = 0; i < Slices::kSlices - 1; ++i) {
    if (now == part.count) break;
    multiply_slice(i);
    wgmma_wait<0>();
    go_on();
  }
#pragma unroll
  for (int j = 0; j < kMatmuls; ++j) wgmma_fence_operands(sums[j]);
  wgmma_fence_operands(rest);
  __syncthreads();  // no warp reads the stages any more
#pragma unroll
  for (int j = 0; j < kMatmuls; ++j) store_group_sums<kAtOnce>(shared, sums[j], j * kAtOnce);
  if constexpr (kRest > 0) store_group_sums<kRest>(shared, rest, kMatmuls * kAtOnce);
}

template <int used, class Codec, class Slices, class Shared>
__device__ void multiply(Slices& weights, const Arguments& arguments, const RowTile& tile, const Part& part,
                         const Shared& shared) {
  if constexpr (used <= most_scaled_rows<Codec>()) {
    multiply_exact<used, Codec>(weights, arguments, tile, part, shared);
  } else {
    multiply_scaled<used, Codec>(weights, arguments, tile, part, shared);
  }
}
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// What a block does with its tile of up to `rows` rows. multiply(slices, tile, part, shared) stores the sums.
template <class Slices, int rows, class F>
__device__ void with_tile(const Arguments& a, F&& multiply) {
  extern __shared__ __align__(1024) uint4 memory[];
  using Shared = Layout<std::max(rows, 64), Slices>;
  const Shared shared{shared_address(memory)};
  const Part part = part_of(a.slices, Slices::kSlices);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shared::kMostStages; ++stage) {
      init_barrier(shared.full(stage), 1);
      init_barrier(shared.empty(stage), kThreads / kWarp);
    }
  }
  fence_proxy_async();
  __syncthreads();
  Slices weights(a, part, shared.slices());
  if (a.starts == nullptr) weights.begin(0);
  wait_for_earlier();
  const RowTile tile = find_row_tile(a.starts, a.matrices, a.rows, static_cast<int>(blockIdx.z), rows);
  if (tile.count == 0) return;
  if (a.starts != nullptr) weights.begin(tile.matrix * a.weight_step);
  multiply(weights, tile, part, shared);
  sync_cluster();
  const int blocks_of_tile = static_cast<int>(gridDim.y);
  write(a, tile, blocks_of_tile, static_cast<int>(blockIdx.y),
        [&](int row, int output) { return shared.sums().of_blocks(blocks_of_tile, row, output); });
  sync_cluster();  // other blocks may still read these sums
}
#endif

// Calls multiply.operator()<n>() for the smallest n that holds `count` of a tile's `rows` rows.
template <int rows, class F>
__device__ void with_used_rows(int count, F&& multiply) {
  if constexpr (rows <= 96) {
    if (count <= 16) return multiply.template operator()<16>();
  }
  constexpr int kMost = rows == 96 ? 64 : rows / 2;
  count <= kMost ? multiply.template operator()<kMost>() : multiply.template operator()<rows>();
}

// Grid: (128 outputs, parts of k, tiles of rows); the parts of k form a cluster. Tiles that are at most half full cost
// half.
template <class Codec, int rows, int together>
__global__ void __launch_bounds__(kThreads, together) matmul_tiles(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  with_tile<typename SlicesOf<Codec>::Type, rows>(
      a, [&](auto& weights, const RowTile& tile, const Part& part, const auto& shared) {
        with_used_rows<rows>(tile.count, [&]<int used>() { multiply<used, Codec>(weights, a, tile, part, shared); });
      });
#endif
}

// The matmul by mma.sync, without splitting k.
inline constexpr int kSyncRows = 128, kSyncStages = 4;
inline constexpr uint32_t kSyncStage = kSyncRows * kTileRowBytes;
inline constexpr uint32_t kSyncBytes = std::max(kSyncStages * kSyncStage, kSyncRows* kSumPitch);

template <class Codec>
__global__ void __launch_bounds__(kThreads, 1) multiply_tiles_sync(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) uint4 memory[];
  constexpr int kAhead = 2;
  const uint32_t shared = shared_address(memory);
  const Part part{0, a.slices};
  RegisterSlices<Codec, kAhead> weights(a, part);
  wait_for_earlier();
  const RowTile tile = find_row_tile(a.starts, a.matrices, a.rows, static_cast<int>(blockIdx.z), kSyncRows);
  if (tile.count == 0) return;
  weights.begin(tile.matrix * a.weight_step);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int packs = (tile.count + 7) / 8 * 8 * static_cast<int>(kTileRowBytes) / 16;
  const auto copy = [&](int slice) {
    if (slice < a.slices) {
      const std::byte* from = a.x + (slice * a.x_rows + tile_place_of(tile)) * kTileRowBytes;
      for (int i = thread; i < packs; i += kThreads) {
        copy_async(shared + slice % kSyncStages * kSyncStage + i * 16, from + i * 16);
      }
    }
    commit_copies();
  };
  for (int slice = 0; slice < kSyncStages - 1; ++slice) copy(slice);
  float sums[kSyncRows / 8][4] = {};
  // The rows and packs that a lane addresses: the first eight rows with their low and high inputs, then the other
  // eight.
  const int b_row = lane % 8 + lane / 16 * 8, b_pack = lane / 8 % 2;
  for (int slice = 0; slice < a.slices; slice += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int now = slice + i;
      if (now >= a.slices) break;
      uint32_t w[kSteps][4];
      weights.take(now, i, [&](const typename Codec::Slice& taken) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) operand<Codec>(taken, step, w[step]);
      });
      wait_for_copies<kSyncStages - 2>();
      __syncthreads();  // all copies of the stage have arrived, and no warp reads the stage before it
      copy(now + kSyncStages - 1);
      const uint32_t x = shared + now % kSyncStages * kSyncStage + b_row * static_cast<int>(kTileRowBytes);
#pragma unroll
      for (int j = 0; j < kSyncRows / 16; ++j) {
        if (j * 16 >= tile.count) break;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t b[4];
          ldmatrix4(b, x + j * 16 * static_cast<int>(kTileRowBytes) + ((2 * step + b_pack) ^ (b_row % 8)) * 16);
          using Type = typename Operand<Codec>::Type;
          mma<Type>(sums[2 * j], w[step][0], w[step][1], w[step][2], w[step][3], b[0], b[1]);
          mma<Type>(sums[2 * j + 1], w[step][0], w[step][1], w[step][2], w[step][3], b[2], b[3]);
        }
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSyncRows / 8; ++i) store_sums(shared + i * 8 * kSumPitch + warp * 16 * 4, sums[i]);
  __syncthreads();
  write(a, tile, 1, 0, [&](int row, int output) {
    return reinterpret_cast<const float4*>(memory)[(row * kSumPitch + output * 4) / 16];
  });
}

template <class Codec>
void launch_sync(const Launch& l, const Arguments& a) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, multiply_tiles_sync<Codec>, kSyncBytes);
  const dim3 grid(static_cast<unsigned>(pieces(a.n, kOutputs)), 1,
                  most_row_tiles(a.starts != nullptr, a.matrices, a.rows, kSyncRows));
  launch_pdl(l, "matmul by tiles", multiply_tiles_sync<Codec>, grid, kThreads, kSyncBytes, a);
}

#ifdef SLUICE_SM90A
// Launches a kernel over tiles of `rows` rows; `together` of its blocks fit on an SM.
template <auto kernel, class Slices, int rows, int together, class A>
void launch(const Launch& l, const A& a) {
  constexpr int kBytes = Layout<std::max(rows, 64), Slices>::kBytes;
  static_assert(together * (kBytes + (1 << 10)) <= 228 << 10);
  static SharedMemoryLimit limit;
  limit.raise(l.device, kernel, kBytes);
  static PerDevice<ClusterCapacity> capacities;
  const ClusterCapacity& capacity = capacities.get(l.device, [] { return ClusterCapacity(kernel, kThreads, kBytes); });
  constexpr int kFixed = 8 / Slices::kSlices;
  const auto outputs = static_cast<unsigned>(pieces(a.n, kOutputs));
  const unsigned tiles = most_row_tiles(a.starts != nullptr, a.matrices, a.rows, rows);
  const auto steps = static_cast<int>(pieces(a.slices, Slices::kSlices));
  const int blocks =
      a.starts != nullptr ? 1 : capacity.best(int64_t{outputs} * tiles, steps, kMostClusterBlocks, kFixed);
  launch_clusters(l, "matmul by tiles", kernel,
                  {.blocks = dim3(outputs, static_cast<unsigned>(blocks), tiles),
                   .cluster = dim3(1, static_cast<unsigned>(blocks)),
                   .threads = kThreads,
                   .shared = kBytes},
                  a);
}
#endif

}  // namespace tiles

// Defined here for the instances in tiles_*.cu. Codec reads weights whose panels are `panel_bytes` long. Returns false,
// having done nothing, if it cannot.
template <class Codec>
bool matmul_by_tiles(const Launch& l, const MatmulProblem& p, int64_t panel_bytes) {
  using Type = typename tiles::Operand<Codec>::Type;
  const int64_t rows = p.x.rows(), slices = panel_slices(p.k);
  const int64_t x_rows = tile_rows(rows, p.starts != nullptr ? p.matrices : 0);
  const bool warpgroups = l.compute_capability == 90 && tiles::kWarpgroups;
  if (p.starts == nullptr && (p.matrices != 1 || !warpgroups)) return false;
  if (static_cast<size_t>(slices * x_rows * kTileRowBytes) > l.workspace_bytes) return false;
  if (rows == 0) return true;
  TileOrder order{.quad = {}, .next = Codec::quad(0, 1) - Codec::quad(0, 0)};
  for (int step = 0; step < tiles::kSteps; ++step) order.quad[step] = Codec::quad(step, 0);
  round_to_tiles(l, l.workspace, std::is_same_v<Type, __half> ? &kFloat16 : &kBFloat16, order, p);
  const tiles::Arguments a = tiles::arguments(p, l.workspace, x_rows, panel_bytes);
  if (!warpgroups) {
    tiles::launch_sync<Codec>(l, a);
    return true;
  }
#ifdef SLUICE_SM90A
  const int64_t likely = p.starts != nullptr ? rows / p.matrices : rows;  // rows of a matrix
  if constexpr (tiles::kScaledInPairs<Codec>) {
    // Many experts have more than 64 rows then, and few more than 96.
    constexpr int64_t kFewest = 52, kMost = 84;
    if (p.starts != nullptr && likely >= kFewest && likely <= kMost) {
      tiles::launch<tiles::matmul_tiles<Codec, 96, 2>, typename tiles::SlicesOf<Codec>::Type, 96, 2>(l, a);
      return true;
    }
  }
  if (likely <= 64) {
    tiles::launch<tiles::matmul_tiles<Codec, 64, 2>, typename tiles::SlicesOf<Codec>::Type, 64, 2>(l, a);
  } else {
    tiles::launch<tiles::matmul_tiles<Codec, 256, 1>, typename tiles::SlicesOf<Codec>::Type, 256, 1>(l, a);
  }
#endif
  return true;
}

}  // namespace sluice::cuda
