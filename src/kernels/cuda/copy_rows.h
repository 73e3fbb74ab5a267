// Copies of rows whose order does not matter.
#pragma once

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// elementwise.cu: like copy_rows, but no row of `to` is also one of `from`, even if they are the same tensor. All pairs
// are copied at the same time.
void copy_rows_apart(const Launch&, const Tensor& to, const Tensor& from, const int32_t* pairs, size_t count);

}  // namespace sluice::cuda
