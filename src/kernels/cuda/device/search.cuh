// Binary search on the device.
#pragma once

namespace sluice::cuda {

// Returns the last i in low .. high for which holds(i). holds(low) must be true, and after holds(i) is false, all later
// ones must be false.
template <class Holds>
__device__ inline int last_of(int low, int high, Holds&& holds) {
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace sluice::cuda
