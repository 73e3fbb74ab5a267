// Kernels of decode steps with groups of small integers.
#include "kernels/cuda/decode_kernel/kernel.cuh"

namespace sluice::cuda {

template const DecodeKernel* step::kernel<__nv_bfloat16, quant::Int4G128>();

}  // namespace sluice::cuda
