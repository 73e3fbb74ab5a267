// The paged cache as two-dimensional tensors, [vectors, bytes of a vector], from which kernels copy TMA tiles.
#pragma once

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {

// TMA tiles are 128 bytes by `rows` vectors; `rows` divides the block size. Bytes beyond the end of a vector become
// zeros.
struct CacheMaps {
  CUtensorMap keys, values;
  int rows;
};

// Makes the maps for elements of `size` bytes. A kernel copies `keys` vectors, a power of two, at a time.
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
