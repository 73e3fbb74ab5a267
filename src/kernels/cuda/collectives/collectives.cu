// The ops between ranks. Sums are added in the order of the ranks, so that all ranks have the same bits.
//
// Small sums are one exchange: every rank writes its values into the inboxes of all others, each 4 bytes beside a flag
// with the number of the round, as NCCL's protocol LL does. A reader needs no barrier: it waits until both flags of 16
// bytes have the round's number. Inboxes are used in turn. A rank that writes round r + 2 has read all of round r + 1,
// which each other rank wrote after it had read round r.
//
// Large sums are divided: each rank adds its part of the elements for all, and the others copy the result. Kernels
// meet between these phases block by block: block b of a rank only reads what the blocks b of the other ranks wrote.
// At the end they meet again, so that the next kernel may overwrite everything.
#include <algorithm>

#include "kernels/cuda/collectives/peers.h"
#include "kernels/cuda/grid.h"
#include "parallel/share.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSmallThreads = 256;

// A matrix of floats whose rows are read and written in units of 4 columns.
struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
  int columns = 0;
  bool aligned = false;

  explicit Matrix(const Tensor& t)
      : data(t.f32()),
        stride(t.row_stride),
        columns(static_cast<int>(t.shape[1])),
        aligned(reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.row_stride % 4 == 0) {}

  // Columns beyond the last one are zero.
  __device__ float4 load(int64_t row, int column) const {
    const float* at = data + row * stride + column;
    if (aligned && column + 4 <= columns) return *reinterpret_cast<const float4*>(at);
    float4 v = make_float4(0, 0, 0, 0);
    if (column < columns) v.x = at[0];
    if (column + 1 < columns) v.y = at[1];
    if (column + 2 < columns) v.z = at[2];
    if (column + 3 < columns) v.w = at[3];
    return v;
  }
  // Columns beyond `end` are not written.
  __device__ void store(int64_t row, int column, int end, float4 v) const {
    float* at = data + row * stride + column;
    if (aligned && column % 4 == 0 && column + 4 <= end) {
      *reinterpret_cast<float4*>(at) = v;
      return;
    }
    if (column < end) at[0] = v.x;
    if (column + 1 < end) at[1] = v.y;
    if (column + 2 < end) at[2] = v.z;
    if (column + 3 < end) at[3] = v.w;
  }
};

__device__ float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__device__ RegionHeader& header(const PeerMemory& m, int rank) {
  return *reinterpret_cast<RegionHeader*>(m.regions[rank]);
}
__device__ float4* box(const PeerMemory& m, int rank) {
  return reinterpret_cast<float4*>(m.regions[rank] + RegionLayout::kBox);
}
__device__ float4* sums(const PeerMemory& m, int rank) {
  return reinterpret_cast<float4*>(m.regions[rank] + RegionLayout::kSums);
}
__device__ uint4* inbox(const PeerMemory& m, int rank, int from, uint32_t round) {
  return reinterpret_cast<uint4*>(m.regions[rank] + RegionLayout::kInboxes +
                                  ((round & 1) * kMostPeers + static_cast<unsigned>(from)) * kInboxBytes);
}

// Counts the looks of a waiting thread. Returns whether it must give up because a rank was lost.
__device__ bool given_up(const PeerMemory& m, uint32_t& looks) {
  return (++looks & 1023) == 0 && *static_cast<const volatile uint32_t*>(m.ended) != 0;
}

// Waits until the blocks with this block's number of the ranks first .. first + count - 1 have come here as often. What
// they wrote before is then visible. All threads call it.
__device__ void meet(const PeerMemory& m, int first, int count) {
  __syncthreads();
  const int other = first + static_cast<int>(threadIdx.x);
  if (static_cast<int>(threadIdx.x) < count && other != m.rank) {
    RegionHeader &mine = header(m, m.rank), &theirs = header(m, other);
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

// Two floats, each beside the number of its round.
__device__ void put(uint4* at, float2 v, uint32_t round) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(__float_as_uint(v.x)), "r"(round),
               "r"(__float_as_uint(v.y)), "r"(round)
               : "memory");
}
__device__ float2 take(const PeerMemory& m, const uint4* at, uint32_t round) {
  uint4 v;
  uint32_t looks = 0;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
  } while ((v.y != round || v.w != round) && !given_up(m, looks));
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.z));
}

// A thread owns the same pairs of columns in both loops, so that `out` may be `x`.
__global__ void __launch_bounds__(kSmallThreads)
    sum_small(const __grid_constant__ PeerMemory m, float* out, int64_t out_stride, const float* x, int64_t x_stride,
              int rows, int columns, bool accumulate) {
  RegionHeader& mine = header(m, m.rank);
  const uint32_t round = *static_cast<volatile uint32_t*>(&mine.round) + 1;
  const int pairs = (columns + 1) / 2, total = rows * pairs, step = static_cast<int>(gridDim.x) * kSmallThreads;
  const int first = static_cast<int>(blockIdx.x) * kSmallThreads + static_cast<int>(threadIdx.x);
  const auto own = [&](int i) {
    const int row = i / pairs, column = i % pairs * 2;
    const float* at = x + row * x_stride + column;
    return make_float2(at[0], column + 1 < columns ? at[1] : 0.0f);
  };
  for (int i = first; i < total; i += step) {
    const float2 v = own(i);
    for (int other = 0; other < m.size; ++other) {
      if (other != m.rank) put(inbox(m, other, m.rank, round) + i, v, round);
    }
  }
  for (int i = first; i < total; i += step) {
    float2 all = make_float2(0, 0);
    for (int rank = 0; rank < m.size; ++rank) {
      const float2 v = rank == m.rank ? own(i) : take(m, inbox(m, m.rank, rank, round) + i, round);
      all = rank == 0 ? v : make_float2(all.x + v.x, all.y + v.y);
    }
    const int row = i / pairs, column = i % pairs * 2;
    float* at = out + row * out_stride + column;
    at[0] = accumulate ? at[0] + all.x : all.x;
    if (column + 1 < columns) at[1] = accumulate ? at[1] + all.y : all.y;
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&mine.finished, 1u) == gridDim.x - 1) mine.finished = 0, mine.round = round;
}

// The rank that adds a unit: a warp's units belong to one rank.
__device__ int adder(int64_t unit, int size) { return static_cast<int>(unit / 32 % size); }

// Calls body(unit, row, column) for this thread's units of 4 columns.
template <class F>
__device__ void each_unit(int64_t rows, int columns, F&& body) {
  const int64_t per_row = (columns + 3) / 4, total = rows * per_row, step = int64_t{gridDim.x} * kThreads;
  for (int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x; unit < total; unit += step) {
    body(unit, unit / per_row, static_cast<int>(unit % per_row) * 4);
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_large(const __grid_constant__ PeerMemory m, Matrix out, Matrix x, int64_t rows, bool accumulate) {
  const auto put_out = [&](int64_t row, int column, float4 v) {
    out.store(row, column, out.columns, accumulate ? sum(out.load(row, column), v) : v);
  };
  each_unit(rows, x.columns, [&](int64_t unit, int64_t row, int column) {
    if (adder(unit, m.size) != m.rank) box(m, m.rank)[unit] = x.load(row, column);
  });
  meet(m, 0, m.size);
  each_unit(rows, x.columns, [&](int64_t unit, int64_t row, int column) {
    if (adder(unit, m.size) != m.rank) return;
    float4 all = m.rank == 0 ? x.load(row, column) : box(m, 0)[unit];
    for (int rank = 1; rank < m.size; ++rank) {
      all = sum(all, rank == m.rank ? x.load(row, column) : box(m, rank)[unit]);
    }
    sums(m, m.rank)[unit] = all;
    put_out(row, column, all);
  });
  meet(m, 0, m.size);
  each_unit(rows, x.columns, [&](int64_t unit, int64_t row, int column) {
    const int rank = adder(unit, m.size);
    if (rank != m.rank) put_out(row, column, sums(m, rank)[unit]);
  });
  meet(m, 0, m.size);
}

// `widest` is the most columns of a rank; a row of a box has as many.
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ PeerMemory m, Matrix out, Matrix x, int64_t rows, int widest) {
  const auto share = [&](int rank) { return share_of(out.columns, rank, m.size); };
  const auto put_out = [&](int rank, int64_t row, int column, float4 v) {
    const Share of = share(rank);
    const auto begin = static_cast<int>(of.begin), count = static_cast<int>(of.count);
    if (column < count) out.store(row, begin + column, begin + count, v);
  };
  each_unit(rows, widest, [&](int64_t unit, int64_t row, int column) {
    const float4 v = x.load(row, column);
    box(m, m.rank)[unit] = v;
    put_out(m.rank, row, column, v);
  });
  meet(m, 0, m.size);
  for (int rank = 0; rank < m.size; ++rank) {
    if (rank == m.rank) continue;
    each_unit(rows, widest,
              [&](int64_t unit, int64_t row, int column) { put_out(rank, row, column, box(m, rank)[unit]); });
  }
  meet(m, 0, m.size);
}

// Copies 32-bit words of rank `from`. This rank meets the ranks first .. first + count - 1: all ranks, or for a message
// to one rank the other one of the two.
__global__ void __launch_bounds__(kThreads)
    copy_words(const __grid_constant__ PeerMemory m, int from, int first, int count, uint32_t* words, int64_t total) {
  const int64_t step = int64_t{gridDim.x} * kThreads, begin = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  auto* shown = reinterpret_cast<uint32_t*>(box(m, from));
  if (from == m.rank) {
    for (int64_t i = begin; i < total; i += step) shown[i] = words[i];
  }
  meet(m, first, count);
  if (from != m.rank) {
    for (int64_t i = begin; i < total; i += step) words[i] = shown[i];
  }
  meet(m, first, count);
}

unsigned meeting_blocks(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(pieces(items, kThreads), 1, kMostMeetingBlocks));
}

// Calls body(first row, rows) for runs of rows that fit into a box.
template <class F>
void each_run(int64_t rows, int64_t columns, F&& body) {
  const int64_t padded = pieces(columns, 4) * 4, most = static_cast<int64_t>(kBoxFloats) / padded;
  CHECK(most > 0, "rows of {} columns between ranks, at most {}", columns, kBoxFloats);
  for (int64_t row = 0; row < rows; row += most) body(row, std::min(most, rows - row));
}

// Calls copy_words for pieces that fit into a box.
void copy_pieces(const Launch& l, const PeerMemory& m, int from, int first, int count, const Tensor& x) {
  auto* words = x.as<uint32_t>();
  const auto total = static_cast<int64_t>(x.bytes() / sizeof(uint32_t));
  for (int64_t begin = 0; begin < total; begin += static_cast<int64_t>(kBoxFloats)) {
    const int64_t piece = std::min<int64_t>(kBoxFloats, total - begin);
    copy_words<<<meeting_blocks(piece), kThreads, 0, l.stream>>>(m, from, first, count, words + begin, piece);
    check_launch("copy between ranks");
  }
}

}  // namespace

void all_reduce(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x, bool accumulate) {
  const int64_t rows = x.shape[0], columns = x.shape[1], pairs = rows * pieces(columns, 2);
  if (pairs * static_cast<int64_t>(sizeof(uint4)) <= static_cast<int64_t>(kInboxBytes)) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(pieces(pairs, kSmallThreads), kMostMeetingBlocks));
    sum_small<<<blocks, kSmallThreads, 0, l.stream>>>(m, out.f32(), out.row_stride, x.f32(), x.row_stride,
                                                      static_cast<int>(rows), static_cast<int>(columns), accumulate);
    return check_launch("sum of ranks");
  }
  each_run(rows, columns, [&](int64_t row, int64_t count) {
    sum_large<<<meeting_blocks(count * pieces(columns, 4)), kThreads, 0, l.stream>>>(
        m, Matrix(out.slice_rows(row, count)), Matrix(x.slice_rows(row, count)), count, accumulate);
    check_launch("sum of ranks");
  });
}

void all_gather(const Launch& l, const PeerMemory& m, const Tensor& out, const Tensor& x) {
  const int64_t widest = pieces(out.shape[1], m.size);
  each_run(out.shape[0], widest, [&](int64_t row, int64_t count) {
    gather<<<meeting_blocks(count * pieces(widest, 4)), kThreads, 0, l.stream>>>(
        m, Matrix(out.slice_rows(row, count)), Matrix(x.slice_rows(row, count)), count, static_cast<int>(widest));
    check_launch("columns of ranks");
  });
}

void broadcast(const Launch& l, const PeerMemory& m, const Tensor& x) { copy_pieces(l, m, 0, 0, m.size, x); }

void send(const Launch& l, const PeerMemory& m, int rank, const Tensor& x) { copy_pieces(l, m, m.rank, rank, 1, x); }
void receive(const Launch& l, const PeerMemory& m, int rank, const Tensor& x) { copy_pieces(l, m, rank, rank, 1, x); }

}  // namespace sluice::cuda
