// Low-rank changes by adapters, in two kernels: the inner values of each row, then what they add to its outputs.
//
// bf16 matrices go through the tensor cores. A block takes 16 rows, and one adapter of theirs after the other; rows
// without the adapter take part as zeros and are not written. Where rows are few, the adapters of the 16 rows are
// spread over blocks, and a cluster of blocks shares the inputs. For decode steps both kernels are bound by latency,
// for many rows by reading x and by reading and writing the outputs. fp32 matrices, and shapes that tensor-core
// operands do not fit, are multiplied by one warp or one thread per number.
//
// Numbers in fp32 become two operands in bf16 that together have 16 bits of them.
#include <type_traits>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

using Bf16 = __nv_bfloat16;
using ops::LoraWeight;

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kRows = 16;      // of a block, with tensor cores
constexpr int kChunk = 32;     // inputs that a warp takes at a time
constexpr int kFewRows = 256;  // up to so many rows, adapters are spread over blocks
constexpr int kMostGridY = 65535;

template <class T>
struct RowsOf {
  T* data;
  int64_t stride;
  __device__ T* operator[](int64_t row) const { return data + row * stride; }
};
template <class T>
RowsOf<T> rows_of(const Tensor& tensor) {
  return {reinterpret_cast<T*>(tensor.data), tensor.row_stride};
}

__device__ float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ int64_t inner_of(const LoraWeight& w) { return int64_t{w.parts} * w.rank; }

__device__ int part_of(const LoraWeight& w, int64_t output) {
  int part = 0;
  while (output >= w.part_ends[part]) ++part;
  return part;
}

// Without tensor cores. Grid: (pieces of the inner values, rows). A warp makes one.
template <class T, class X>
__global__ void __launch_bounds__(kThreads)
    shrink_each(const __grid_constant__ LoraWeight w, RowsOf<float> inner, RowsOf<const X> x, const int32_t* slots) {
  wait_for_earlier();
  const int64_t row = blockIdx.y, slot = slots[row];
  const int64_t j = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (slot < 0 || j >= inner_of(w)) return;
  const T* a = reinterpret_cast<const T*>(w.a) + (slot * inner_of(w) + j) * w.k;
  const X* from = x[row];
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < w.k; i += kWarp) sum += to_f32(a[i]) * to_f32(from[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) inner[row][j] = w.scales[slot * w.parts + j / w.rank] * sum;
}

// Grid: (pieces of the outputs, rows). A thread makes one.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) expand_each(const __grid_constant__ LoraWeight w, RowsOf<Out> out,
                                                        RowsOf<const float> inner, const int32_t* slots) {
  wait_for_earlier();
  const int64_t row = blockIdx.y, slot = slots[row], o = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot < 0 || o >= w.n) return;
  const T* b = reinterpret_cast<const T*>(w.b) + (slot * w.n + o) * w.rank;
  const float* from = inner[row] + int64_t{part_of(w, o)} * w.rank;
  float sum = 0;
  for (int j = 0; j < w.rank; ++j) sum += to_f32(b[j]) * from[j];
  Out& to = out[row][o];
  to = from_f32<Out>(to_f32(to) + sum);
}

// The adapters of up to 16 rows.
class Groups {
 public:
  // Called by whole warps.
  __device__ Groups(const int32_t* slots, int64_t rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    slot_ = lane < rows ? slots[lane] : -1;
    same_ = __match_any_sync(~0u, slot_);
    first_ = __ballot_sync(~0u, slot_ >= 0 && __ffs(static_cast<int>(same_)) - 1 == lane);
  }
  __device__ int count() const { return __popc(first_); }
  // The i-th adapter's slot and, as bits, its rows.
  __device__ void get(int i, int64_t& slot, uint32_t& rows) const {
    uint32_t rest = first_;
    for (int before = 0; before < i; ++before) rest &= rest - 1;
    const int lane = __ffs(static_cast<int>(rest)) - 1;
    slot = __shfl_sync(~0u, slot_, lane);
    rows = __shfl_sync(~0u, same_, lane);
  }

 private:
  int slot_;
  uint32_t same_, first_;
};

// Splits two numbers into operands of mma.
__device__ void split(float2 v, uint32_t& high, uint32_t& low) {
  high = pack2<Bf16>(v.x, v.y);
  const float2 rounded = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&high));
  low = pack2<Bf16>(v.x - rounded.x, v.y - rounded.y);
}

// Eight inputs as operands of mma; `low` only for fp32.
template <class X>
struct Eight {
  uint4 high{}, low{};
};
__device__ Eight<Bf16> load_eight(const Bf16* from) { return {*reinterpret_cast<const uint4*>(from)}; }
__device__ Eight<float> load_eight(const float* from) {
  const auto* quads = reinterpret_cast<const float4*>(from);
  const float4 a = quads[0], b = quads[1];
  Eight<float> eight;
  split({a.x, a.y}, eight.high.x, eight.low.x), split({a.z, a.w}, eight.high.y, eight.low.y);
  split({b.x, b.y}, eight.high.z, eight.low.z), split({b.z, b.w}, eight.high.w, eight.low.w);
  return eight;
}

// c[16, 8] += x[16, 32] a[8, 32]^T, where lane t has inputs 8t .. 8t + 7 of both. The order of inputs is free as long
// as the operands agree (see matmul/stream.cu).
__device__ void multiply(float (&c)[4], const uint4& row, const uint4& row_after, const uint4& a) {
  mma<Bf16>(c, row.x, row_after.x, row.y, row_after.y, a.x, a.y);
  mma<Bf16>(c, row.z, row_after.z, row.w, row_after.w, a.z, a.w);
}

constexpr int kSharers = kMostClusterBlocks;  // blocks of a cluster

// Makes 8 * kTiles inner values from `first` on, of 16 rows. The warps of `blocks` blocks share the inputs, and their
// sums are added in the order of the warps. Grid: (.., 16 rows each, adapters).
template <class X, int kTiles>
__device__ void shrink_tile(const LoraWeight& w, RowsOf<float> inner, RowsOf<const X> x, const int32_t* slots,
                            int64_t rows, int64_t first, int block, int blocks) {
  constexpr int kAhead = 2;
  __shared__ float sums[kWarps][kTiles][kWarp * 4];
  __shared__ alignas(16) float block_sums[kTiles * kWarp * 4];
  const int64_t first_row = int64_t{blockIdx.y} * kRows, values = inner_of(w);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int64_t sharers = int64_t{blocks} * kWarps;  // warps
  const Groups groups(slots + first_row, min(rows - first_row, int64_t{kRows}));
  for (int i = static_cast<int>(blockIdx.z); i < groups.count(); i += static_cast<int>(gridDim.z)) {
    int64_t slot = 0;
    uint32_t members = 0;
    groups.get(i, slot, members);
    const X* row = (members >> g & 1) != 0 ? x[first_row + g] : nullptr;
    const X* row_after = (members >> (g + 8) & 1) != 0 ? x[first_row + g + 8] : nullptr;
    const Bf16* a[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t j = min(first + tile * 8 + g, values - 1);
      a[tile] = reinterpret_cast<const Bf16*>(w.a) + (slot * values + j) * w.k;
    }
    float c[kTiles][4] = {};
    for (int64_t begin = (int64_t{block} * kWarps + warp) * kChunk; begin < w.k; begin += sharers * kChunk * kAhead) {
      Eight<X> here[kAhead], after[kAhead];
      uint4 weights[kAhead][kTiles];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int64_t at = begin + ahead * sharers * kChunk + 8 * t;
        const bool inside = at < w.k;  // k is a multiple of 8
        here[ahead] = inside && row != nullptr ? load_eight(row + at) : Eight<X>();
        after[ahead] = inside && row_after != nullptr ? load_eight(row_after + at) : Eight<X>();
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          weights[ahead][tile] = inside ? *reinterpret_cast<const uint4*>(a[tile] + at) : uint4{};
        }
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(c[tile], here[ahead].high, after[ahead].high, weights[ahead][tile]);
          if constexpr (std::is_same_v<X, float>) {
            multiply(c[tile], here[ahead].low, after[ahead].low, weights[ahead][tile]);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sums[warp][tile][lane * 4 + n] = c[tile][n];
    }
    __syncthreads();
    const auto write = [&](int at, float sum) {
      const int tile = at / (kWarp * 4), of = at % (kWarp * 4), n = of % 4;
      const int member = of / 16 + n / 2 * 8, column = of / 4 % 4 * 2 + n % 2;
      const int64_t j = first + tile * 8 + column;
      if ((members >> member & 1) == 0 || j >= values) return;
      inner[first_row + member][j] = w.scales[slot * w.parts + j / w.rank] * sum;
    };
    for (int at = static_cast<int>(threadIdx.x); at < kTiles * kWarp * 4; at += kThreads) {
      float sum = 0;
      for (int each = 0; each < kWarps; ++each) sum += (&sums[each][0][0])[at];
      if (blocks == 1) {
        write(at, sum);
      } else {
        block_sums[at] = sum;
      }
    }
    if (blocks == 1) {
      __syncthreads();
      continue;
    }
    sync_cluster();
    const int quad = static_cast<int>(threadIdx.x);
    if (block == 0 && quad < kTiles * kWarp) {
      float4 all{};
      for (int each = 0; each < blocks; ++each) {
        const float4 some = load_shared_of(each, shared_address(block_sums + quad * 4));
        all = {all.x + some.x, all.y + some.y, all.z + some.z, all.w + some.w};
      }
      write(quad * 4, all.x), write(quad * 4 + 1, all.y), write(quad * 4 + 2, all.z), write(quad * 4 + 3, all.w);
    }
    sync_cluster();
  }
}

template <class X, int kTiles>
__global__ void __launch_bounds__(kThreads) shrink_rows(const __grid_constant__ LoraWeight w, RowsOf<float> inner,
                                                        RowsOf<const X> x, const int32_t* slots, int64_t rows) {
  wait_for_earlier();
  shrink_tile<X, kTiles>(w, inner, x, slots, rows, int64_t{blockIdx.x} * 8 * kTiles, 0, 1);
}

template <class X>
__global__ void __cluster_dims__(kSharers, 1, 1) __launch_bounds__(kThreads)
    shrink_few_rows(const __grid_constant__ LoraWeight w, RowsOf<float> inner, RowsOf<const X> x, const int32_t* slots,
                    int64_t rows) {
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x) % kSharers;
  shrink_tile<X, 1>(w, inner, x, slots, rows, int64_t{blockIdx.x} / kSharers * 8, block, kSharers);
}

__device__ void add_two(float* to, float a, float b) {
  float2& both = *reinterpret_cast<float2*>(to);
  both = {both.x + a, both.y + b};
}
__device__ void add_two(Bf16* to, float a, float b) {
  __nv_bfloat162& both = *reinterpret_cast<__nv_bfloat162*>(to);
  const float2 before = __bfloat1622float2(both);
  both = __floats2bfloat162_rn(before.x + a, before.y + b);
}

constexpr int kOutputsOfWarp = 32, kOutputsOfBlock = kWarps * kOutputsOfWarp;

// Grid: (pieces of the outputs, 16 rows each, adapters). A warp makes 32 outputs, 8 at a time.
template <class Out>
__global__ void __launch_bounds__(kThreads) expand_rows(const __grid_constant__ LoraWeight w, RowsOf<Out> out,
                                                        RowsOf<const float> inner, const int32_t* slots, int64_t rows) {
  wait_for_earlier();
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4;
  const int64_t first = int64_t{blockIdx.x} * kOutputsOfBlock + warp * kOutputsOfWarp;
  const Groups groups(slots + first_row, min(rows - first_row, int64_t{kRows}));
  for (int i = static_cast<int>(blockIdx.z); i < groups.count(); i += static_cast<int>(gridDim.z)) {
    int64_t slot = 0;
    uint32_t members = 0;
    groups.get(i, slot, members);
    const bool has_low = (members >> g & 1) != 0, has_high = (members >> (g + 8) & 1) != 0;
#pragma unroll
    for (int tile = 0; tile < kOutputsOfWarp / 8; ++tile) {
      const int64_t o = first + tile * 8;
      if (o >= w.n) continue;
      const int64_t from = int64_t{part_of(w, o)} * w.rank;
      const Bf16* b = reinterpret_cast<const Bf16*>(w.b) + (slot * w.n + o + g) * w.rank;
      float c[4] = {};
      for (int begin = 0; begin < w.rank; begin += 16) {
        uint32_t high[4], low[4], weights[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = begin + half * 8 + 2 * t;
          const bool inside = j < w.rank;  // the rank is even
          const auto load = [&](bool has, int64_t row) {
            return inside && has ? *reinterpret_cast<const float2*>(inner[row] + from + j) : float2{};
          };
          split(load(has_low, first_row + g), high[half * 2], low[half * 2]);
          split(load(has_high, first_row + g + 8), high[half * 2 + 1], low[half * 2 + 1]);
          weights[half] = inside ? *reinterpret_cast<const uint32_t*>(b + j) : 0;
        }
        mma<Bf16>(c, high[0], high[1], high[2], high[3], weights[0], weights[1]);
        mma<Bf16>(c, low[0], low[1], low[2], low[3], weights[0], weights[1]);
      }
      if (has_low) add_two(out[first_row + g] + o + 2 * t, c[0], c[1]);
      if (has_high) add_two(out[first_row + g + 8] + o + 2 * t, c[2], c[3]);
    }
  }
}

bool aligned(const Tensor& x, size_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 &&
         static_cast<size_t>(x.row_stride) * x.dtype->block_bytes % bytes == 0;
}

// Whether the operands of mma can be loaded as the kernels above do.
bool suits_tensor_cores(const LoraWeight& w, Arithmetic arithmetic) {
  bool suits = arithmetic == Arithmetic::kTensor && w.type == &kBFloat16 && w.k % 8 == 0 && w.rank % 2 == 0;
  for (int part = 0; part < w.parts; ++part) suits &= w.part_ends[part] % 8 == 0;
  return suits;
}

unsigned most_adapters(const LoraWeight& w, int64_t rows) {  // of 16 rows
  return static_cast<unsigned>(std::min({rows, int64_t{w.slots}, int64_t{kRows}}));
}

template <class X>
void shrink_on_tensor_cores(const Launch& l, const ops::LoraShrinkArgs& args, const int32_t* slots) {
  const LoraWeight& w = *args.weight;
  const int64_t rows = args.x.rows();
  const auto launch = [&](auto kernel, int64_t columns, unsigned adapters) {
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(pieces(rows, kRows)), adapters);
    launch_pdl(l, "lora_shrink", kernel, grid, kThreads, 0, w, rows_of<float>(args.inner), rows_of<const X>(args.x),
               slots, rows);
  };
  if (rows > kFewRows) return launch(shrink_rows<X, 4>, pieces(w.inner(), 32), 1);
  if (l.compute_capability < 90) return launch(shrink_rows<X, 1>, pieces(w.inner(), 8), most_adapters(w, rows));
  launch(shrink_few_rows<X>, pieces(w.inner(), 8) * kSharers, most_adapters(w, rows));
}

template <class Out>
void expand_on_tensor_cores(const Launch& l, const ops::LoraExpandArgs& args, const int32_t* slots) {
  const LoraWeight& w = *args.weight;
  const int64_t rows = args.out.rows();
  const auto columns = static_cast<unsigned>(pieces(w.n, kOutputsOfBlock));
  const auto tiles = static_cast<unsigned>(pieces(rows, kRows));
  const unsigned fill = static_cast<unsigned>(l.sm_count) * 16 / (columns * tiles);  // adapters to keep the SMs busy
  const unsigned adapters = std::clamp(fill, 1u, most_adapters(w, rows));
  launch_pdl(l, "lora_expand", expand_rows<Out>, dim3(columns, tiles, adapters), kThreads, 0, w, rows_of<Out>(args.out),
             rows_of<const float>(args.inner), slots, rows);
}

// Calls f(T()) for the type, which is fp32 or bf16.
template <class F>
void with_type(DType type, F&& f) {
  if (type == &kBFloat16) return f(Bf16());
  f(float());
}

// Calls f(first, count) for pieces of the rows that fit a grid.
template <class F>
void each_grid(int64_t rows, F&& f) {
  for (int64_t first = 0; first < rows; first += kMostGridY) f(first, std::min<int64_t>(kMostGridY, rows - first));
}

}  // namespace

void lora_shrink(const Launch& l, const ops::LoraShrinkArgs& all, const int32_t* slots, Arithmetic arithmetic) {
  const LoraWeight& w = *all.weight;
  const bool tensor_cores = suits_tensor_cores(w, arithmetic) && aligned(all.x, 16);
  each_grid(all.x.rows(), [&](int64_t first, int64_t count) {
    ops::LoraShrinkArgs args = all;
    args.x = all.x.slice_rows(first, count), args.inner = all.inner.slice_rows(first, count);
    with_type(args.x.dtype, [&]<class X>(X) {
      if (tensor_cores) return shrink_on_tensor_cores<X>(l, args, slots + first);
      with_type(w.type, [&]<class T>(T) {
        launch_pdl(l, "lora_shrink", shrink_each<T, X>,
                   dim3(static_cast<unsigned>(pieces(w.inner(), kWarps)), static_cast<unsigned>(count)), kThreads, 0, w,
                   rows_of<float>(args.inner), rows_of<const X>(args.x), slots + first);
      });
    });
  });
}

void lora_expand(const Launch& l, const ops::LoraExpandArgs& all, const int32_t* slots, Arithmetic arithmetic) {
  const LoraWeight& w = *all.weight;
  const bool tensor_cores = suits_tensor_cores(w, arithmetic) && aligned(all.out, 8) && aligned(all.inner, 8);
  each_grid(all.out.rows(), [&](int64_t first, int64_t count) {
    ops::LoraExpandArgs args = all;
    args.out = all.out.slice_rows(first, count), args.inner = all.inner.slice_rows(first, count);
    with_type(args.out.dtype, [&]<class Out>(Out) {
      if (tensor_cores) return expand_on_tensor_cores<Out>(l, args, slots + first);
      with_type(w.type, [&]<class T>(T) {
        launch_pdl(l, "lora_expand", expand_each<T, Out>,
                   dim3(static_cast<unsigned>(pieces(w.n, kThreads)), static_cast<unsigned>(count)), kThreads, 0, w,
                   rows_of<Out>(args.out), rows_of<const float>(args.inner), slots + first);
      });
    });
  });
}

}  // namespace sluice::cuda
