// Descriptions of tensors in device memory, of which kernels copy boxes (CUDA driver API, cuTensorMapEncodeTiled;
// device/weight_ring.cuh).
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

namespace sluice::cuda {

// Arrays of `rank` numbers, of strides one less.
CUtensorMap encode_tensor_map(CUtensorMapDataType type, unsigned rank, const std::byte* data, const cuuint64_t* size,
                              const cuuint64_t* stride, const cuuint32_t* tile, CUtensorMapSwizzle swizzle);

// A tensor of dimensions and strides (of all but the first, in bytes), innermost first, in boxes.
template <size_t rank>
CUtensorMap tensor_map(CUtensorMapDataType type, const std::byte* data, const std::array<cuuint64_t, rank>& size,
                       const std::array<cuuint64_t, rank - 1>& stride, const std::array<cuuint32_t, rank>& tile,
                       CUtensorMapSwizzle swizzle) {
  return encode_tensor_map(type, rank, data, size.data(), stride.data(), tile.data(), swizzle);
}

}  // namespace sluice::cuda
