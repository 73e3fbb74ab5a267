// Matmuls of up to 32 rows whose results adapters change, in one launch (compute capability 9.0): out = x W^T, plus
// scale * B A x of each row's adapter. Bound by reading W, as matmul/rows.cu is, whose blocks these are.
//
// The first blocks of the grid make the inner values A x: up to 128 of them, of all rows, over a part of k. They write
// those of each row's own adapter to memory, as a sum per part, and count themselves. To the other blocks B is further
// columns of W, and the inner values, rounded to bf16, are further inputs. They are zero in rows with another adapter.
// A stage has 16 of them for each of four adapters. These stages come before the last chunks of W, which are loading
// while a block waits for inner values. Where blocks have few chunks, they come behind all of W.
//
// Blocks wait for others of their launch. Those are the first ones of the grid, and blocks begin in order.
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/adapter_groups.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/rows.cuh"
#include "kernels/cuda/matmul/rows.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace row_matmul {

using Bf16 = __nv_bfloat16;
using ops::LoraWeight;

inline constexpr int kMostSums = 8;  // parts of k

struct LoraParams {
  LoraWeight w;
  float* inner;  // [sums, rows, values of an adapter]
  int64_t inner_stride;
  const int32_t* slots;
  int32_t* arrivals;  // [0]: blocks that have written inner values; [1]: blocks that have read them
  int columns;        // of the grid, whose blocks make inner values
  bool early;         // slots may be read before the kernel ahead has ended
  int behind;         // chunks of W behind the stages of B
};

// How the inner values of a step's adapters are divided among blocks.
struct Division {
  int values, tiles, sums;

  __device__ Division(const LoraParams& lora, int adapters, int chunks) {
    values = adapters * lora.w.parts * lora.w.rank;
    tiles = (values + kOutputs - 1) / kOutputs;
    const int blocks = lora.columns * static_cast<int>(gridDim.y);
    sums = tiles == 0 ? 0 : min(blocks / tiles, min(kMostSums, chunks));
  }
  __device__ int blocks() const { return tiles * sums; }
};

// One of the inner values of all adapters.
struct Value {
  int slot, index;  // in the values of the adapter
  uint32_t rows;    // which have the adapter

  __device__ Value(const LoraWeight& w, const AdapterGroups& groups, int number) {
    const int of_adapter = w.parts * w.rank, adapter = min(number / of_adapter, groups.count() - 1);
    groups.get(adapter, slot, rows);
    index = number - adapter * of_adapter;
  }
};

// Copies a tile of A and the inputs.
template <int rows>
__device__ void produce_values(const RowsParams& p, const LoraParams& lora, const AdapterGroups& groups, int first,
                               int count, const Part& part, const RowsLayout<rows>& shared) {
  constexpr int kStages = RowsLayout<rows>::kStages, kRowsApart = kGroupThreads / 8, kRows = kOutputs / kRowsApart;
  const int pack = static_cast<int>(threadIdx.x) % 8, row = static_cast<int>(threadIdx.x) / 8;
  const std::byte* from[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Value value(lora.w, groups, first + min(row + i * kRowsApart, count - 1));
    const int64_t matrix_row = int64_t{value.slot} * lora.w.parts * lora.w.rank + value.index;
    from[i] = lora.w.a + (matrix_row * lora.w.k) * 2 + int64_t{part.begin} * kChunk + pack * 16;
  }
  const auto copy_values = [&](int i) {
    const uint32_t to = shared.weights(i % kStages) + row * kChunk + ((pack ^ row) & 7) * 16;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (j * kRowsApart < count) copy_async(to + j * kRowsApart * kChunk, from[j] + i * kChunk);
    }
  };
  const int early = lora.early ? min(part.count, kStages) : 0;
  for (int i = 0; i < early; ++i) copy_values(i);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool first_of_row = pack == 0 && row + i * kRowsApart < count;
    if (first_of_row && part.count > early) prefetch_to_l2(from[i] + early * kChunk, (part.count - early) * kChunk);
  }
  wait_for_earlier();
  const ChunkCopy<rows> inputs(p.x, p.x_pitch, p.rows, part.begin);
  for (int i = 0; i < part.count; ++i) {
    const int stage = i % kStages;
    if (i >= early) {
      wait_barrier(shared.empty(stage), i / kStages % 2 ^ 1);
      copy_values(i);
    }
    inputs.copy(shared.inputs(stage), i, p.rows);
    arrive_after_copies(shared.full(stage));
  }
  wait_for_all_copies();
}

// Writes the values that a consumer has summed up, as far as they are of a row's own adapter.
template <int rows>
__device__ void write_values(const RowsParams& p, const LoraParams& lora, const AdapterGroups& groups, int first,
                             int count, int part, int consumer, const float (&sums)[rows / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, t = thread % 4;
  const int output = consumer * 64 + thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Value value(lora.w, groups, first + min(output + 8 * h, count - 1));
    if (output + 8 * h >= count) continue;
    const float scale = lora.w.scales[int64_t{value.slot} * lora.w.parts + value.index / lora.w.rank];
#pragma unroll
    for (int i = 0; i < rows / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 8 * i + 2 * t + j;
        if ((value.rows >> row & 1) == 0) continue;
        lora.inner[(int64_t{part} * p.rows + row) * lora.inner_stride + value.index] = scale * sums[4 * i + 2 * h + j];
      }
    }
  }
}

template <int rows>
__device__ void make_values(const RowsParams& p, const LoraParams& lora, int consumer, const RowsLayout<rows>& shared) {
  const AdapterGroups groups(lora.slots, p.rows);
  const Division division(lora, groups.count(), p.chunks);
  const int block = static_cast<int>(blockIdx.x * gridDim.y + blockIdx.y);
  if (block >= division.blocks()) return wait_for_earlier();
  const int part = block % division.sums, first = block / division.sums * kOutputs,
            count = min(division.values - first, kOutputs);
  const int begin = p.chunks * part / division.sums;
  const Part chunks{begin, p.chunks * (part + 1) / division.sums - begin};
  if (consumer < 0) {
    produce_values<rows>(p, lora, groups, first, count, chunks, shared);
  } else {
    wait_for_earlier();
    float sums[rows / 2];
    consume<Bf16, rows>(chunks.count, shared, consumer, sums);
    write_values<rows>(p, lora, groups, first, count, part, consumer, sums);
  }
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("red.add.release.gpu.global.s32 [%0], 1;" ::"l"(lora.arrivals) : "memory");
}

// The stages of a block of outputs: its chunks of W, and those of B, which come before the last chunks of W. The blocks
// of a cluster share both.
struct Stages {
  static constexpr int kPieces = 4;  // of 16 inner values, in a stage

  Part chunks;
  int before;                               // chunks before the stages of B
  int adapters = 0, pieces = 0;             // the first piece of every adapter, then the next ones
  int changes_of_cluster = 0, changes = 0;  // stages of B

  // `behind` chunks come behind B.
  __device__ Stages(const Part& chunks, int behind) : chunks(chunks), before(max(chunks.count - behind, 0)) {}
  __device__ void add(const LoraWeight& w, int adapters_of_step) {
    adapters = adapters_of_step, pieces = adapters * ((w.rank + 15) / 16);
    changes_of_cluster = (pieces + kPieces - 1) / kPieces;
    const int block = static_cast<int>(blockIdx.y), blocks = static_cast<int>(gridDim.y);
    changes = (changes_of_cluster - block + blocks - 1) / blocks;
  }
  __device__ int count() const { return chunks.count + changes; }
  // The chunk of W of a stage, or -1.
  __device__ int chunk(int at) const { return at < before ? at : at < before + changes ? -1 : at - changes; }
};

// The stages of a block of outputs, and a barrier for each: whether inner values may be stored in it.
template <int rows>
struct LoraLayout : RowsLayout<rows> {
  static constexpr uint32_t kBytes = RowsLayout<rows>::kBytes + RowsLayout<rows>::kStages * 8;
  __device__ uint32_t free(int stage) const { return this->base + RowsLayout<rows>::kBytes + stage * 8; }
};

// 16 inner values of an adapter.
struct Piece {
  static constexpr uint32_t kBytes = kOutputs * 32;  // of B

  int slot, first;   // the first value in its part; behind the last one if there is no such piece
  uint32_t members;  // the rows that have the adapter

  // Piece i of the n-th stage of B. Called by whole warps.
  __device__ Piece(const LoraParams& lora, const AdapterGroups& groups, const Stages& stages, int n, int i) {
    const int stage = static_cast<int>(blockIdx.y) + n * static_cast<int>(gridDim.y);
    const int number = Stages::kPieces * stage + i, there = min(number, stages.pieces - 1);
    groups.get(there % stages.adapters, slot, members);
    first = number == there ? there / stages.adapters * 16 : lora.w.rank;
  }
};

// A matrix as matrix() describes it, but with rows of 32 bytes: pack i of row r lies at i ^ (r / 4 % 2).
__device__ inline uint64_t narrow_matrix(uint32_t address) {
  constexpr uint64_t kExchanged32 = uint64_t{3} << 62, kEightRows = uint64_t{256 >> 4} << 32;
  return kExchanged32 | kEightRows | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}

// Lets a phase end only when bulk copies have brought `bytes` more bytes.
__device__ inline void expect_more_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Copies W, x and B as TMA tiles. Called by one warp. W is loaded before the kernel in front has written x (PDL). Tells
// the warps that store inner values which stages are free: only a thread that waits for every round of the ring knows
// it. Their arrival completes a stage of B.
template <int rows>
__device__ void copy_stages(const RowsParams& p, const LoraParams& lora, const CUtensorMap& weights,
                            const CUtensorMap& inputs, const CUtensorMap& changes, Stages stages, int output,
                            const LoraLayout<rows>& shared) {
  constexpr int kStages = LoraLayout<rows>::kStages;
  const bool copies = threadIdx.x == 0;
  const uint64_t once = l2_evict_first(), again = l2_evict_normal();
  const auto copy_weights = [&](int chunk, int stage) {
    arrive_expecting(shared.full(stage), kWeightBytes + rows * kChunk);
    copy_tma_tile(shared.weights(stage), weights, (stages.chunks.begin + chunk) * kChunk, output, shared.full(stage),
                  once);
  };
  const int early = min(stages.before, kStages);
  for (int i = 0; i < early && copies; ++i) copy_weights(i, i);
  const AdapterGroups groups(lora.slots, p.rows);
  stages.add(lora.w, groups.count());
  wait_for_earlier();
  for (int at = 0; at < stages.count(); ++at) {
    const int stage = at % kStages, chunk = stages.chunk(at);
    if (at >= early) wait_barrier(shared.empty(stage), at / kStages % 2 ^ 1);
    if (chunk >= 0) {
      if (!copies) continue;
      if (at >= early) copy_weights(chunk, stage);
      copy_tma_tile(shared.inputs(stage), inputs, (stages.chunks.begin + chunk) * kChunk, 0, shared.full(stage), again);
      continue;
    }
    if (copies) expect_more_bytes(shared.full(stage), Stages::kPieces * Piece::kBytes);
    for (int i = 0; i < Stages::kPieces; ++i) {
      const Piece piece(lora, groups, stages, at - stages.before, i);
      if (!copies) continue;
      // Columns beyond the last are zeros.
      copy_tma_tile(shared.weights(stage) + i * Piece::kBytes, changes, piece.first,
                    piece.slot * static_cast<int>(lora.w.n) + output, shared.full(stage), once);
    }
    if (copies) arrive(shared.free(stage));
  }
  __syncwarp();
}

// Adds up all stages, as consume() does those of W.
template <int rows>
__device__ void consume_stages(const Stages& stages, const RowsLayout<rows>& shared, int consumer,
                               float (&sums)[rows / 2]) {
  constexpr int kStages = RowsLayout<rows>::kStages;
  const bool first_lane = threadIdx.x % kWarp == 0;
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int i = 0; i < stages.count(); ++i) {
    const int stage = i % kStages;
    const bool change = stages.chunk(i) < 0;
    const uint32_t weights = shared.weights(stage);
    const uint64_t first =
        change ? narrow_matrix(weights + consumer * 64 * 32) : matrix(weights + consumer * 64 * kChunk);
    const uint32_t apart = (change ? Piece::kBytes : 32) / 16;
    wait_barrier(shared.full(stage), i / kStages % 2);
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kChunk / 32; ++step) {
      Wgmma<Bf16, rows>::from_shared(sums, first + step * apart, matrix(shared.inputs(stage) + step * 32), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && first_lane) arrive(shared.empty((i - 1) % kStages));
  }
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
}

inline constexpr int kHelpers = kGroupThreads - kWarp;  // threads that store inner values
inline constexpr int kHelperBarrier = 1;

// Stores the inner values in the stages of B. Threads are numbered from 0 to kHelpers - 1.
template <int rows>
class InnerValues {
 public:
  __device__ InnerValues(const RowsParams& p, const LoraParams& lora, const AdapterGroups& groups, const Stages& stages,
                         int output)
      : p_(p),
        lora_(lora),
        groups_(groups),
        stages_(stages),
        division_(lora, groups.count(), p.chunks),
        thread_(static_cast<int>(threadIdx.x) - kWarp) {
    while (output >= lora.w.part_ends[part_]) ++part_;
  }

  __device__ void run(const LoraLayout<rows>& shared) {
    if (stages_.changes == 0) return;
    wait_for_values();
    load(0);
    for (int n = 0; n < stages_.changes; ++n) {
      const int stage = (stages_.before + n) % kStages;
      wait_barrier(shared.free(stage), n / kStages % 2);
#pragma unroll 1
      for (int i = 0; i < Stages::kPieces; ++i) {
        store(shared.inputs(stage), Piece(lora_, groups_, stages_, n, i), i);
      }
      fence_proxy_async();
      sync_threads(kHelperBarrier, kHelpers);
      if (thread_ == 0) arrive(shared.full(stage));
    }
    finish_reading();
  }

 private:
  static constexpr int kStages = RowsLayout<rows>::kStages;
  // Each thread has four values of some rows.
  static constexpr int kQuads = rows * 4, kQuadsOfThread = (kQuads + kHelpers - 1) / kHelpers;

  __device__ void store(uint32_t to, const Piece& piece, int i) {
    if (piece.first < lora_.w.rank && piece.first != loaded_) load(piece.first);
#pragma unroll
    for (int q = 0; q < kQuadsOfThread; ++q) {
      const int item = thread_ + q * kHelpers, row = item / 4, quad = item % 4;
      if (item >= kQuads) continue;
      const bool mine = piece.first + 4 * quad < lora_.w.rank && (piece.members >> row & 1) != 0;
      const uint32_t at = to + row * kChunk + (((2 * i + quad / 2) ^ row) & 7) * 16 + quad % 2 * 8;
      store_shared(at, mine ? values_[q].x : 0), store_shared(at + 4, mine ? values_[q].y : 0);
    }
  }

  // Adds up this thread's inner values of the 16 from `first` on.
  __device__ void load(int first) {
    loaded_ = first;
#pragma unroll
    for (int q = 0; q < kQuadsOfThread; ++q) {
      const int item = thread_ + q * kHelpers, row = item / 4, value = first + item % 4 * 4;
      float4 terms[kMostSums] = {};
      if (row < p_.rows && value < lora_.w.rank && groups_.has_adapter(row)) {
        const float* from = lora_.inner + row * lora_.inner_stride + part_ * lora_.w.rank + value;
#pragma unroll
        for (int i = 0; i < kMostSums; ++i) {
          if (i >= division_.sums) continue;
          terms[i] = __ldcg(reinterpret_cast<const float4*>(from + int64_t{i} * p_.rows * lora_.inner_stride));
        }
      }
      float4 sum = terms[0];
#pragma unroll
      for (int i = 1; i < kMostSums; ++i) {
        sum.x += terms[i].x, sum.y += terms[i].y, sum.z += terms[i].z, sum.w += terms[i].w;
      }
      values_[q] = {pack2<Bf16>(sum.x, sum.y), pack2<Bf16>(sum.z, sum.w)};
    }
  }

  __device__ void wait_for_values() const {
    if (thread_ == 0) {
      int now = 0;
      while (now < division_.blocks()) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(lora_.arrivals) : "memory");
      }
    }
    sync_threads(kHelperBarrier, kHelpers);
  }

  // Counts this block as one that has read the values. The last one resets both counters.
  __device__ void finish_reading() const {
    if (thread_ != 0) return;
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(lora_.arrivals + 1) : "memory");
    const int outputs = static_cast<int>(gridDim.x) - lora_.columns;
    const int readers = outputs * min(static_cast<int>(gridDim.y), stages_.changes_of_cluster);
    if (before + 1 == readers) lora_.arrivals[0] = lora_.arrivals[1] = 0;
  }

  const RowsParams& p_;
  const LoraParams& lora_;
  const AdapterGroups& groups_;
  const Stages& stages_;
  const Division division_;
  const int thread_;
  int part_ = 0, loaded_ = -1;
  uint2 values_[kQuadsOfThread];
};

// Grid: (columns that make inner values, then 128 outputs each; parts of k), the parts form a cluster.
template <int rows, class Out>
__global__ void __launch_bounds__(kThreads, RowsLayout<rows>::kTogether)
    lora_rows(const __grid_constant__ RowsParams p, const __grid_constant__ LoraParams lora,
              const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap inputs,
              const __grid_constant__ CUtensorMap changes, const RowsOut<Out> out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  const LoraLayout<rows> shared{shared_address(memory)};
  const int column = static_cast<int>(blockIdx.x) - lora.columns, output = column * kOutputs;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < LoraLayout<rows>::kStages; ++stage) init_barrier(shared.free(stage), 1);
  }
  init_stages<rows>(shared, column < 0 ? kGroupThreads : 1);
  if (!lora.early) wait_for_earlier();
  const int consumer = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  if (column < 0) return make_values<rows>(p, lora, consumer, shared);
  Stages stages(part_of(p.chunks), lora.behind);
  float sums[rows / 2];
  if (threadIdx.x < kWarp) {
    copy_stages<rows>(p, lora, weights, inputs, changes, stages, output, shared);
  } else if (consumer < 0) {
    const AdapterGroups groups(lora.slots, p.rows);
    stages.add(lora.w, groups.count());
    InnerValues<rows> values(p, lora, groups, stages, output);
    wait_for_earlier();
    values.run(shared);
  } else {
    stages.add(lora.w, AdapterGroups(lora.slots, p.rows).count());
    wait_for_earlier();
    consume_stages<rows>(stages, shared, consumer, sums);
  }
  __syncthreads();  // no warp reads the stages any more
  if (consumer >= 0) share<rows>(shared, consumer, sums);
  write<Bf16, rows>(p, {0, 0, p.rows, 0}, output, shared, out);
#endif
}

}  // namespace row_matmul

namespace {

using namespace row_matmul;

// Blocks with up to so many chunks of W have B behind all of them. With one adapter, this saves 0.8 us of a matmul with
// 16 chunks.
constexpr int kFewChunks = 20;

// The columns of the grid that make inner values: what the device runs at once besides the other blocks, but enough for
// the largest number of adapters.
int value_columns(const RowsParams& p, const LoraWeight& w, int outputs, int blocks, int clusters_at_once) {
  const int64_t tiles = pieces(std::min<int64_t>(p.rows, w.slots) * w.inner(), kOutputs);
  const int64_t least = pieces(tiles, blocks), most = pieces(tiles * kMostSums, blocks);
  return static_cast<int>(std::clamp<int64_t>(clusters_at_once - outputs, least, most));
}

template <int rows, class Out>
void launch_lora_rows(const Launch& l, const RowsParams& p, LoraParams lora, const CUtensorMap& weights,
                      const CUtensorMap& inputs, const CUtensorMap& changes, const RowsOut<Out>& out) {
  constexpr int kBytes = LoraLayout<rows>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, lora_rows<rows, Out>, kBytes);
  const auto outputs = static_cast<int>(pieces(p.n, kOutputs));
  static PerDevice<ClusterCapacity> capacities;
  const ClusterCapacity& capacity =
      capacities.get(l.device, [] { return ClusterCapacity(lora_rows<rows, Out>, kThreads, kBytes); });
  const int blocks = capacity.best(outputs, p.chunks, most_blocks(rows), kFixedChunks);
  lora.columns = value_columns(p, lora.w, outputs, blocks, capacity.clusters[static_cast<size_t>(blocks)]);
  lora.behind = p.chunks <= kFewChunks * blocks ? 0 : LoraLayout<rows>::kStages;
  const dim3 grid(static_cast<unsigned>(lora.columns + outputs), static_cast<unsigned>(blocks));
  launch_clusters(l, "matmul of rows with adapters", lora_rows<rows, Out>, columns_grid(grid, kBytes), p, lora, weights,
                  inputs, changes, out);
}

bool suits(const Launch& l, const MatmulProblem& p, const ops::LoraShrinkArgs& change) {
  const LoraWeight& w = *change.weight;
  bool suits = takes_rows(l, p) && p.x.rows() <= kMostPlainRows && p.type == &kBFloat16 && p.x.dtype == p.type &&
               l.workspace_bytes >= 2 * kBytesPerArrival && w.type == p.type && padded_k(p.k) == p.k &&
               w.rank % 8 == 0 && change.inner.row_stride % 4 == 0;
  for (int part = 0; part < w.parts; ++part) suits &= w.part_ends[part] % kOutputs == 0;
  suits &= p.x.row_stride % 8 == 0;
  for (const std::byte* data :
       {static_cast<const std::byte*>(p.x.data), w.a, w.b, static_cast<const std::byte*>(change.inner.data)}) {
    suits &= reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }
  return suits;
}

}  // namespace

bool matmul_lora_rows(const Launch& l, const MatmulProblem& p, const ops::LoraShrinkArgs& change,
                      const int32_t* slots) {
  if (!suits(l, p, change)) return false;
  const int64_t bytes = p.k * 2;
  const RowsParams params = rows_params(
      p, {.type = p.type, .bytes = bytes, .weight_pitch = bytes, .x = p.x.data, .x_pitch = p.x.row_stride * 2});
  const LoraParams lora{.w = *change.weight,
                        .inner = change.inner.f32(),
                        .inner_stride = change.inner.row_stride,
                        .slots = slots,
                        // The last ones: attention uses the first ones before the kernels ahead of it have ended.
                        .arrivals = l.arrivals + l.workspace_bytes / kBytesPerArrival - 2,
                        .columns = 0,
                        .early = l.captured && !change.computed,
                        .behind = 0};
  const CUtensorMap weights = rows_map(p.weight, p.n, bytes, bytes, kOutputs);
  // B of all slots, as tiles of 16 columns.
  const auto rank = static_cast<cuuint64_t>(lora.w.rank);
  const CUtensorMap changes = tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, lora.w.b,
                                            {rank, static_cast<cuuint64_t>(lora.w.slots * lora.w.n)}, {rank * 2},
                                            {16, kOutputs}, CU_TENSOR_MAP_SWIZZLE_32B);
  const auto launch = [&]<class Out>(RowsOut<Out> out) {
    const auto inputs = [&](unsigned rows) { return rows_map(p.x.data, p.x.rows(), params.x_pitch, bytes, rows); };
    if (p.x.rows() <= 16) return launch_lora_rows<16>(l, params, lora, weights, inputs(16), changes, out);
    launch_lora_rows<32>(l, params, lora, weights, inputs(32), changes, out);
  };
  if (p.out.dtype == &kFloat32) {
    launch(RowsOut<float>{p.out.as<float>(), p.out.row_stride});
  } else {
    launch(RowsOut<Bf16>{p.out.as<Bf16>(), p.out.row_stride});
  }
  return true;
}
#else
bool matmul_lora_rows(const Launch&, const MatmulProblem&, const ops::LoraShrinkArgs&, const int32_t*) { return false; }
#endif

}  // namespace sluice::cuda
