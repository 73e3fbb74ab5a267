// The rows of results that a kernel writes, four elements at a time: fp32, 16 bits, or 8-bit floats with a scale per
// row.
#pragma once

#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "tensor/tensor.h"

namespace sluice::cuda {

template <class T>
struct RowsOut {
  static constexpr bool kScaled = false;
  T* data;
  int64_t stride;

  __device__ void put(int64_t row, int64_t quad, const float4& v, float) const {
    T* to = data + row * stride + 4 * quad;
    if constexpr (sizeof(T) == 4) {
      *reinterpret_cast<float4*>(to) = v;
    } else {
      *reinterpret_cast<uint2*>(to) = {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w)};
    }
  }
};

// See ops::take_rows.
template <>
struct RowsOut<__nv_fp8_e4m3> {
  static constexpr bool kScaled = true;
  uint32_t* data;
  float* scales;
  int64_t stride;

  // Writes the row's scale and returns the factor that put() takes.
  __device__ float begin_row(int64_t row, float largest, bool writes) const {
    const Fp8Scale s = fp8_scale(largest);
    if (writes) scales[row] = s.scale;
    return s.inverse;
  }
  __device__ void put(int64_t row, int64_t quad, const float4& v, float inverse) const {
    data[row * stride / 4 + quad] = pack_fp8(v, inverse);
  }
};

// Calls f(RowsOut) for the type of `out`.
template <class F>
void with_rows_out(const Tensor& out, F&& f) {
  if (out.dtype == &kFloat32) return f(RowsOut<float>{out.as<float>(), out.row_stride});
  if (out.dtype == &kBFloat16) return f(RowsOut<__nv_bfloat16>{out.as<__nv_bfloat16>(), out.row_stride});
  if (out.dtype == &kFloat16) return f(RowsOut<__half>{out.as<__half>(), out.row_stride});
  CHECK(out.dtype == &kFloat8E4M3,
        "kernels cannot write rows of {} (expected one of: float32, bfloat16, float16, float8_e4m3fn)",
        out.dtype->name);
  f(RowsOut<__nv_fp8_e4m3>{out.as<uint32_t>(), ops::row_scales(out), out.row_stride});
}

// Whether `t` can be read or written four elements at a time.
inline bool in_quads(const Tensor& t) {
  const int64_t quad = 4 * t.dtype->block_bytes, row = t.row_stride * t.dtype->block_bytes;
  return reinterpret_cast<uintptr_t>(t.data) % quad == 0 && t.shape[-1] % 4 == 0 && (row % quad == 0 || t.rows() == 1);
}

}  // namespace sluice::cuda
