// Packs weights into the panels of kernels/cpu/panels.h. Compiled once, because packing is bound by memory and not by
// instructions.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// Returns the pack functions of the CPU backends for stored type Type; see ops::MatmulKernels.
template <const TypeInfo& Type>
size_t packed_bytes(int64_t n, int64_t k);
template <const TypeInfo& Type>
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from);

// Returns the same functions for block formats: [n / 16][k / block_size][16] blocks, the last panel padded with zeros.
template <const TypeInfo& Type>
size_t packed_block_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>((n + ops::kWeightPanel - 1) / ops::kWeightPanel * ops::kWeightPanel *
                             (k / Type.block_size)) *
         Type.block_bytes;
}
// Throws Error(kUnsupportedModel) when `from` has another type and the stored type has no quantizer.
void pack_blocks(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from);

}  // namespace sluice::kernels
