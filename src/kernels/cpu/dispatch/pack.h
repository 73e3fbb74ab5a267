// Packing of weights into the panels of kernels/cpu/panels.h. Compiled once: it is bound by memory, not by
// instructions.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// The pack functions of the CPU backends for stored type Type; see ops::MatmulKernels.
template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k);
template <const TypeInfo& Type>
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from);

// The same for block formats: [n / 16][k / block_size][16] blocks, the last panel padded with zeros.
template <const TypeInfo& Type>
size_t packed_block_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>((n + ops::kWeightPanel - 1) / ops::kWeightPanel * ops::kWeightPanel *
                             (k / Type.block_size)) *
         Type.block_bytes;
}
// Throws Error(kUnsupportedModel) when `from` is of another type and nothing writes this one.
void pack_blocks(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from);

}  // namespace sluice::kernels
