// The paged cache as tensors of two dimensions, bytes of a vector and vectors, of which kernels copy boxes.
#pragma once

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {

// Boxes are 128 bytes by `rows`, which divide a block. What is beyond a vector's end becomes zeros.
struct CacheMaps {
  CUtensorMap keys, values;
  int rows;
};

// Elements of `size` bytes; a kernel copies `keys` of them, a power of two, at a time.
inline CacheMaps cache_maps(const AttentionParams& p, int64_t size, int keys) {
  while (p.block_size % keys != 0) keys /= 2;
  const auto map = [&](const std::byte* data, int64_t elements, int64_t stride) {
    return tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, data,
                         {static_cast<cuuint64_t>(elements * size), static_cast<cuuint64_t>(p.vectors)},
                         {static_cast<cuuint64_t>(stride * size)}, {128, static_cast<cuuint32_t>(keys)},
                         CU_TENSOR_MAP_SWIZZLE_128B);
  };
  return {map(p.k, p.head_dim, p.head_dim), map(p.v, p.value_dim, p.value_stride), keys};
}

}  // namespace sluice::cuda
