// Gated units: out[row, i] = f(gate, up), where gate and up are the halves of a row. Bound by memory traffic. Results
// may be rounded to the type that the next matmul reads. For 8-bit floats a block takes a whole row, because it needs
// the row's scale first; else a thread takes eight elements.
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/clamped_product.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_stream.cuh"
#include "kernels/cuda/device/rows_out.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of 2 n elements: gate, then up.
template <class T>
struct Halves {
  const T* data;
  int64_t stride, n;

  template <class F>
  __device__ float4 apply(int row, int quad, F f) const {
    const T* gate = data + row * stride + 4 * quad;
    const float4 a = load_four(gate), b = load_four(gate + n);
    return {f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)};
  }
};

constexpr int kQuads = 2;      // quads of a thread, which are a block's threads apart
constexpr int kHeldQuads = 4;  // quads of a thread in registers

// Each row has `parts` blocks.
template <class T, class Out, class F>
__global__ void gate_quads(Halves<T> in, Out out, int parts, F f) {
  wait_for_earlier();
  const int row = blockIdx.x / parts, quads = static_cast<int>(in.n / 4);
  const int first = blockIdx.x % parts * kThreads * kQuads + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int quad = first + j * kThreads;
    if (quad < quads) out.put(row, quad, in.apply(row, quad, f), 1.0f);
  }
}

template <class T, class F>
__global__ void __launch_bounds__(1024) gate_fp8(Halves<T> in, RowsOut<__nv_fp8_e4m3> out, F f) {
  constexpr int kHeld = kHeldQuads;
  __shared__ float scratch[kWarp + 1];
  wait_for_earlier();
  const int quads = static_cast<int>(in.n / 4), row = blockIdx.x;
  float4 held[kHeld];
  float largest = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    held[j] = i < quads ? in.apply(row, i, f) : float4{};
    largest = fmaxf(largest, largest_of(held[j]));
  }
  for (int i = threadIdx.x + kHeld * blockDim.x; i < quads; i += blockDim.x) {
    largest = fmaxf(largest, largest_of(in.apply(row, i, f)));
  }
  const float inverse = out.begin_row(row, block_max(largest, scratch), threadIdx.x == 0);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * blockDim.x;
    if (i < quads) out.put(row, i, held[j], inverse);
  }
  for (int i = threadIdx.x + kHeld * blockDim.x; i < quads; i += blockDim.x) {
    out.put(row, i, in.apply(row, i, f), inverse);
  }
}

// Gates many rows, streamed; a thread's quads stay in registers.
template <class F>
__global__ void __launch_bounds__(1024, 1)
    gate_fp8_stream(Halves<__nv_bfloat16> in, RowsOut<__nv_fp8_e4m3> out, int rows, F f) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) uint4 memory[];
  __shared__ SumAndLargest scratch[2][kWarp];
  const int quads = static_cast<int>(in.n / 4);
  RowStream stream(memory, in.data, in.stride * 2, quads * 16, rows);
  int turn = 0;
  stream.each<__nv_bfloat16>([&](int row, const __nv_bfloat16* halves) {
    const Halves<__nv_bfloat16> own{halves, 0, in.n};
    float4 held[kHeldQuads];
    float largest = 0.0f;
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      const int i = threadIdx.x + j * blockDim.x;
      held[j] = i < quads ? own.apply(0, i, f) : float4{};
      largest = fmaxf(largest, largest_of(held[j]));
    }
    largest = block_sum_and_max({0.0f, largest}, scratch[turn]).largest;
    turn ^= 1;
    const float inverse = out.begin_row(row, largest, threadIdx.x == 0);
#pragma unroll
    for (int j = 0; j < kHeldQuads; ++j) {
      const int i = threadIdx.x + j * blockDim.x;
      if (i < quads) out.put(row, i, held[j], inverse);
    }
  });
#endif
}

template <class F>
__global__ void gate_each(float* out, int64_t out_stride, Halves<float> in, int rows, F f) {
  wait_for_earlier();
  const int64_t count = rows * in.n, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count; at += step) {
    const int64_t row = at / in.n, i = at % in.n;
    const float* gate = in.data + row * in.stride + i;
    out[row * out_stride + i] = f(gate[0], gate[in.n]);
  }
}

template <class T, class F>
void gate_rows(const Launch& l, const char* name, const Tensor& out, const Tensor& gate_up, F f) {
  const Halves<T> in{gate_up.as<const T>(), gate_up.row_stride, out.shape[1]};
  const int rows = static_cast<int>(out.rows());
  with_rows_out(out, [&]<class Out>(const Out& to) {
    if constexpr (Out::kScaled) {
      const auto threads = static_cast<unsigned>(std::clamp<int64_t>(pieces(in.n / 4, 4 * kWarp) * kWarp, kWarp, 1024));
      if constexpr (sizeof(T) == 2) {
        const auto row_bytes = static_cast<int>(in.n * 4);
        const unsigned blocks =
            in.n / 4 > threads * kHeldQuads
                ? 0
                : row_stream_blocks(l, in.data, rows, in.stride * 2, row_bytes, static_cast<int>(threads));
        if (blocks > 0) {
          return launch_row_stream(l, name, gate_fp8_stream<F>, blocks, threads, row_bytes, in, to, rows, f);
        }
      }
      launch_pdl(l, name, gate_fp8<T, F>, dim3(static_cast<unsigned>(rows)), threads, 0, in, to, f);
    } else {
      const auto parts = static_cast<int>(pieces(in.n / 4, kThreads * kQuads));
      launch_pdl(l, name, gate_quads<T, Out, F>, dim3(static_cast<unsigned>(rows * parts)), kThreads, 0, in, to, parts,
                 f);
    }
  });
}

template <class F>
void gated(const Launch& l, const char* name, const Tensor& out, const Tensor& gate_up, F f) {
  if (out.rows() == 0 || out.shape[1] == 0) return;
  if (in_quads(out) && in_quads(gate_up) && out.shape[1] % 4 == 0) {
    if (gate_up.dtype == &kFloat32) return gate_rows<float>(l, name, out, gate_up, f);
    CHECK(gate_up.dtype == &kBFloat16, "gated units cannot read {} (expected one of: float32, bfloat16)",
          gate_up.dtype->name);
    return gate_rows<__nv_bfloat16>(l, name, out, gate_up, f);
  }
  const Halves<float> in{gate_up.f32(), gate_up.row_stride, out.shape[1]};
  launch_pdl(l, name, gate_each<F>, dim3(blocks_for(l, out.rows() * in.n, kThreads)), kThreads, 0, out.f32(),
             out.row_stride, in, static_cast<int>(out.rows()), f);
}

}  // namespace

void glu(const Launch& l, const Tensor& out, const Tensor& gate_up, ops::Activation activation) {
  if (activation == ops::Activation::kSilu) {  // the activation of most models, without the switch
    if (out.dtype != &kFloat32) {
      return gated(l, "glu", out, gate_up, [] __device__(float g, float u) { return silu_product(g, u); });
    }
    return gated(l, "glu", out, gate_up, [] __device__(float g, float u) { return g / (1.0f + expf(-g)) * u; });
  }
  gated(l, "glu", out, gate_up, [=] __device__(float g, float u) { return apply(activation, g) * u; });
}

void clamped_glu(const Launch& l, Tensor out, Tensor gate_up, float alpha, float limit) {
  gated(l, "clamped_glu", out, gate_up,
        [=] __device__(float g, float u) { return clamped_product(g, u, alpha, limit); });
}

}  // namespace sluice::cuda
