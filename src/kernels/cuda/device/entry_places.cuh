// Where entries lie in a paged cache (ops/entries.h).
#pragma once

#include <cstdint>

#include "ops/entries.h"

namespace sluice::cuda {

struct EntryPlaces {
  int64_t block_elements = 0, stride = 0;  // elements of a block, and from an entry to the next
  int first = 0, rate = 1, block_size = 1;

  EntryPlaces() = default;
  explicit EntryPlaces(const ops::EntryCache& e)
      : block_elements(e.cache.shape[2] * e.cache.shape[3]),
        stride(e.stride),
        first(static_cast<int>(e.first)),
        rate(e.rate),
        block_size(static_cast<int>(e.cache.shape[2])) {}
  // The entry's first element in the cache. `blocks`: those of its sequence.
  __device__ int64_t element(const int32_t* blocks, int entry) const {
    const int block = (entry * rate + rate - 1) / block_size, in_block = entry - block * block_size / rate;
    return blocks[block] * block_elements + in_block * stride + first;
  }
  // Whether entries begin at multiples of this many elements of the cache.
  bool aligned(int64_t elements) const {
    return block_elements % elements == 0 && stride % elements == 0 && first % elements == 0;
  }
};

}  // namespace sluice::cuda
