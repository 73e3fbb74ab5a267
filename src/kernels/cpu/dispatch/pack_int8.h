// Packing of block-quantized weights into the panels of kernels/cpu/int8_panels.h, from blocks as files store them or
// from any other type, which is quantized first. Compiled once: it moves words, and is bound by memory.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// packed_bytes, pack and int8_block for `format`; pack is null when the format has no int8 kernels. pack throws
// Error(kUnsupportedModel) when the rows are of another type and nothing writes this one.
ops::MatmulKernels int8_packing(DType format);

}  // namespace sluice::kernels
