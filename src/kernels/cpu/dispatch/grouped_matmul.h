// Matmul with many matrices of one weight, for every stored type that has a matmul. Compiled once, because the
// arithmetic is in the kernels it calls.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

void expert_matmul(ops::Queue& queue, const ops::MatmulKernels& kernels, const ops::ExpertMatmulArgs& args);
void head_matmul(ops::Queue& queue, const ops::MatmulKernels& kernels, const ops::HeadMatmulArgs& args);

}  // namespace sluice::kernels
