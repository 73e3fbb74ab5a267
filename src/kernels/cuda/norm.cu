// RMSNorm, LayerNorm and related ops. One block per vector. The vector stays in registers as far as there is room; the
// rest of longer ones is read again. Bound by memory traffic: x is read once and out is written once. Sums run over
// lanes, then warps, in a fixed order.
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_stream.cuh"
#include "kernels/cuda/device/rows_out.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kHeld = 8;  // elements of a thread in registers

struct Vectors {
  float* out;
  const float* x;
  int64_t columns, groups, out_stride, x_stride;
};

// Calls f(i, value) for this thread's elements, which are in `held` if the vector fits.
template <class F>
__device__ void each_element(const Vectors& v, const float* x, const float (&held)[kHeld], F&& f) {
  if (v.columns <= int64_t{kHeld} * blockDim.x) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = threadIdx.x + int64_t{j} * blockDim.x;
      if (i < v.columns) f(i, held[j]);
    }
  } else {
    for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) f(i, x[i]);
  }
}

// Vectors that are read and written four elements at a time, which takes half the time of one at a time.
constexpr int kHeldQuads = 4;  // quads of a thread in registers

struct QuadNorm {
  const float *x, *weight, *bias;
  int64_t x_stride;
  int quads, groups;
  float eps, weight_offset;

  __device__ float4 factor(int i) const {
    if (weight == nullptr) return {1.0f, 1.0f, 1.0f, 1.0f};
    const float4 w = load_four(weight + 4 * i);
    return {w.x + weight_offset, w.y + weight_offset, w.z + weight_offset, w.w + weight_offset};
  }
};

__device__ inline float sum_of(const float4& v) { return (v.x + v.y) + (v.z + v.w); }
__device__ inline float4 minus(const float4& v, float mean) { return {v.x - mean, v.y - mean, v.z - mean, v.w - mean}; }

template <bool Centred, class Out>
__global__ void normalize_quads(QuadNorm n, Out out) {
  __shared__ float scratch[kWarp + 1];
  const int row = blockIdx.x / n.groups, group = blockIdx.x % n.groups;
  const float* x = n.x + row * n.x_stride + int64_t{group} * n.quads * 4;
  float4 held[kHeldQuads], factor[kHeldQuads];
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {  // loaded with the first loads, not after the sum
    const int i = threadIdx.x + j * blockDim.x;
    if (i < n.quads) factor[j] = n.factor(i);
  }
  wait_for_earlier();
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < n.quads) held[j] = load_four(x + 4 * i);
  }
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      const int i = threadIdx.x + j * blockDim.x;
      if (i < n.quads) f(i, held[j], factor[j]);
    }
    for (int i = threadIdx.x + kHeldQuads * blockDim.x; i < n.quads; i += blockDim.x) {
      f(i, load_four(x + 4 * i), n.factor(i));
    }
  };
  const float columns = 4.0f * static_cast<float>(n.quads);
  float mean = 0.0f;
  if constexpr (Centred) {
    float sum = 0.0f;
    each([&](int, const float4& v, const float4&) { sum += sum_of(v); });
    mean = block_sum(sum, scratch) / columns;
  }
  float squares = 0.0f;
  each([&](int, const float4& v, const float4&) {
    const float4 d = minus(v, mean);
    squares += (d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w);
  });
  const float scale = rsqrtf(block_sum(squares, scratch) / columns + n.eps);
  const auto result = [&](int i, const float4& v, const float4& w) {
    const float4 d = minus(v, mean);
    float4 y = {d.x * scale * w.x, d.y * scale * w.y, d.z * scale * w.z, d.w * scale * w.w};
    if (Centred && n.bias != nullptr) {
      const float4 b = load_four(n.bias + 4 * i);
      y = {y.x + b.x, y.y + b.y, y.z + b.z, y.w + b.w};
    }
    return y;
  };
  float inverse = 1.0f;
  if constexpr (Out::kScaled) {
    float largest = 0.0f;
    each([&](int i, const float4& v, const float4& w) { largest = fmaxf(largest, largest_of(result(i, v, w))); });
    inverse = out.begin_row(row, block_max(largest, scratch), threadIdx.x == 0);
  }
  each([&](int i, const float4& v, const float4& w) {
    out.put(row, int64_t{group} * n.quads + i, result(i, v, w), inverse);
  });
}

// RMSNorm of many rows, streamed, with weights in registers.
template <class Out>
__global__ void __launch_bounds__(1024) normalize_stream(QuadNorm n, Out out, int rows) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint4 memory[];
  __shared__ SumAndLargest scratch[2][kWarp];
  float4 factor[kHeldQuads];
#pragma unroll
  for (int j = 0; j < kHeldQuads; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    factor[j] = i < n.quads ? n.factor(i) : float4{};
  }
  RowStream stream(memory, n.x, n.x_stride * 4, n.quads * 16, rows);
  int turn = 0;
  stream.each<float>([&](int row, const float* x) {
    float4 held[kHeldQuads];
    SumAndLargest own{0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      const int i = threadIdx.x + j * blockDim.x;
      const float4 v = i < n.quads ? load_four(x + 4 * i) : float4{}, w = factor[j];
      own.sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
      held[j] = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
      if constexpr (Out::kScaled) own.largest = fmaxf(own.largest, largest_of(held[j]));
    }
    own = block_sum_and_max(own, scratch[turn]);
    turn ^= 1;
    const float scale = rsqrtf(own.sum / (4.0f * static_cast<float>(n.quads)) + n.eps);
    float inverse = 1.0f;
    if constexpr (Out::kScaled) inverse = out.begin_row(row, own.largest * scale, threadIdx.x == 0);
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      const int i = threadIdx.x + j * blockDim.x;
      const float4 v = held[j];
      if (i < n.quads) out.put(row, i, {v.x * scale, v.y * scale, v.z * scale, v.w * scale}, inverse);
    }
  });
#endif
}

template <bool Centred>
__global__ void normalize(Vectors v, const float* weight, const float* bias, float eps, float weight_offset) {
  __shared__ float scratch[kWarp + 1];
  const int64_t row = blockIdx.x / v.groups, at = blockIdx.x % v.groups * v.columns;
  const float* x = v.x + row * v.x_stride + at;
  float* out = v.out + row * v.out_stride + at;
  // The weights of held elements are loaded with the first loads, not after the sum.
  const bool fits = v.columns <= int64_t{kHeld} * blockDim.x;
  float held[kHeld], factor[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int64_t i = threadIdx.x + int64_t{j} * blockDim.x;
    factor[j] = fits && weight != nullptr && i < v.columns ? weight[i] + weight_offset : 1.0f;
  }
  wait_for_earlier();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int64_t i = threadIdx.x + int64_t{j} * blockDim.x;
    held[j] = i < v.columns ? x[i] : 0.0f;
  }
  float mean = 0.0f;
  if constexpr (Centred) {
    float sum = 0.0f;
    each_element(v, x, held, [&](int64_t, float value) { sum += value; });
    mean = block_sum(sum, scratch) / static_cast<float>(v.columns);
  }
  float squares = 0.0f;
  each_element(v, x, held, [&](int64_t, float value) { squares += (value - mean) * (value - mean); });
  const float scale = rsqrtf(block_sum(squares, scratch) / static_cast<float>(v.columns) + eps);
  const auto write = [&](int64_t i, float value, float w) {
    out[i] = (value - mean) * scale * w + (Centred && bias != nullptr ? bias[i] : 0.0f);
  };
  if (fits) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int64_t i = threadIdx.x + int64_t{j} * blockDim.x;
      if (i < v.columns) write(i, held[j], factor[j]);
    }
  } else {
    for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) {
      write(i, x[i], weight != nullptr ? weight[i] + weight_offset : 1.0f);
    }
  }
}

// Scales rows of x to the root mean square of the rows of `like`.
__global__ void scale_to(Vectors v, float floor) {
  __shared__ float scratch[kWarp + 1];
  const float* like = v.x + blockIdx.x * v.x_stride;
  float* x = v.out + blockIdx.x * v.out_stride;
  float own = 0.0f, wanted = 0.0f;
  for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) own += x[i] * x[i], wanted += like[i] * like[i];
  const auto count = static_cast<float>(v.columns);
  own = block_sum(own, scratch) / count;
  wanted = block_sum(wanted, scratch) / count;
  const float scale = sqrtf(wanted / fmaxf(own, floor));
  for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) x[i] *= scale;
}

__global__ void cut_off(Vectors v, float deviations) {
  __shared__ float scratch[kWarp + 1];
  float* x = v.out + blockIdx.x * v.out_stride;
  const auto count = static_cast<float>(v.columns);
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) sum += x[i];
  const float mean = block_sum(sum, scratch) / count;
  for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
  const float cutoff = mean + deviations * sqrtf(block_sum(squares, scratch) / count);
  for (int64_t i = threadIdx.x; i < v.columns; i += blockDim.x) x[i] = fmaxf(x[i] - cutoff, 0.0f);
}

int threads_of(int64_t columns) {
  return static_cast<int>(std::clamp<int64_t>(pieces(columns, kWarp * 4) * kWarp, kWarp, 1024));
}

template <bool Centred>
void run(const Launch& l, const Tensor& out, const Tensor& x, const float* weight, const float* bias, float eps,
         float weight_offset) {
  const int64_t groups = x.shape.rank() == 3 ? x.shape[1] : 1, columns = x.shape[-1];
  if (x.rows() == 0) return;
  const char* name = Centred ? "layer_norm" : "rms_norm";
  const dim3 vectors(static_cast<unsigned>(x.rows() * groups));
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (in_quads(out) && in_quads(x) && aligned(weight) && aligned(bias)) {
    const QuadNorm norm{.x = x.f32(),
                        .weight = weight,
                        .bias = bias,
                        .x_stride = x.row_stride,
                        .quads = static_cast<int>(columns / 4),
                        .groups = static_cast<int>(groups),
                        .eps = eps,
                        .weight_offset = weight_offset};
    const int64_t stream_threads = pieces(norm.quads, kWarp * kHeldQuads) * kWarp;
    const unsigned streams =
        Centred || groups > 1 || stream_threads > 1024
            ? 0
            : row_stream_blocks(l, x.data, x.rows(), x.row_stride * 4, columns * 4, static_cast<int>(stream_threads));
    const auto threads = static_cast<unsigned>(std::clamp<int64_t>(pieces(columns, kWarp * 8) * kWarp, kWarp, 1024));
    return with_rows_out(out, [&]<class Out>(const Out& to) {
      if (streams > 0) {
        return launch_row_stream(l, name, normalize_stream<Out>, streams, static_cast<unsigned>(stream_threads),
                                 static_cast<int>(columns * 4), norm, to, static_cast<int>(x.rows()));
      }
      launch_pdl(l, name, normalize_quads<Centred, Out>, vectors, threads, 0, norm, to);
    });
  }
  const Vectors v{out.f32(), x.f32(), columns, groups, out.row_stride, x.row_stride};
  launch_pdl(l, name, normalize<Centred>, vectors, static_cast<unsigned>(threads_of(columns)), 0, v, weight, bias, eps,
             weight_offset);
}

}  // namespace

void rms_norm(const Launch& l, const Tensor& out, const Tensor& x, const float* weight, float eps,
              float weight_offset) {
  run<false>(l, out, x, weight, nullptr, eps, weight_offset);
}

void layer_norm(const Launch& l, Tensor out, Tensor x, const float* weight, const float* bias, float eps) {
  run<true>(l, out, x, weight, bias, eps, 0.0f);
}

void match_rms(const Launch& l, Tensor x, Tensor like, float floor) {
  if (x.rows() == 0) return;
  const Vectors v{x.f32(), like.f32(), x.shape[1], 1, x.row_stride, like.row_stride};
  scale_to<<<static_cast<unsigned>(x.rows()), threads_of(v.columns), 0, l.stream>>>(v, floor);
  check_launch("match_rms");
}

void gaussian_top_k(const Launch& l, Tensor x, float deviations) {
  if (x.rows() == 0) return;
  const Vectors v{x.f32(), x.f32(), x.shape[1], 1, x.row_stride, x.row_stride};
  cut_off<<<static_cast<unsigned>(x.rows()), threads_of(v.columns), 0, l.stream>>>(v, deviations);
  check_launch("gaussian_top_k");
}

}  // namespace sluice::cuda
