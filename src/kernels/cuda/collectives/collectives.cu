// The ops between ranks. Sums are added in the order of the ranks, so that all ranks have the same bits.
//
// Small sums are made, and few columns gathered, in one shot (one_shot.cu). The persistent decode kernel exchanges its
// sums by itself. A few words of rank 0 go through inboxes.
//
// Large sums are divided: each rank adds its part of the elements for all, and the others copy the result. Two ranks
// read each other's parts instead, which moves as many bytes. Kernels meet between these phases block by block: block b
// of a rank only reads what the blocks b of the other ranks wrote. At the end they meet again, so that the next kernel
// may overwrite everything.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/collectives/sums_begun.h"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/wide_rows.cuh"
#include "kernels/cuda/grid.h"
#include "parallel/share.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;

template <class Unit>
__device__ Unit* outbox(const PeerMemory& m, int rank) {
  return reinterpret_cast<Unit*>(m.regions[rank] + RegionLayout::kOutbox);
}
__device__ float4* sums(const PeerMemory& m, int rank) {
  return reinterpret_cast<float4*>(m.regions[rank] + RegionLayout::kSums);
}
// Waits until the blocks with this block's number of the ranks first .. first + count - 1 have come here as often. What
// they wrote before is then visible. All threads call it.
__device__ void meet(const PeerMemory& m, int first, int count) {
  __syncthreads();
  const int other = first + static_cast<int>(threadIdx.x);
  if (static_cast<int>(threadIdx.x) < count && other != m.rank) {
    RegionHeader &mine = region_header(m, m.rank), &theirs = region_header(m, other);
    const uint32_t time = ++mine.met[blockIdx.x][other];
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&theirs.arrived[blockIdx.x][m.rank]), "r"(time)
                 : "memory");
    uint32_t seen = 0, looks = 0;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(&mine.arrived[blockIdx.x][other])
                   : "memory");
    } while (static_cast<int32_t>(seen - time) < 0 && !given_up(m, looks));
  }
  __syncthreads();
}

// The rank that adds a unit: a warp's units belong to one rank.
__device__ int adder(unsigned unit, int size) { return static_cast<int>(unit / 32 % static_cast<unsigned>(size)); }

constexpr int kBatch = 4;  // units that a thread loads before it waits for the first one

// Where a thread's units of 4 columns are.
struct Units {
  unsigned per_row, total, step, first;
  __device__ Units(int64_t rows, int columns)
      : per_row(static_cast<unsigned>((columns + 3) / 4)),
        total(static_cast<unsigned>(rows) * per_row),
        step(gridDim.x * kThreads),
        first(blockIdx.x * kThreads + threadIdx.x) {}

  // Calls load(i, unit, row, column) for up to kBatch units, then store(i, unit, row, column) for the same ones, and so
  // on. i counts within the batch.
  template <class Load, class Store>
  __device__ void each(Load&& load, Store&& store) const {
    for (unsigned at = first; at < total; at += kBatch * step) {
      const auto batch = [&](auto&& body) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const unsigned unit = at + static_cast<unsigned>(i) * step;
          if (unit < total) body(i, unit, int64_t{unit / per_row}, static_cast<int>(unit % per_row * 4));
        }
      };
      batch(load), batch(store);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_large(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<T> x, int64_t rows, bool accumulate) {
  using Unit = typename WideRows<T>::Unit;
  const Units units(rows, x.columns);
  const bool divided = m.size > 2;
  const auto put_out = [&](int64_t row, int column, float4 v) {
    out.store(row, column, out.columns, accumulate ? sum(out.load(row, column), v) : v);
  };
  Unit own[kBatch];
  units.each([&](int i, unsigned, int64_t row, int column) { own[i] = x.load(row, column); },
             [&](int i, unsigned unit, int64_t, int) {
               if (!divided || adder(unit, m.size) != m.rank) outbox<Unit>(m, m.rank)[unit] = own[i];
             });
  meet(m, 0, m.size);
  float4 all[kBatch];
  units.each(
      [&](int i, unsigned unit, int64_t row, int column) {
        if (divided && adder(unit, m.size) != m.rank) return;
        for (int rank = 0; rank < m.size; ++rank) {
          const float4 v = to_floats(rank == m.rank ? x.load(row, column) : outbox<Unit>(m, rank)[unit]);
          all[i] = rank == 0 ? v : sum(all[i], v);
        }
      },
      [&](int i, unsigned unit, int64_t row, int column) {
        if (divided && adder(unit, m.size) != m.rank) return;
        if (divided) sums(m, m.rank)[unit] = all[i];
        put_out(row, column, all[i]);
      });
  meet(m, 0, m.size);
  if (!divided) return;
  units.each(
      [&](int i, unsigned unit, int64_t, int) {
        if (adder(unit, m.size) != m.rank) all[i] = sums(m, adder(unit, m.size))[unit];
      },
      [&](int i, unsigned unit, int64_t row, int column) {
        if (adder(unit, m.size) != m.rank) put_out(row, column, all[i]);
      });
  meet(m, 0, m.size);
}

// `widest` is the most columns of a rank; a row of an outbox has as many.
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ PeerMemory m, WideRows<float> out, WideRows<float> x, int64_t rows, int widest) {
  const Units units(rows, widest);
  const auto put_out = [&](int rank, int64_t row, int column, float4 v) {
    const Share of = share_of(out.columns, rank, m.size);
    const auto begin = static_cast<int>(of.begin), count = static_cast<int>(of.count);
    if (column < count) out.store(row, begin + column, begin + count, v);
  };
  float4 v[kBatch];
  units.each([&](int i, unsigned, int64_t row, int column) { v[i] = x.load(row, column); },
             [&](int i, unsigned unit, int64_t row, int column) {
               outbox<float4>(m, m.rank)[unit] = v[i];
               put_out(m.rank, row, column, v[i]);
             });
  meet(m, 0, m.size);
  for (int rank = 0; rank < m.size; ++rank) {
    if (rank == m.rank) continue;
    units.each([&](int i, unsigned unit, int64_t, int) { v[i] = outbox<float4>(m, rank)[unit]; },
               [&](int i, unsigned, int64_t row, int column) { put_out(rank, row, column, v[i]); });
  }
  meet(m, 0, m.size);
}

// The columns for each rank, or of each rank.
struct RankColumns {
  WideRows<float> of[kMostPeers];
};

// An outbox has the columns for rank 0, 1, ... one after another, as whole units.
__global__ void __launch_bounds__(kThreads)
    exchange(const __grid_constant__ PeerMemory m, const __grid_constant__ RankColumns out,
             const __grid_constant__ RankColumns x, int64_t rows) {
  const int columns = x.of[0].columns;
  const Units units(rows, columns);
  float4 v[kBatch];
  for (int rank = 0; rank < m.size; ++rank) {
    float4* shown = outbox<float4>(m, m.rank) + static_cast<unsigned>(rank) * units.total;
    units.each([&](int i, unsigned, int64_t row, int column) { v[i] = x.of[rank].load(row, column); },
               [&](int i, unsigned unit, int64_t row, int column) {
                 if (rank != m.rank) {
                   shown[unit] = v[i];
                 } else {
                   out.of[rank].store(row, column, columns, v[i]);
                 }
               });
  }
  meet(m, 0, m.size);
  for (int rank = 0; rank < m.size; ++rank) {
    if (rank == m.rank) continue;
    const float4* shown = outbox<float4>(m, rank) + static_cast<unsigned>(m.rank) * units.total;
    units.each([&](int i, unsigned unit, int64_t, int) { v[i] = shown[unit]; },
               [&](int i, unsigned, int64_t row, int column) { out.of[rank].store(row, column, columns, v[i]); });
  }
  meet(m, 0, m.size);
}

// Copies 32-bit words of rank `from`. This rank meets the ranks first .. first + count - 1: all ranks, or for a message
// to one rank the other one of the two.
__global__ void __launch_bounds__(kThreads)
    copy_words(const __grid_constant__ PeerMemory m, int from, int first, int count, uint32_t* words, int64_t total) {
  const int64_t step = int64_t{gridDim.x} * kThreads, begin = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  auto* shown = outbox<uint32_t>(m, from);
  if (from == m.rank) {
    for (int64_t i = begin; i < total; i += step) shown[i] = words[i];
  }
  meet(m, first, count);
  if (from != m.rank) {
    for (int64_t i = begin; i < total; i += step) words[i] = shown[i];
  }
  meet(m, first, count);
}

// Copies at most as many words of rank 0 as a block has threads. In a round every rank sends to all others, see
// device/peers.cuh. So the ranks that have nothing to send send their first word.
__global__ void __launch_bounds__(kThreads)
    broadcast_few(const __grid_constant__ PeerMemory m, uint32_t* words, int total) {
  wait_for_earlier();
  const int word = static_cast<int>(threadIdx.x);
  const uint32_t round = *static_cast<volatile uint32_t*>(&region_header(m, m.rank).round) + 1;
  if (word < (m.rank == 0 ? total : 1)) send_value(m, word, __uint_as_float(words[word]), round);
  __syncthreads();  // all have read the round and the words
  for (int rank = 0; rank < m.size; ++rank) {
    if (rank == m.rank || word >= (rank == 0 ? total : 1)) continue;
    const float value = take_value(m, word, rank, round);
    if (rank == 0) words[word] = __float_as_uint(value);
  }
  if (word == 0) region_header(m, m.rank).round = round;
}

unsigned meeting_blocks(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(pieces(items, kThreads), 1, kMostMeetingBlocks));
}

// Calls body(first row, rows) for runs of rows that fit into an outbox.
template <class F>
void each_run(int64_t rows, int64_t columns, F&& body) {
  const int64_t padded = pieces(columns, 4) * 4, most = static_cast<int64_t>(kOutboxFloats) / padded;
  CHECK(most > 0, "rows of {} columns between ranks, at most {}", columns, kOutboxFloats);
  for (int64_t row = 0; row < rows; row += most) body(row, std::min(most, rows - row));
}

// Calls copy_words for pieces that fit into an outbox.
void copy_pieces(const Launch& l, const PeerMemory& m, int from, int first, int count, const Tensor& x) {
  auto* words = x.as<uint32_t>();
  const auto total = static_cast<int64_t>(x.bytes() / sizeof(uint32_t));
  for (int64_t begin = 0; begin < total; begin += static_cast<int64_t>(kOutboxFloats)) {
    const int64_t piece = std::min<int64_t>(kOutboxFloats, total - begin);
    copy_words<<<meeting_blocks(piece), kThreads, 0, l.stream>>>(m, from, first, count, words + begin, piece);
    check_launch("copy between ranks");
  }
}

template <class T>
void sum_runs(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  each_run(rows, columns, [&](int64_t row, int64_t count) {
    sum_large<<<meeting_blocks(count * pieces(columns, 4)), kThreads, 0, l.stream>>>(
        m, WideRows<float>(out.slice_rows(row, count)), WideRows<T>(x.slice_rows(row, count)), count, accumulate);
    check_launch("sum of ranks");
  });
}

}  // namespace

void all_reduce(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate) {
  if (all_reduce_one_shot(l, m, out, x, accumulate)) return;
  if (x.dtype == &kBFloat16) return sum_runs<__nv_bfloat16>(l, m, out, x, accumulate);
  sum_runs<float>(l, m, out, x, accumulate);
}

void all_gather(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x) {
  if (all_gather_one_shot(l, m, out, x)) return;
  const int64_t widest = pieces(out.shape[1], m.size);
  each_run(out.shape[0], widest, [&](int64_t row, int64_t count) {
    gather<<<meeting_blocks(count * pieces(widest, 4)), kThreads, 0, l.stream>>>(
        m, WideRows<float>(out.slice_rows(row, count)), WideRows<float>(x.slice_rows(row, count)), count,
        static_cast<int>(widest));
    check_launch("columns of ranks");
  });
}

void all_to_all(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x) {
  const int64_t columns = x.shape[1] / m.size, most = static_cast<int64_t>(kOutboxFloats) / m.size / 4 * 4;
  for (int64_t first = 0; first < columns; first += most) {
    const int64_t wide = std::min(most, columns - first);
    const auto columns_of = [&](const Tensor& all, int64_t row, int64_t count) {
      RankColumns by_rank;
      for (int rank = 0; rank < m.size; ++rank) {
        by_rank.of[rank] = WideRows<float>(all.slice_rows(row, count).slice_columns(rank * columns + first, wide));
      }
      return by_rank;
    };
    each_run(x.shape[0], pieces(wide, 4) * 4 * m.size, [&](int64_t row, int64_t count) {
      exchange<<<meeting_blocks(count * pieces(wide, 4)), kThreads, 0, l.stream>>>(m, columns_of(out, row, count),
                                                                                   columns_of(x, row, count), count);
      check_launch("columns for ranks");
    });
  }
}

void broadcast(const Launch& l, const PeerMemory& m, const Tensor& x) {
  const auto words = static_cast<int64_t>(x.bytes() / sizeof(uint32_t));
  if (words == 0 || words > kThreads) return copy_pieces(l, m, 0, 0, m.size, x);
  launch_pdl(l, "words of rank 0", broadcast_few, dim3(1), kThreads, 0, m, x.as<uint32_t>(), static_cast<int>(words));
}

void send(const Launch& l, const PeerMemory& m, int rank, const Tensor& x) { copy_pieces(l, m, m.rank, rank, 1, x); }
void receive(const Launch& l, const PeerMemory& m, int rank, const Tensor& x) { copy_pieces(l, m, rank, rank, 1, x); }

}  // namespace sluice::cuda
