// The kernels of one instruction set, as plain pointers in constant data. So nothing compiled for an instruction set
// runs before the CPU features were checked. dispatch/backends.cc builds op tables from it.
#pragma once

#include "ops/ops.h"

// Expands SLOT(name) for every op that is compiled per instruction set.
#define SLUICE_CPU_SLOTS(SLOT) SLUICE_PLAIN_SLOTS(SLOT) SLUICE_ADAPTED_SLOTS(SLOT)

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
