// The persistent decode kernel for int4 weights in groups of 128.
#include "kernels/cuda/decode_kernel/kernel.cuh"

namespace sluice::cuda {

template const DecodeKernel* persistent::kernel<__nv_bfloat16, quant::Int4G128>();

}  // namespace sluice::cuda
