// The persistent decode kernel without quantized weights.
#include "kernels/cuda/decode_kernel/kernel.cuh"

namespace sluice::cuda {

template const DecodeKernel* persistent::kernel<__nv_bfloat16, void>();

}  // namespace sluice::cuda
