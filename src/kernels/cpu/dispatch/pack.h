// Packing of weights into the panels of kernels/cpu/panels.h. Compiled once: it is bound by memory, not by
// instructions.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// The pack functions of the CPU backends for stored type Type; see ops::MatmulKernels.
template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k);
template <const TypeInfo& Type>
void pack(ThreadPool& pool, const ops::Weight& into, int64_t row, const Tensor& from);

}  // namespace sluice::kernels
