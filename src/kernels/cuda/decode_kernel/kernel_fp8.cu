// The persistent decode kernel for fp8 (E4M3) weights.
#include "kernels/cuda/decode_kernel/kernel.cuh"

namespace sluice::cuda {

template const DecodeKernel* persistent::kernel<__nv_bfloat16, quant::Fp8>();

}  // namespace sluice::cuda
