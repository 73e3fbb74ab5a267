// The attention kernels on the tensor cores, each in a file of its own; attention.cu chooses among them. T is the
// cache's type, __nv_bfloat16, __half, or __nv_fp8_e4m3 and int8_t, which attention_prefill does not take; dimensions
// are whole packs of 16 bytes, 256 at most.
#pragma once

#include "kernels/cuda/attention/params.h"

namespace sluice::cuda {

// Sequences of up to kMostDecodeRows packed rows; the others are left alone. `attention_decode_tma` needs compute
// capability 9.0: it returns false, and has done nothing, on other devices and where it was not compiled.
template <class T>
void attention_decode(const Launch&, const AttentionParams&, const AttentionIndices&);
template <class T>
bool attention_decode_tma(const Launch&, const AttentionParams&, const AttentionIndices&);

// Sequences of more packed rows. `attention_prefill` takes dimensions up to kMostPrefillDim where a block has less than
// 128 KiB of shared memory. `attention_warpgroup` needs compute capability 9.0: it returns false, and has done
// nothing, on other devices and where it was not compiled (CMAKE_CUDA_ARCHITECTURES without 90a).
inline constexpr int kMostPrefillDim = 128;
template <class T>
void attention_prefill(const Launch&, const AttentionParams&, const AttentionIndices&);
template <class T>
bool attention_warpgroup(const Launch&, const AttentionParams&, const AttentionIndices&);
// What attention_warpgroup does for caches of 8-bit floats with dimensions up to 128: false for others, too.
bool attention_warpgroup_fp8(const Launch&, const AttentionParams&, const AttentionIndices&);

// Latent caches of 16 bits, whose values are the first columns of the keys, for compute capability 9.0: any number of
// rows, dimensions in whole packs up to 576 and 512. False where it cannot; nothing is done then.
bool attention_latent(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);

// Whether the kernels before attention_latent take the caches' type and dimensions.
bool attention_on_tensor_cores(const ops::AttentionArgs&);

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "shared memory of attention");
}

}  // namespace sluice::cuda
