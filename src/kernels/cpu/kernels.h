// The kernels of one instruction set, as plain pointers in constant data. So nothing compiled for an instruction set
// runs before the CPU features were checked. dispatch/backends.cc builds op tables from it.
#pragma once

#include "ops/ops.h"

// SLOT(name) for every op that is compiled per instruction set; the others are those of the reference (ops/reference.h)
// or of dispatch/. A new op is a line here and a file beside this one.
// clang-format off
#define SLUICE_CPU_SLOTS(SLOT) \
  SLOT(embed) SLOT(rms_norm) SLOT(layer_norm) SLOT(match_rms) SLOT(gaussian_top_k) SLOT(glu) SLOT(clamped_glu) \
  SLOT(unary) SLOT(xielu) SLOT(map) SLOT(copy) SLOT(add) SLOT(multiply) SLOT(softplus) SLOT(rope_store) \
  SLOT(latent_store) SLOT(attention) SLOT(causal_conv) SLOT(selective_scan) SLOT(head_scan) SLOT(delta_rule) \
  SLOT(gated_lru) SLOT(gather_rows) SLOT(sample) SLOT(combine) SLOT(lora_shrink) SLOT(lora_expand)
// clang-format on

namespace sluice::kernels {

using Matmul = void (*)(ops::Queue&, const ops::MatmulArgs&);

struct CpuKernels {
  ops::OpTable ops;
  Matmul matmul_f32, matmul_bf16, matmul_fp16;
  Matmul (*matmul_blocks)(DType format);  // for weights in the order of pack_blocks; null: no kernel for the format
  Matmul (*matmul_int8)(DType format);    // for weights in the order of int8_packing; null: no kernel for the format
};

}  // namespace sluice::kernels

#ifdef SLUICE_ISA
namespace sluice::SLUICE_ISA {

#define SLUICE_DECLARE(name) ops::SlotFunction<&ops::OpTable::name> name;
SLUICE_CPU_SLOTS(SLUICE_DECLARE)
#undef SLUICE_DECLARE
void matmul_f32(ops::Queue&, const ops::MatmulArgs&);
void matmul_bf16(ops::Queue&, const ops::MatmulArgs&);
void matmul_fp16(ops::Queue&, const ops::MatmulArgs&);
kernels::Matmul matmul_blocks(DType format);
kernels::Matmul matmul_int8(DType format);

}  // namespace sluice::SLUICE_ISA
#endif
