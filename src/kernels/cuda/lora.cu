// Low-rank changes by adapters, in two kernels: the inner values of each row, then what they add to its outputs.
//
// bf16 matrices go through the tensor cores, for tiles of 16 rows. Shrink takes one adapter of a tile after the other,
// or where rows are few, each in a block of its own; expand takes all of them together. Rows without the adapter take
// part as zeros. For decode steps both kernels are bound by latency. Therefore blocks of shrink share the inputs of few
// rows, and expand adds up their sums; both load their matrices while the kernel before them ends, and their blocks are
// small and few, so that all of them and the next kernel's can begin. For many rows they are bound by reading x, and by
// reading and writing the outputs. fp32 matrices, and shapes that tensor-core operands do not fit, are multiplied by
// one warp or one thread per number.
//
// Numbers in fp32 become two operands in bf16 that together have 16 bits of them.
#include <type_traits>

#include "kernels/cuda/device/adapter_groups.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

using Bf16 = __nv_bfloat16;
using ops::LoraWeight;

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kRows = 16;                              // of a tile
constexpr int kChunk = 32;                             // inputs that a warp takes at a time
constexpr int64_t kFewRows = LoraWeight::kSummedRows;  // up to so many rows, blocks share adapters and inputs
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

// Without tensor cores. Grid: (pieces of the inner values, rows). A warp makes one. It is the first of `sums` sums; the
// others are zero.
template <class T, class X>
__global__ void __launch_bounds__(kThreads) shrink_each(const __grid_constant__ LoraWeight w, RowsOf<float> inner,
                                                        RowsOf<const X> x, const int32_t* slots, int sums) {
  wait_for_earlier();
  const int64_t row = blockIdx.y, slot = slots[row];
  const int64_t j = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (slot < 0 || j >= inner_of(w)) return;
  const T* a = reinterpret_cast<const T*>(w.a) + (slot * inner_of(w) + j) * w.k;
  const X* from = x[row];
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < w.k; i += kWarp) sum += to_f32(a[i]) * to_f32(from[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp != 0) return;
  inner[row][j] = w.scales[slot * w.parts + j / w.rank] * sum;
  for (int each = 1; each < sums; ++each) inner[each * gridDim.y + row][j] = 0;
}

// Grid: (pieces of the outputs, rows). A thread makes one.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) expand_each(const __grid_constant__ LoraWeight w, RowsOf<Out> out,
                                                        RowsOf<const float> inner, const int32_t* slots, int sums) {
  wait_for_earlier();
  const int64_t row = blockIdx.y, slot = slots[row], o = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (slot < 0 || o >= w.n) return;
  const T* b = reinterpret_cast<const T*>(w.b) + (slot * w.n + o) * w.rank;
  const int64_t from = int64_t{part_of(w, o)} * w.rank;
  float sum = 0;
  for (int j = 0; j < w.rank; ++j) {
    float value = inner[row][from + j];
    for (int each = 1; each < sums; ++each) value += inner[each * gridDim.y + row][from + j];
    sum += to_f32(b[j]) * value;
  }
  Out& to = out[row][o];
  to = from_f32<Out>(to_f32(to) + sum);
}

// The adapters of the tile that begins at this row.
__device__ AdapterGroups groups_of(const int32_t* slots, int64_t first_row, int64_t rows) {
  return {slots + first_row, static_cast<int>(min(rows - first_row, int64_t{kRows}))};
}

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

// Where a kernel may begin: before the kernel ahead of it has ended, if that one cannot write slots and matrices.
class Start {
 public:
  __device__ explicit Start(bool early) : waited_(!early) {
    if (!early) wait_for_earlier();
  }
  // Called by every thread before it reads what earlier kernels wrote, and before it ends.
  __device__ void wait() {
    if (!waited_) wait_for_earlier();
    waited_ = true;
  }

 private:
  bool waited_;
};

// Makes 8 * kTiles inner values of a tile's rows, or their sums over a part of the inputs. `sums` blocks share the
// inputs in chunks of kLoads * kChunk per warp. Warps' sums are added in order. Grid: (blocks of values, each by parts;
// tiles; adapters).
template <class X, int kTiles, int kLoads>
__global__ void __launch_bounds__(kThreads)
    shrink_rows(const __grid_constant__ LoraWeight w, RowsOf<float> inner, RowsOf<const X> x, const int32_t* slots,
                int64_t rows, int sums, bool early) {
  Start start(early);
  __shared__ float warp_sums[kWarps][kTiles][kWarp * 4];
  const int part = static_cast<int>(blockIdx.x) % sums;
  const int first = static_cast<int>(blockIdx.x) / sums * 8 * kTiles;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4, k = static_cast<int>(w.k), values = w.parts * w.rank;
  const int step = sums * kWarps * kLoads * kChunk;
  // A thread's values have one column, so that one scale is enough.
  constexpr int kColumns = 8 * kTiles;
  const int column = static_cast<int>(threadIdx.x) % kColumns, j = min(first + column, values - 1);
  const AdapterGroups groups = groups_of(slots, first_row, rows);
  for (int i = static_cast<int>(blockIdx.z); i < groups.count(); i += static_cast<int>(gridDim.z)) {
    int slot = 0;
    uint32_t members = 0;
    groups.get(i, slot, members);
    const Bf16* a = reinterpret_cast<const Bf16*>(w.a) + int64_t{slot} * values * k;
    const float scale = w.scales[slot * w.parts + j / w.rank];
    const X* low_row = (members >> g & 1) != 0 ? x[first_row + g] : nullptr;
    const X* high_row = (members >> (g + 8) & 1) != 0 ? x[first_row + g + 8] : nullptr;
    float c[kTiles][4] = {};
    for (int begin = (part * kWarps + warp) * kLoads * kChunk; begin < k; begin += step) {
      uint4 weights[kLoads][kTiles];
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const int at = begin + load * kChunk + 8 * t;  // k is a multiple of 8
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int64_t value = min(first + tile * 8 + g, values - 1);
          weights[load][tile] = at < k ? *reinterpret_cast<const uint4*>(a + value * k + at) : uint4{};
        }
      }
      start.wait();
      Eight<X> low[kLoads], high[kLoads];
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const int at = begin + load * kChunk + 8 * t;
        low[load] = low_row != nullptr && at < k ? load_eight(low_row + at) : Eight<X>();
        high[load] = high_row != nullptr && at < k ? load_eight(high_row + at) : Eight<X>();
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(c[tile], low[load].high, high[load].high, weights[load][tile]);
          if constexpr (std::is_same_v<X, float>) {
            multiply(c[tile], low[load].low, high[load].low, weights[load][tile]);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < 4; ++n) warp_sums[warp][tile][lane * 4 + n] = c[tile][n];
    }
    __syncthreads();
    start.wait();
    for (int row = static_cast<int>(threadIdx.x) / kColumns; row < kRows; row += kThreads / kColumns) {
      if ((members >> row & 1) == 0 || first + column >= values) continue;
      const int at = (row % 8 * 4 + column % 8 / 2) * 4 + row / 8 * 2 + column % 2;
      float sum = 0;
#pragma unroll
      for (int each = 0; each < kWarps; ++each) sum += warp_sums[each][column / 8][at];
      inner[part * rows + first_row + row][j] = scale * sum;
    }
    __syncthreads();
  }
  if (blockIdx.z == 0) start.wait();  // the others need not wait if they have nothing to do
}

// Eight outputs of a row, which are next to each other.
template <class Out>
struct Outputs;
template <>
struct Outputs<float> {
  float4 low{}, high{};
  __device__ void load(const float* from) {
    const auto* quads = reinterpret_cast<const float4*>(from);
    low = quads[0], high = quads[1];
  }
  __device__ void store(float* to, const float (&sums)[8]) const {
    auto* quads = reinterpret_cast<float4*>(to);
    quads[0] = {low.x + sums[0], low.y + sums[1], low.z + sums[2], low.w + sums[3]};
    quads[1] = {high.x + sums[4], high.y + sums[5], high.z + sums[6], high.w + sums[7]};
  }
};
template <>
struct Outputs<Bf16> {
  uint4 packed{};
  __device__ void load(const Bf16* from) { packed = *reinterpret_cast<const uint4*>(from); }
  __device__ void store(Bf16* to, const float (&sums)[8]) const {
    const uint32_t before[4] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t after[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&before[i]));
      after[i] = pack2<Bf16>(pair.x + sums[2 * i], pair.y + sums[2 * i + 1]);
    }
    *reinterpret_cast<uint4*>(to) = {after[0], after[1], after[2], after[3]};
  }
};

constexpr int kRankChunk = 16;                  // inner values that an mma takes
static_assert(kRows * kRankChunk == kThreads);  // a thread adds up one
constexpr int kTilesOfWarp = 4;                 // of 8 outputs
constexpr int kOutputsOfWarp = kTilesOfWarp * 8, kOutputsOfBlock = kWarps * kOutputsOfWarp;
// Adds the changes of all adapters to 32 outputs per warp. Columns 2t and 2t + 1 of mma i are outputs 8t + 2i and
// 8t + 2i + 1, so that lane t has 8 outputs that are next to each other. Its four operands of b are also next to each
// other, because the order of inner values is free. The matrices of kAhead adapters are loaded together. Grid: (pieces
// of the outputs, tiles).
template <class Out, int kAhead>
__global__ void __launch_bounds__(kThreads, kAhead > 1 ? 2 : 3)
    expand_rows(const __grid_constant__ LoraWeight w, RowsOf<Out> out, RowsOf<const float> inner, const int32_t* slots,
                int64_t rows, int sums, bool early) {
  constexpr int kMostSums = kAhead > 1 ? LoraWeight::kMostSums : 1;  // many rows have one
  Start start(early);
  __shared__ alignas(16) Bf16 upper[kRows][kRankChunk], rest[kRows][kRankChunk];  // bits of inner values
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = lane / 4, t = lane % 4, outputs = static_cast<int>(w.n);
  const int block_first = static_cast<int>(blockIdx.x) * kOutputsOfBlock, first = block_first + warp * kOutputsOfWarp;
  const int first_part = part_of(w, block_first);
  const int last_part = part_of(w, min(block_first + kOutputsOfBlock, outputs) - 1);
  const bool inside = first + 8 * t < outputs;
  const auto operand = [&](int i) { return first + g / 2 * 8 + i * 2 + g % 2; };  // the output of column g
  for (int64_t first_row = int64_t{blockIdx.y} * kRows; first_row < rows; first_row += int64_t{gridDim.y} * kRows) {
    const AdapterGroups groups = groups_of(slots, first_row, rows);
    const int adapters = groups.count();
    uint2 weights[kAhead][kTilesOfWarp];
    uint32_t members[kAhead];
    const auto load_weights = [&](int begin, int j) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        members[ahead] = 0;
        if (begin + ahead >= adapters) continue;
        int slot = 0;
        groups.get(begin + ahead, slot, members[ahead]);
        const Bf16* b = reinterpret_cast<const Bf16*>(w.b) + int64_t{slot} * outputs * w.rank + j;
#pragma unroll
        for (int i = 0; i < kTilesOfWarp; ++i) {
          const bool used = operand(i) < outputs && j < w.rank;
          weights[ahead][i] = used ? *reinterpret_cast<const uint2*>(b + int64_t{operand(i)} * w.rank) : uint2{};
        }
      }
    };
    load_weights(0, 4 * t);
    start.wait();
    Out* const low_row = inside && groups.has_adapter(g) ? out[first_row + g] + first + 8 * t : nullptr;
    Out* const high_row = inside && groups.has_adapter(g + 8) ? out[first_row + g + 8] + first + 8 * t : nullptr;
    Outputs<Out> low, high;
    if (low_row != nullptr) low.load(low_row);
    if (high_row != nullptr) high.load(high_row);
    if constexpr (kAhead == 1) {  // the outputs of the next tile come to the L2 cache meanwhile
      const int64_t next = first_row + int64_t{gridDim.y} * kRows + g;
      if (inside && next < rows) prefetch_to_l2(out[next] + first + 8 * t);
      if (inside && next + 8 < rows) prefetch_to_l2(out[next + 8] + first + 8 * t);
    }
    float c[kTilesOfWarp][4] = {};
    for (int part = first_part; part <= last_part; ++part) {
      for (int begin = 0; begin < w.rank; begin += kRankChunk) {
        __syncthreads();  // the values before are read
        {
          const int row = static_cast<int>(threadIdx.x) / kRankChunk,
                    value = static_cast<int>(threadIdx.x) % kRankChunk;
          float terms[kMostSums] = {};
          if (groups.has_adapter(row) && begin + value < w.rank) {
#pragma unroll
            for (int each = 0; each < kMostSums; ++each) {
              if (each < sums) terms[each] = inner[each * rows + first_row + row][part * w.rank + begin + value];
            }
          }
          float sum = terms[0];
#pragma unroll
          for (int each = 1; each < kMostSums; ++each) sum += terms[each];
          const Bf16 rounded = __float2bfloat16_rn(sum);
          upper[row][value] = rounded;
          rest[row][value] = __float2bfloat16_rn(sum - __bfloat162float(rounded));
        }
        __syncthreads();
        const auto pair_of = [&](const Bf16(&values)[kRows][kRankChunk], int row) {
          return *reinterpret_cast<const uint2*>(&values[row][4 * t]);
        };
        const uint2 a = pair_of(upper, g), after = pair_of(upper, g + 8);
        const uint2 a_rest = pair_of(rest, g), after_rest = pair_of(rest, g + 8);
        for (int adapter = 0; adapter < adapters; adapter += kAhead) {
          const bool loaded = begin == 0 && adapter == 0 && part == first_part;
          const bool still = w.rank <= kRankChunk && adapters <= kAhead;  // the first ones are there still
          if (!loaded && !still) load_weights(adapter, begin + 4 * t);
#pragma unroll
          for (int ahead = 0; ahead < kAhead; ++ahead) {
            const uint32_t low_mask = 0u - (members[ahead] >> g & 1), high_mask = 0u - (members[ahead] >> (g + 8) & 1);
            if (members[ahead] == 0) continue;
#pragma unroll
            for (int i = 0; i < kTilesOfWarp; ++i) {
              uint2 b = weights[ahead][i];
              if (first_part != last_part && (operand(i) >= outputs || part_of(w, operand(i)) != part)) b = {};
              mma<Bf16>(c[i], a.x & low_mask, after.x & high_mask, a.y & low_mask, after.y & high_mask, b.x, b.y);
              mma<Bf16>(c[i], a_rest.x & low_mask, after_rest.x & high_mask, a_rest.y & low_mask,
                        after_rest.y & high_mask, b.x, b.y);
            }
          }
        }
      }
    }
    float low_changes[8], high_changes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) low_changes[i] = c[i / 2][i % 2], high_changes[i] = c[i / 2][2 + i % 2];
    if (low_row != nullptr) low.store(low_row, low_changes);
    if (high_row != nullptr) high.store(high_row, high_changes);
  }
}

bool aligned(const Tensor& x, size_t bytes) {
  return reinterpret_cast<uintptr_t>(x.data) % bytes == 0 &&
         static_cast<size_t>(x.row_stride) * x.dtype->block_bytes % bytes == 0;
}

// Whether the operands of mma can be loaded as the kernels above do.
bool suits_tensor_cores(const LoraWeight& w, Arithmetic arithmetic) {
  bool suits = arithmetic == Arithmetic::kTensor && w.type == &kBFloat16 && w.k % 8 == 0 && w.rank % 4 == 0;
  for (int part = 0; part < w.parts; ++part) suits &= w.part_ends[part] % 8 == 0;
  return suits;
}

constexpr int kLoadsOfFew = 4;

// The sums that an inner value is kept as: the number of blocks that share the inputs of few rows.
int sums_of(const LoraWeight& w, int64_t rows, Arithmetic arithmetic) {
  constexpr int64_t kInputsOfBlock = kWarps * kLoadsOfFew * kChunk;
  if (rows > kFewRows || !suits_tensor_cores(w, arithmetic)) return 1;
  return static_cast<int>(std::clamp(pieces(w.k, kInputsOfBlock), int64_t{1}, LoraWeight::kMostSums));
}

template <class X>
void shrink_on_tensor_cores(const Launch& l, const ops::LoraShrinkArgs& args, const int32_t* slots, int sums) {
  const LoraWeight& w = *args.weight;
  const int64_t rows = args.x.rows();
  const auto launch = [&](auto kernel, int64_t values, int64_t adapters) {
    const dim3 grid(static_cast<unsigned>(pieces(w.inner(), values) * sums), static_cast<unsigned>(pieces(rows, kRows)),
                    static_cast<unsigned>(adapters));
    launch_pdl(l, "lora_shrink", kernel, grid, kThreads, 0, w, rows_of<float>(args.inner), rows_of<const X>(args.x),
               slots, rows, sums, l.captured && !args.computed);
  };
  if (rows > kFewRows && w.inner() > 16) return launch(shrink_rows<X, 4, 2>, 32, 1);
  if (rows > kFewRows) return launch(shrink_rows<X, 2, kLoadsOfFew>, 16, 1);
  launch(shrink_rows<X, 2, kLoadsOfFew>, 16, std::min({rows, int64_t{w.slots}, int64_t{kRows}}));
}

template <class Out>
void expand_on_tensor_cores(const Launch& l, const ops::LoraExpandArgs& args, const int32_t* slots, int sums) {
  const LoraWeight& w = *args.weight;
  const int64_t rows = args.out.rows(), tiles = pieces(rows, kRows);
  // Of many rows, a block takes several tiles, so that it finds the matrices in the L1 cache.
  const dim3 grid(static_cast<unsigned>(pieces(w.n, kOutputsOfBlock)),
                  static_cast<unsigned>(rows > kFewRows ? pieces(tiles, 4) : tiles));
  const auto launch = [&](auto kernel) {
    launch_pdl(l, "lora_expand", kernel, grid, kThreads, 0, w, rows_of<Out>(args.out), rows_of<const float>(args.inner),
               slots, rows, sums, l.captured && !args.computed);
  };
  // Tiles of many rows mostly have one adapter, and more blocks per SM then read outputs faster.
  rows > kFewRows ? launch(expand_rows<Out, 1>) : launch(expand_rows<Out, 4>);
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

// A thread makes one item.
__global__ void __launch_bounds__(kThreads)
    make_matrix_slots(int32_t* out, int64_t items, const int32_t* slots, int64_t matrices, bool shared,
                      const int32_t* rows, const int32_t* starts) {
  wait_for_earlier();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= items) return;
  int64_t row = i / matrices, matrix = i % matrices;
  if (starts != nullptr) {
    row = rows[i], matrix = -1;
    if (i >= starts[0] && i < starts[matrices]) {
      int64_t end = matrices;  // starts[matrix] <= i < starts[end]
      for (matrix = 0; end - matrix > 1;) {
        const int64_t middle = (matrix + end) / 2;
        (i < starts[middle] ? end : matrix) = middle;
      }
    }
  }
  const int64_t slot = slots[row];
  out[i] = slot < 0 || matrix < 0 ? -1 : static_cast<int32_t>(shared ? slot : slot * matrices + matrix);
}

}  // namespace

void matrix_slots(const Launch& l, const ops::MatrixSlotsArgs& args, const int32_t* slots) {
  const int64_t items = args.out.shape.elements();
  if (items == 0) return;
  const auto list = [](const Tensor& tensor) { return reinterpret_cast<const int32_t*>(tensor.data); };
  launch_pdl(l, "matrix_slots", make_matrix_slots, dim3(static_cast<unsigned>(pieces(items, kThreads))), kThreads, 0,
             reinterpret_cast<int32_t*>(args.out.data), items, slots, args.matrices, args.shared, list(args.rows),
             list(args.starts));
}

void lora_shrink(const Launch& l, const ops::LoraShrinkArgs& all, const int32_t* slots, Arithmetic arithmetic) {
  const LoraWeight& w = *all.weight;
  const bool tensor_cores = suits_tensor_cores(w, arithmetic) && aligned(all.x, 16);
  const int sums = sums_of(w, all.x.rows(), arithmetic);
  each_grid(all.x.rows(), [&](int64_t first, int64_t count) {
    ops::LoraShrinkArgs args = all;
    args.x = all.x.slice_rows(first, count), args.inner = all.inner.slice_rows(first, count);
    with_type(args.x.dtype, [&]<class X>(X) {
      if (tensor_cores) return shrink_on_tensor_cores<X>(l, args, slots + first, sums);
      with_type(w.type, [&]<class T>(T) {
        launch_pdl(l, "lora_shrink", shrink_each<T, X>,
                   dim3(static_cast<unsigned>(pieces(w.inner(), kWarps)), static_cast<unsigned>(count)), kThreads, 0, w,
                   rows_of<float>(args.inner), rows_of<const X>(args.x), slots + first, sums);
      });
    });
  });
}

void lora_expand(const Launch& l, const ops::LoraExpandArgs& all, const int32_t* slots, Arithmetic arithmetic) {
  const LoraWeight& w = *all.weight;
  const bool tensor_cores = suits_tensor_cores(w, arithmetic) && aligned(all.out, 16) && aligned(all.inner, 16);
  const int sums = sums_of(w, all.out.rows(), arithmetic);
  each_grid(all.out.rows(), [&](int64_t first, int64_t count) {
    ops::LoraExpandArgs args = all;
    args.out = all.out.slice_rows(first, count), args.inner = all.inner.slice_rows(first, count);
    with_type(args.out.dtype, [&]<class Out>(Out) {
      if (tensor_cores) return expand_on_tensor_cores<Out>(l, args, slots + first, sums);
      with_type(w.type, [&]<class T>(T) {
        launch_pdl(l, "lora_expand", expand_each<T, Out>,
                   dim3(static_cast<unsigned>(pieces(w.n, kThreads)), static_cast<unsigned>(count)), kThreads, 0, w,
                   rows_of<Out>(args.out), rows_of<const float>(args.inner), slots + first, sums);
      });
    });
  });
}

}  // namespace sluice::cuda
