// Matmuls of few rows with weights of 16 bits (GEMV and skinny GEMM). Every weight is read once per 8 to 64 rows and
// goes from device memory straight into operand registers. Bound by memory bandwidth. Measured on one H200 (4.64 TB/s):
// bf16 [128256, 4096] with 1 row takes 258.5 us, 4.07 TB/s.
//
// A block of 8 warps owns 16 or 32 outputs. The warps share k, a K-slice of 64 inputs of every output at a time, and
// their sums are added in shared memory in the order of the warps. mma.m16n8k16 takes inputs 2t, 2t + 1, 2t + 8, 2t + 9
// from lane t of four. The order of inputs is free as long as both operands agree. So lane t takes inputs 8t .. 8t + 7
// of 32, one load of 16 bytes, for the weights (the a operand, 16 outputs) and x (the b operand, 8 rows) alike. It
// spends them on two instructions. The first weights are loaded before the kernel that makes x has ended (PDL). The few
// rows of a decode step are then rounded into shared memory once per block.
#include <type_traits>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSlice = static_cast<int>(kSliceElements);  // inputs that a warp takes in one step
constexpr int kMostStaged = 64 << 10;                     // bytes of x in shared memory

// Row tiles are 8 rows of x, output tiles are 16 outputs. Ahead: K-slices of weights in flight per warp. (A class, as
// nvcc 13.0 cannot name values of local types in template arguments.)
template <int Rows, int Outputs, int Ahead>
struct Tiling {
  static constexpr int rows = Rows, outputs = Outputs, ahead = Ahead;
  // Blocks per SM: two where the sums and the weights in flight leave registers for both.
  static constexpr int blocks = 4 * Rows * Outputs + 16 * Outputs * Ahead < 96 ? 2 : 1;
};

template <class T>
struct Arguments {
  const T* weight;
  const void* x;  // [rows, k] fp32, or T with rows of x_stride elements
  float* out;
  const float* bias;
  const int32_t *starts, *x_rows;
  int64_t weight_step, bias_step, x_step, out_step;  // from a matrix to the next one, in elements
  int64_t x_stride, out_stride;
  int rows, n, k, slices, matrices;
  bool accumulate, x_aligned;
  int staged = 0;  // elements from a row of x to the next one in shared memory; 0: x is not staged
};

// Loads eight inputs of a row of x from `at` on as a tensor-core operand, with zeros beyond the end of the row.
template <class T>
__device__ uint4 load_x(const T* row, int at, int, bool) {
  return *reinterpret_cast<const uint4*>(row + at);  // padded with zeros
}
template <class T>
__device__ uint4 load_x(const float* row, int at, int k, bool aligned) {
  float v[8];
  if (aligned && at + 8 <= k) {
    *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(row + at);
    *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(row + at + 4);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = at + i < k ? row[at + i] : 0.0f;
  }
  return {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]), pack2<T>(v[6], v[7])};
}

// A K-slice of weights: for every output tile, rows g and g + 8, each in two halves of 32 inputs.
template <int OutputTiles>
struct Slice {
  uint4 packs[OutputTiles][2][2];
};

template <class T, class X, class Tile>
class Streamer {
 public:
  __device__ Streamer(const Arguments<T>& a, int64_t first_output, int matrix)
      : a_(a), matrix_(matrix), g_(threadIdx.x % 32 / 4), t_(threadIdx.x % 4), warp_(threadIdx.x / 32) {
    const T* weight = a.weight + matrix * a.weight_step;
    for (int m = 0; m < Tile::outputs; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int64_t output = min(first_output + m * 16 + half * 8 + g_, int64_t{a.n} - 1);
        rows_[m][half] = weight + output * a.slices * kSlice + 8 * t_;
      }
    }
  }

  __device__ void load_first() {
#pragma unroll
    for (int i = 0; i < Tile::ahead; ++i) load(ring_[i], warp_ + i * kWarps);
  }

  // sums_ = this warp's share of the inputs times `count` rows. If `x_rows` is not null, it has the offsets of the rows
  // from `x`. The first weights must have been loaded; run() does not load them again.
  __device__ void run(const X* x, int64_t stride, const int32_t* x_rows, int count) {
    for (int r = 0; r < Tile::rows; ++r) {
      const int row = r * 8 + g_;
      x_[r] = row < count ? x + row_of_x(x_rows, row) * stride : nullptr;
    }
#pragma unroll
    for (int m = 0; m < Tile::outputs; ++m) {
#pragma unroll
      for (int r = 0; r < Tile::rows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[m][r][i] = 0.0f;
      }
    }
    for (int slice = warp_; slice < a_.slices; slice += Tile::ahead * kWarps) {
#pragma unroll
      for (int i = 0; i < Tile::ahead; ++i) {
        const int now = slice + i * kWarps;
        if (now < a_.slices) multiply(ring_[i], now);
        load(ring_[i], now + Tile::ahead * kWarps);
      }
    }
  }

  // Adds up the warps' sums and writes them. `shared` holds [kWarps][outputs * 16][rows * 8 + 1] floats.
  __device__ void write(float* shared, int64_t first_output, int first_row, int count) {
    constexpr int kOutputs = Tile::outputs * 16, kStride = Tile::rows * 8 + 1;
#pragma unroll
    for (int m = 0; m < Tile::outputs; ++m) {
#pragma unroll
      for (int r = 0; r < Tile::rows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int output = m * 16 + (i / 2) * 8 + g_, row = r * 8 + 2 * t_ + i % 2;
          shared[(warp_ * kOutputs + output) * kStride + row] = sums_[m][r][i];
        }
      }
    }
    __syncthreads();
    const float* bias = a_.bias != nullptr ? a_.bias + matrix_ * a_.bias_step : nullptr;
    for (int i = threadIdx.x; i < count * kOutputs; i += blockDim.x) {
      const int row = i / kOutputs, output = i % kOutputs;
      const int64_t column = first_output + output;
      if (column >= a_.n) continue;
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += shared[(w * kOutputs + output) * kStride + row];
      if (bias != nullptr) sum += bias[column];
      float& to = a_.out[(first_row + row) * a_.out_stride + matrix_ * a_.out_step + column];
      to = a_.accumulate ? to + sum : sum;
    }
    __syncthreads();
  }

 private:
  __device__ void load(Slice<Tile::outputs>& to, int slice) const {
    if (slice >= a_.slices) return;
#pragma unroll
    for (int m = 0; m < Tile::outputs; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.packs[m][half][0] = load_streaming(rows_[m][half] + int64_t{slice} * kSlice);
        to.packs[m][half][1] = load_streaming(rows_[m][half] + int64_t{slice} * kSlice + 32);
      }
    }
  }

  __device__ void multiply(const Slice<Tile::outputs>& w, int slice) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int r = 0; r < Tile::rows; ++r) {
        uint4 b = {0, 0, 0, 0};
        if (x_[r] != nullptr) b = load_x<T>(x_[r], slice * kSlice + part * 32 + 8 * t_, a_.k, a_.x_aligned);
#pragma unroll
        for (int m = 0; m < Tile::outputs; ++m) {
          const uint4 &low = w.packs[m][0][part], &high = w.packs[m][1][part];
          mma<T>(sums_[m][r], low.x, high.x, low.y, high.y, b.x, b.y);
          mma<T>(sums_[m][r], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
    }
  }

  const Arguments<T>& a_;
  const int matrix_, g_, t_, warp_;
  const T* rows_[Tile::outputs][2];
  const X* x_[Tile::rows];
  float sums_[Tile::outputs][Tile::rows][4];
  Slice<Tile::outputs> ring_[Tile::ahead];
};

// Rounds `count` rows of fp32 from `first` on to T in shared memory, padded with zeros to whole K-slices.
template <class T>
__device__ void stage(T* to, const Arguments<T>& a, int first, int count) {
  const auto* x = static_cast<const float*>(a.x);
  const int packs = a.slices * kSlice / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < count * packs; i += blockDim.x) {
    const int row = i / packs, at = i % packs * 8;
    *reinterpret_cast<uint4*>(to + row * a.staged + at) =
        load_x<T>(x + row_of_x(a.x_rows, first + row) * a.x_stride, at, a.k, a.x_aligned);
  }
  __syncthreads();
}

// Bytes of eight rows of experts in shared memory. Devices of 8.6 and 8.9 have 99 KiB for a block.
int most_staged_of_experts(const Launch& l) { return l.compute_capability >= 90 ? 96 << 10 : kMostStaged; }

// Whether up to eight rows of fp32 are rounded to T in shared memory.
template <class T, class X, class Tile>
inline constexpr bool kStaged = Tile::rows == 1 && std::is_same_v<T, X>;

// Grid: (outputs, matrices). Of experts, only matrices that have rows are taken, in turn; the grid has as many blocks
// as there may be of those.
template <class T, class X, class Tile>
__global__ void __launch_bounds__(kWarps * 32, Tile::blocks) stream(const __grid_constant__ Arguments<T> a) {
  extern __shared__ float shared[];
  const int64_t first_output = int64_t{blockIdx.x} * Tile::outputs * 16;
  RowTile tile{static_cast<int>(blockIdx.y), 0, a.rows, 0};
  if (a.starts != nullptr) {
    wait_for_earlier();
    tile = find_row_tile(a.starts, a.matrices, a.rows, tile.matrix, a.rows);
    if (tile.count == 0) return;
  }
  Streamer<T, X, Tile> streamer(a, first_output, tile.matrix);
  streamer.load_first();
  if (a.starts == nullptr) wait_for_earlier();
  const int32_t* x_rows = a.x_rows != nullptr ? a.x_rows + tile.row : nullptr;
  const X* x = static_cast<const X*>(a.x) + tile.matrix * a.x_step + (x_rows != nullptr ? 0 : tile.row) * a.x_stride;
  for (int row = 0; row < tile.count; row += Tile::rows * 8) {
    const int count = min(Tile::rows * 8, tile.count - row);
    if (row > 0) streamer.load_first();
    if constexpr (kStaged<T, X, Tile>) {
      T* staged = reinterpret_cast<T*>(shared + kWarps * Tile::outputs * 16 * (Tile::rows * 8 + 1));
      stage(staged, a, tile.row + row, count);
      streamer.run(staged, a.staged, nullptr, count);
    } else if (x_rows != nullptr) {
      streamer.run(x, a.x_stride, x_rows + row, count);
    } else {
      streamer.run(x + row * a.x_stride, a.x_stride, nullptr, count);
    }
    streamer.write(shared, first_output, tile.row + row, count);
  }
}

template <class T, class X, class Tile>
void run(const Launch& l, const MatmulProblem& p, const Arguments<T>& a) {
  constexpr int kSums = kWarps * Tile::outputs * 16 * (Tile::rows * 8 + 1) * static_cast<int>(sizeof(float));
  static SharedMemoryLimit limit;
  limit.raise(l.device, stream<T, X, Tile>,
              static_cast<size_t>(kSums + (kStaged<T, X, Tile> ? most_staged_of_experts(l) : 0)));
  const dim3 grid(static_cast<unsigned>(pieces(p.n, Tile::outputs * 16)), static_cast<unsigned>(most_matrices(p)));
  launch_pdl(l, "matmul of few rows", stream<T, X, Tile>, grid, kWarps * 32,
             static_cast<size_t>(kSums) + static_cast<size_t>(std::min(a.rows, 8)) * a.staged * sizeof(T), a);
}

// Two tiles of outputs per warp halve the reads of x; one keeps every SM busy on small matrices.
template <class T, class X, int RowTiles>
void run_rows(const Launch& l, const MatmulProblem& p, const Arguments<T>& a) {
  if (pieces(p.n, 32) * most_matrices(p) >= 2 * l.sm_count) {
    run<T, X, Tiling<RowTiles, 2, 2>>(l, p, a);
  } else {
    run < T, X, Tiling<RowTiles, 1, RowTiles<8 ? 4 : 3>>(l, p, a);
  }
}

template <class T>
void run_type(const Launch& l, const MatmulProblem& p) {
  const int64_t rows = p.x.rows(), slices = padded_k(p.k) / kSlice;
  Arguments<T> a{
      .weight = reinterpret_cast<const T*>(p.weight),
      .x = p.x.data,
      .out = p.out.f32(),
      .bias = p.bias,
      .starts = p.starts,
      .x_rows = p.x_rows,
      .weight_step = p.weight_rows * slices * kSlice,
      .bias_step = p.bias_step,
      .x_step = p.x_columns,
      .out_step = p.out_columns,
      .x_stride = p.x.row_stride,
      .out_stride = p.out.row_stride,
      .rows = static_cast<int>(rows),
      .n = static_cast<int>(p.n),
      .k = static_cast<int>(p.k),
      .slices = static_cast<int>(slices),
      .matrices = p.matrices,
      .accumulate = p.accumulate,
      .x_aligned = reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 && p.x.row_stride % 4 == 0 && p.x_columns % 4 == 0};
  // A few rows of x in shared memory, padded so that they lie in different banks.
  const int64_t staged = slices * kSlice + 8;
  if (p.starts == nullptr && p.matrices == 1 && rows <= 8 && rows * staged * int64_t{sizeof(T)} <= kMostStaged) {
    a.staged = static_cast<int>(staged);
    return run_rows<T, T, 1>(l, p, a);
  }
  // The number of rows that a matrix is likely to have.
  const int64_t likely = p.starts != nullptr ? pieces(2 * rows, p.matrices) : rows;
  if (p.starts != nullptr && likely <= 8 && 8 * staged * int64_t{sizeof(T)} <= most_staged_of_experts(l)) {
    a.staged = static_cast<int>(staged);
    return run_rows<T, T, 1>(l, p, a);
  }
  if (likely <= 8 || p.x_columns != 0) return run_rows<T, float, 1>(l, p, a);
  round_rows(l, l.workspace, p.type, p.x, p.x_rows);
  a.x = l.workspace, a.x_rows = nullptr;
  a.x_stride = slices * kSlice;
  if (likely <= 16) return run_rows<T, T, 2>(l, p, a);
  if (likely <= 32) return run_rows<T, T, 4>(l, p, a);
  run_rows<T, T, 8>(l, p, a);
}

// A thread rounds eight elements at a time, or copies them.
template <class T, class X>
__global__ void round_kernel(T* to, const X* from, const int32_t* x_rows, int rows, int k, int packs, int64_t stride,
                             bool aligned) {
  wait_for_earlier();
  const int64_t count = int64_t{rows} * packs, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto row = static_cast<int>(i / packs), pack = static_cast<int>(i % packs);
    const X* x = from + row_of_x(x_rows, row) * stride;
    if constexpr (std::is_same_v<X, T>) {
      reinterpret_cast<uint4*>(to)[i] = *reinterpret_cast<const uint4*>(x + pack * 8);
    } else {
      reinterpret_cast<uint4*>(to)[i] = load_x<T>(x, pack * 8, k, aligned);
    }
  }
}

}  // namespace

void round_rows(const Launch& l, std::byte* to, DType type, const Tensor& x, const int32_t* x_rows) {
  const int64_t rows = x.rows(), k = x.shape[1], padded = padded_k(k);
  CHECK(static_cast<size_t>(rows * padded) * 2 <= l.workspace_bytes,
        "rounding rows: a workspace of {} bytes is too small for {} rows of {}", l.workspace_bytes, rows, k);
  constexpr int kThreads = 256, kPack = 8;
  const int64_t packs = padded / kPack;
  const bool copies = x.dtype == type,
             aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row_stride % (copies ? kPack : 4) == 0;
  CHECK(!copies || (aligned && k == padded), "rows of {} {} cannot be copied", k, type->name);
  const auto launch = [&]<class T, class X>(T* out, const X* from) {
    launch_pdl(l, "round_rows", round_kernel<T, X>, dim3(blocks_for(l, rows * packs, kThreads)), kThreads, 0, out, from,
               x_rows, static_cast<int>(rows), static_cast<int>(k), static_cast<int>(packs), x.row_stride, aligned);
  };
  const auto round = [&]<class T>(T* out) {
    if (copies) return launch(out, x.as<const T>());
    launch(out, static_cast<const float*>(x.f32()));
  };
  if (type == &kBFloat16) return round(reinterpret_cast<__nv_bfloat16*>(to));
  CHECK(type == &kFloat16, "rounding rows to {} is not supported (expected one of: bfloat16, float16)", type->name);
  round(reinterpret_cast<__half*>(to));
}

void matmul_streamed(const Launch& l, const MatmulProblem& p) {
  if (p.x.rows() == 0) return;
  if (p.type == &kBFloat16) return run_type<__nv_bfloat16>(l, p);
  CHECK(p.type == &kFloat16, "matmul: weights of {} are not supported", p.type->name);
  run_type<__half>(l, p);
}

}  // namespace sluice::cuda
