// The kernels of this instruction set, for the code that chooses one.
#include "kernels/cpu/dispatch/grouped_matmul.h"
#include "kernels/cpu/kernels.h"
#include "ops/reference.h"

namespace sluice::SLUICE_ISA {
namespace {

consteval ops::OpTable op_table() {
  ops::OpTable table = ops::reference::kTable;
#define SLUICE_FILL(name) table.name = name;
  SLUICE_CPU_SLOTS(SLUICE_FILL)
#undef SLUICE_FILL
  table.expert_matmul = kernels::expert_matmul;
  table.head_matmul = kernels::head_matmul;
  return table;
}

}  // namespace

extern constinit const kernels::CpuKernels kKernels;
constinit const kernels::CpuKernels kKernels{
    .ops = op_table(),
    .matmul_f32 = matmul_f32,
    .matmul_bf16 = matmul_bf16,
    .matmul_fp16 = matmul_fp16,
    .matmul_blocks = matmul_blocks,
    .matmul_int8 = matmul_int8,
};

}  // namespace sluice::SLUICE_ISA
