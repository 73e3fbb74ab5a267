// Tensor maps, the descriptions of tensors in device memory from which kernels copy TMA tiles (CUDA driver API,
// cuTensorMapEncodeTiled; device/weight_ring.cuh).
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

namespace sluice::cuda {

// size and tile have `rank` elements, stride has one less.
CUtensorMap encode_tensor_map(CUtensorMapDataType type, unsigned rank, const std::byte* data, const cuuint64_t* size,
                              const cuuint64_t* stride, const cuuint32_t* tile, CUtensorMapSwizzle swizzle);

// Describes a tensor by its dimensions and strides, innermost first, and the dimensions of a TMA tile. Strides are in
// bytes and leave out the first dimension.
template <size_t rank>
CUtensorMap tensor_map(CUtensorMapDataType type, const std::byte* data, const std::array<cuuint64_t, rank>& size,
                       const std::array<cuuint64_t, rank - 1>& stride, const std::array<cuuint32_t, rank>& tile,
                       CUtensorMapSwizzle swizzle) {
  return encode_tensor_map(type, rank, data, size.data(), stride.data(), tile.data(), swizzle);
}

}  // namespace sluice::cuda
