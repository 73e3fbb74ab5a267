// The adapters of up to 32 rows, each with its rows.
#pragma once

#include <cstdint>

namespace sluice::cuda {

class AdapterGroups {
 public:
  // `rows` is at most 32. Called by whole warps, as all functions are.
  __device__ AdapterGroups(const int32_t* slots, int rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32, slot = lane < rows ? slots[lane] : -1;
    const uint32_t same = __match_any_sync(~0u, slot);
    uint32_t first = __ballot_sync(~0u, slot >= 0 && __ffs(static_cast<int>(same)) - 1 == lane);
    with_adapter_ = __ballot_sync(~0u, slot >= 0);
    count_ = __popc(first);
    // Lane i gets the i-th adapter.
    for (int before = 0; before < min(lane, count_); ++before) first &= first - 1;
    const int from = max(__ffs(static_cast<int>(first)) - 1, 0);
    slot_ = __shfl_sync(~0u, slot, from), members_ = __shfl_sync(~0u, same, from);
  }
  __device__ int count() const { return count_; }
  __device__ bool has_adapter(int row) const { return (with_adapter_ >> row & 1) != 0; }
  // The i-th adapter's slot and, as bits, its rows. Lanes may ask for different ones.
  __device__ void get(int i, int& slot, uint32_t& rows) const {
    slot = __shfl_sync(~0u, slot_, i), rows = __shfl_sync(~0u, members_, i);
  }

 private:
  int slot_, count_;
  uint32_t members_, with_adapter_;
};

}  // namespace sluice::cuda
