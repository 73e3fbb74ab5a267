// The types that persistent decode kernels are compiled for.
#include <cuda_bf16.h>

#include "kernels/cuda/decode_kernel/instructions.h"
#include "quant/all.h"

namespace sluice::cuda {

namespace persistent {
template <class T, class Format>
const DecodeKernel* kernel();  // kernel.cuh
}

const DecodeKernel* decode_kernel(DType plain, DType quantized) {
  if (plain != &kBFloat16) return nullptr;
  if (quantized == nullptr) return persistent::kernel<__nv_bfloat16, void>();
  if (quantized == &quant::Fp8::kType) return persistent::kernel<__nv_bfloat16, quant::Fp8>();
  if (quantized == &quant::Int4G128::kType) return persistent::kernel<__nv_bfloat16, quant::Int4G128>();
  if (quantized == &quant::MXFP4::kType) return persistent::kernel<__nv_bfloat16, quant::MXFP4>();
  return nullptr;
}

}  // namespace sluice::cuda
