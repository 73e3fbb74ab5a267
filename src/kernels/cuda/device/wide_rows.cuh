// Rows of fp32 or bf16 that are read and written in units of four columns.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "tensor/tensor.h"

namespace sluice::cuda {

__device__ inline float4 to_floats(float4 v) { return v; }
// Four bf16, as they are in memory.
__device__ inline float4 to_floats(uint2 v) {
  return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                     __uint_as_float(v.y & 0xffff0000u));
}

__device__ inline float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <class T>
struct WideRows {
  using Unit = std::conditional_t<std::is_same_v<T, float>, float4, uint2>;

  T* data = nullptr;
  int64_t stride = 0;
  int columns = 0;
  bool aligned = false;

  WideRows() = default;
  explicit WideRows(const Tensor& t)
      : data(t.as<T>()),
        stride(t.row_stride),
        columns(static_cast<int>(t.shape[1])),
        aligned(reinterpret_cast<uintptr_t>(t.data) % sizeof(Unit) == 0 && t.row_stride % 4 == 0) {}

  // Columns beyond the last one are zero.
  __device__ Unit load(int64_t row, int column) const {
    const T* at = data + row * stride + column;
    if (aligned && column + 4 <= columns) return *reinterpret_cast<const Unit*>(at);
    Unit unit{};
    for (int i = 0; i < 4 && column + i < columns; ++i) reinterpret_cast<T*>(&unit)[i] = at[i];
    return unit;
  }
  // The same where rows are whole units and aligned.
  __device__ Unit& unit(int64_t row, int column) const {
    return *reinterpret_cast<Unit*>(data + row * stride + column);
  }
  // Columns beyond `end` are not written.
  __device__ void store(int64_t row, int column, int end, Unit unit) const {
    T* at = data + row * stride + column;
    if (aligned && column % 4 == 0 && column + 4 <= end) {
      *reinterpret_cast<Unit*>(at) = unit;
      return;
    }
    for (int i = 0; i < 4 && column + i < end; ++i) at[i] = reinterpret_cast<const T*>(&unit)[i];
  }
};

}  // namespace sluice::cuda
