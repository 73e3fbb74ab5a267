// Packs block-quantized weights into the panels of kernels/cpu/int8_panels.h. The source holds blocks as stored in
// files, or any other type, which is quantized first. Compiled once, because packing moves words and is bound by
// memory.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

// Returns packed_bytes, pack and int8_block for `format`; pack is null when the format has no int8 kernels. pack throws
// Error(kUnsupportedModel) when the rows have another type and the format has no quantizer.
ops::MatmulKernels int8_packing(DType format);

}  // namespace sluice::kernels
