// Sums over ranks in one shot: every rank stores its summands into the memory of all others, and adds what came. The
// norm of the rows may follow in the same kernel. Columns of ranks are gathered in the same way. Bound by the link, and
// for few rows by its latency.
//
// A place that nothing has come to holds kAbsent in every word. A reader loads a place until no word is absent, so
// there are neither flags nor fences, and every byte on the link is a summand. It then puts kAbsent back. Two shots use
// places in turn. A rank that stores for shot r + 2 has read all of shot r + 1, which each other rank stored after its
// kernel of shot r had ended, and with it the restoring of kAbsent.
#include <cuda_bf16.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/collectives/norm_behind.cuh"
#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/wide_rows.cuh"
#include "kernels/cuda/grid.h"
#include "parallel/share.h"

namespace sluice::cuda {
namespace {

constexpr uint32_t kAbsent = 0xffffffffu;   // a NaN, or two in bf16
constexpr uint32_t kSentNan = 0x7fffffffu;  // what is sent in its place

// The bytes of a shot that come from one other rank.
__host__ __device__ constexpr size_t share_of_shot(int ranks) {
  return kOneShotBytes / static_cast<size_t>(ranks > 2 ? ranks - 1 : 1) / 16 * 16;
}

// Where `rank` receives the units of rank `from`.
template <class Unit>
__device__ Unit* places(const PeerMemory& m, int rank, int from, uint32_t shot) {
  const auto index = static_cast<unsigned>(from < rank ? from : from - 1);
  return reinterpret_cast<Unit*>(m.regions[rank] + RegionLayout::kOneShot + (shot & 1) * kOneShotBytes +
                                 index * share_of_shot(m.size));
}

__device__ uint32_t sent(uint32_t word) { return word == kAbsent ? kSentNan : word; }

__device__ void store_place(float4* at, float4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(sent(__float_as_uint(v.x))),
               "r"(sent(__float_as_uint(v.y))), "r"(sent(__float_as_uint(v.z))), "r"(sent(__float_as_uint(v.w)))
               : "memory");
}
__device__ void store_place(uint2* at, uint2 v) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(sent(v.x)), "r"(sent(v.y)) : "memory");
}

// Returns whether the unit has come.
__device__ bool load_place(const float4* at, float4& unit) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  unit = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
  return v.x != kAbsent && v.y != kAbsent && v.z != kAbsent && v.w != kAbsent;
}
__device__ bool load_place(const uint2* at, uint2& unit) {
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(unit.x), "=r"(unit.y) : "l"(at) : "memory");
  return unit.x != kAbsent && unit.y != kAbsent;
}
__device__ void clear_place(float4* at) { *reinterpret_cast<uint4*>(at) = {kAbsent, kAbsent, kAbsent, kAbsent}; }
__device__ void clear_place(uint2* at) { *at = {kAbsent, kAbsent}; }

// One rank's part in a shot. Every thread that sends a unit also takes those with the same index.
template <class Unit>
class Shot {
 public:
  // Called when earlier kernels have ended.
  __device__ explicit Shot(const PeerMemory& m)
      : m_(m), number_(*static_cast<volatile uint32_t*>(&region_header(m, m.rank).shot) + 1) {}

  __device__ void send(int index, Unit v) const {
    for (int other = 0; other < m_.size; ++other) {
      if (other != m_.rank) store_place(places<Unit>(m_, other, m_.rank, number_) + index, v);
    }
  }
  // Called by all threads after all that they send. The last block of a shot ends it.
  __device__ void end_sending() const {
    __syncthreads();  // all have read the number
    RegionHeader& mine = region_header(m_, m_.rank);
    if (threadIdx.x == 0 && atomicAdd(&mine.shot_blocks, 1u) == gridDim.x - 1) {
      mine.shot_blocks = 0, mine.shot = number_;
    }
  }
  // Returns another rank's unit when it has come.
  __device__ Unit take(int index, int rank) const {
    Unit* at = places<Unit>(m_, m_.rank, rank, number_) + index;
    Unit v;
    uint32_t looks = 0;
    while (!load_place(at, v) && !given_up(m_, looks)) {
    }
    clear_place(at);
    return v;
  }
  // Returns the sum of the ranks' units, added in their order.
  __device__ float4 add(int index, Unit own) const {
    float4 all{};
    for (int rank = 0; rank < m_.size; ++rank) {
      const float4 v = to_floats(rank == m_.rank ? own : take(index, rank));
      all = rank == 0 ? v : sum(all, v);
    }
    return all;
  }

 private:
  const PeerMemory& m_;
  uint32_t number_;
};

template <class T>
__global__ void sum_one_shot(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<T> x, int rows,
                             bool accumulate) {
  wait_for_earlier();
  const Shot<typename WideRows<T>::Unit> shot(m);
  const int per_row = (x.columns + 3) / 4, total = rows * per_row, step = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  for (int i = first; i < total; i += step) shot.send(i, x.load(i / per_row, i % per_row * 4));
  shot.end_sending();
  for (int i = first; i < total; i += step) {
    const int row = i / per_row, column = i % per_row * 4;
    const float4 before = accumulate ? out.load(row, column) : float4{};
    const float4 v = shot.add(i, x.load(row, column));
    out.store(row, column, out.columns, accumulate ? sum(before, v) : v);
  }
}

// Rows in a shot have `widest` columns, the most of a rank.
__global__ void gather_one_shot(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<float> x, int rows,
                                int widest) {
  wait_for_earlier();
  const Shot<float4> shot(m);
  const int per_row = (widest + 3) / 4, total = rows * per_row, step = static_cast<int>(gridDim.x * blockDim.x);
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const auto put_out = [&](int rank, int i, float4 v) {
    const Share of = share_of(out.columns, rank, m.size);
    const auto begin = static_cast<int>(of.begin), count = static_cast<int>(of.count), column = i % per_row * 4;
    if (column < count) out.store(i / per_row, begin + column, begin + count, v);
  };
  for (int i = first; i < total; i += step) {
    const float4 v = x.load(i / per_row, i % per_row * 4);
    shot.send(i, v);
    put_out(m.rank, i, v);
  }
  shot.end_sending();
  for (int rank = 0; rank < m.size; ++rank) {
    if (rank == m.rank) continue;
    for (int i = first; i < total; i += step) put_out(rank, i, shot.take(i, rank));
  }
}

// With a norm, a cluster of blocks has a row at a time. A warp has 32 units of it, a chunk, or two.
constexpr int kMostThreads = 512, kMostBlocks = 8, kChunksOfWarp = 2, kWarpColumns = 4 * kWarp;
constexpr int kMostChunks = kMostThreads / kWarp * kMostBlocks * kChunksOfWarp;

// Stores into another block's shared memory, and counts the bytes at its barrier. Addresses are those of the caller's
// own.
[[maybe_unused]] __device__ void store_counted(int block, uint32_t to, float v, uint32_t barrier) {
  asm volatile(
      "{ .reg .b32 there, counter; mapa.shared::cluster.u32 there, %0, %3; mapa.shared::cluster.u32 counter, %2, %3;"
      " st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %1, [counter]; }" ::"r"(to),
      "r"(__float_as_uint(v)), "r"(barrier), "r"(block)
      : "memory");
}

// Adds up, or compares, values of all warps of a cluster: a value per chunk. Each warp stores its values into the
// shared memory of every block. The order of additions depends on the number of chunks alone.
class ClusterTotals {
 public:
  struct Memory {
    float values[2][kMostChunks];
    uint64_t stored[2];
  };

  // Called by all threads of all blocks.
  __device__ ClusterTotals(Memory& memory, int blocks, int chunks)
      : values_(shared_address(memory.values)),
        stored_(shared_address(memory.stored)),
        blocks_(blocks),
        chunks_(chunks) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; ++i) init_barrier(stored_ + 8 * i, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
  }

  // Called by whole warps. `chunk(j)` is the number of the warp's chunk j.
  template <bool Largest, class Chunk>
  __device__ float total(const float (&own)[kChunksOfWarp], Chunk&& chunk) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, turn = turn_ & 1, parity = turn_ >> 1 & 1;
    const uint32_t stored = stored_ + 8 * turn, values = values_ + 4 * kMostChunks * turn;
    ++turn_;
    if (threadIdx.x == 0) arrive_expecting(stored, static_cast<uint32_t>(chunks_) * 4);
#pragma unroll
    for (int j = 0; j < kChunksOfWarp; ++j) {
      const int at = chunk(j);
      if (at >= chunks_) continue;
      const float v = Largest ? warp_max(own[j]) : warp_sum(own[j]);
      if (lane < blocks_) store_counted(lane, values + 4 * at, v, stored);
    }
    wait_barrier(stored, parity);
    float all = 0.0f;
    for (int i = lane; i < chunks_; i += kWarp) {
      const float v = load_shared<float>(values + 4 * i);
      all = Largest ? fmaxf(all, v) : all + v;
    }
    return Largest ? warp_max(all) : warp_sum(all);
  }

 private:
  uint32_t values_, stored_;
  int blocks_, chunks_;
  int turn_ = 0;
};

// Rows are whole units.
template <class T, bool Centred, class Out>
__global__ void __launch_bounds__(kMostThreads, 2)
    sum_normed(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<T> x, NormFactors n, Out to,
               int rows, int blocks, bool accumulate) {
#if __CUDA_ARCH__ >= 900
  __shared__ ClusterTotals::Memory memory;
  const int block = static_cast<int>(blockIdx.x) % blocks, first = static_cast<int>(blockIdx.x) / blocks;
  const int clusters = static_cast<int>(gridDim.x) / blocks, warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int per_row = x.columns / 4;
  ClusterTotals totals(memory, blocks, (per_row + kWarp - 1) / kWarp);
  const auto chunk = [&](int j) { return (j * blocks + block) * warps + warp; };
  // Calls f(j, unit) for this thread's units of a row.
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int j = 0; j < kChunksOfWarp; ++j) {
      if (const int unit = chunk(j) * kWarp + lane; unit < per_row) f(j, unit);
    }
  };
  float4 weight[kChunksOfWarp];
  each([&](int j, int unit) { weight[j] = n.weights(unit); });
  wait_for_earlier();
  const Shot<typename WideRows<T>::Unit> shot(m);
  for (int row = first; row < rows; row += clusters) {
    each([&](int, int unit) { shot.send(row * per_row + unit, x.load(row, 4 * unit)); });
  }
  shot.end_sending();
  const auto columns = static_cast<float>(x.columns);
  for (int row = first; row < rows; row += clusters) {
    float4 v[kChunksOfWarp];
    float own[kChunksOfWarp] = {};
    each([&](int j, int unit) {
      const float4 before = accumulate ? out.load(row, 4 * unit) : float4{};
      const float4 all = shot.add(row * per_row + unit, x.load(row, 4 * unit));
      v[j] = accumulate ? sum(before, all) : all;
      out.store(row, 4 * unit, out.columns, v[j]);
    });
    if constexpr (Centred) {
      each([&](int j, int) { own[j] = sum_of(v[j]); });
      const float mean = totals.total<false>(own, chunk) / columns;
      each([&](int j, int) { v[j] = minus(v[j], mean); });
    }
    each([&](int j, int) { own[j] = squares_of(v[j]); });
    const float scale = rsqrtf(totals.total<false>(own, chunk) / columns + n.eps);
    each([&](int j, int unit) {
      v[j] = times(times(v[j], scale), weight[j]);
      if (Centred && n.bias != nullptr) v[j] = sum(v[j], load_four(n.bias + 4 * unit));
    });
    float inverse = 1.0f;
    if constexpr (Out::kScaled) {
      each([&](int j, int) { own[j] = largest_of(v[j]); });
      inverse = to.begin_row(row, totals.total<true>(own, chunk), block == 0 && threadIdx.x == 0);
    }
    each([&](int j, int unit) { to.put(row, unit, v[j], inverse); });
  }
#endif
}

// The blocks of a cluster and their warps.
struct ClusterShape {
  int64_t blocks = kMostBlocks, warps = 0;

  // As many blocks as can run at once, if they have enough to do.
  ClusterShape(int64_t rows, int64_t chunks) {
    const auto fits = [&](int64_t n) { return chunks <= n * (kMostThreads / kWarp) * kChunksOfWarp; };
    while (blocks > 1 && fits(blocks / 2) && (rows * blocks > kMostMeetingBlocks || chunks < 4 * blocks)) blocks /= 2;
    warps = pieces(chunks, blocks);
    if (warps > kMostThreads / kWarp) warps = pieces(chunks, blocks * kChunksOfWarp);
  }
};

template <class T, bool Centred, class Out>
void launch_normed(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, const NormFactors& factors,
                   const Out& to, bool accumulate) {
  const int64_t rows = x.shape[0];
  const ClusterShape shape(rows, pieces(x.shape[1], kWarpColumns));
  const int64_t clusters = std::min<int64_t>(rows, std::max<int64_t>(1, kMostMeetingBlocks / shape.blocks));
  launch_clusters(l, "sum of ranks and norm", sum_normed<T, Centred, Out>,
                  {.blocks = dim3(static_cast<unsigned>(clusters * shape.blocks)),
                   .cluster = dim3(static_cast<unsigned>(shape.blocks)),
                   .threads = static_cast<unsigned>(shape.warps * kWarp)},
                  m, WideRows<float>(out), WideRows<T>(x), factors, to, static_cast<int>(rows),
                  static_cast<int>(shape.blocks), accumulate);
}

// Launches a kernel whose threads have some units each.
template <class... Parameters, class... Arguments>
void launch_shot(const Launch& l, const char* name, void (*kernel)(Parameters...), int64_t units,
                 Arguments&&... arguments) {
  const int64_t threads = units <= kMostMeetingBlocks * int64_t{128} ? 128 : kMostThreads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(pieces(units, threads), kMostMeetingBlocks));
  launch_pdl(l, name, kernel, dim3(blocks), static_cast<unsigned>(threads), 0, std::forward<Arguments>(arguments)...);
}

template <class T>
void launch_sum(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate) {
  launch_shot(l, "sum of ranks", sum_one_shot<T>, x.shape[0] * pieces(x.shape[1], 4), m, WideRows<float>(out),
              WideRows<T>(x), static_cast<int>(x.shape[0]), accumulate);
}

bool fits_one_shot(const PeerMemory& m, int64_t rows, int64_t columns, DType type) {
  return static_cast<size_t>(rows * pieces(columns, 4) * 4 * type->block_bytes) <= share_of_shot(m.size);
}
bool fits_one_shot(const PeerMemory& m, const Tensor& x) { return fits_one_shot(m, x.shape[0], x.shape[1], x.dtype); }

}  // namespace

bool all_reduce_one_shot(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate) {
  if (!fits_one_shot(m, x)) return false;
  if (x.dtype == &kBFloat16) {
    launch_sum<__nv_bfloat16>(l, m, out, x, accumulate);
  } else {
    launch_sum<float>(l, m, out, x, accumulate);
  }
  return true;
}

bool all_reduce_one_shot(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate,
                         const ops::RowNorm& norm) {
  if (!in_units(out, x, norm) || !fits_one_shot(m, x) || pieces(x.shape[1], kWarpColumns) > kMostChunks) return false;
  if (l.compute_capability < 90) return false;
  with_norm_types(x, norm, [&]<class T, bool Centred, class Out>(T, std::bool_constant<Centred>, const Out& to) {
    launch_normed<T, Centred>(l, m, out, x, NormFactors(norm), to, accumulate);
  });
  return true;
}

bool all_gather_one_shot(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x) {
  const int64_t rows = out.shape[0], widest = pieces(out.shape[1], m.size);
  if (rows == 0 || !fits_one_shot(m, rows, widest, x.dtype)) return false;
  launch_shot(l, "columns of ranks", gather_one_shot, rows * pieces(widest, 4), m, WideRows<float>(out),
              WideRows<float>(x), static_cast<int>(rows), static_cast<int>(widest));
  return true;
}

}  // namespace sluice::cuda
