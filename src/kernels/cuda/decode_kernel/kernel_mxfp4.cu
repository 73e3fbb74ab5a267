// The persistent decode kernel for MXFP4 weights, such as the experts of gpt-oss.
#include "kernels/cuda/decode_kernel/kernel.cuh"
#include "kernels/cuda/decode_kernel/weights_mxfp4.cuh"

namespace sluice::cuda {

template const DecodeKernel* persistent::kernel<__nv_bfloat16, quant::MXFP4>();

}  // namespace sluice::cuda
