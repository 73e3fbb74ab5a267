// The tensor-core attention kernels, each in its own file; attention.cu chooses among them. T is the type of the cache:
// __nv_bfloat16, __half, __nv_fp8_e4m3, __nv_fp8_e5m2 or int8_t. attention_prefill takes the 16-bit types only.
// Dimensions are whole packs of 16 bytes, at most 256.
#pragma once

#include "kernels/cuda/attention/params.h"

namespace sluice::cuda {

// Attends the sequences of up to kMostDecodeRows packed rows and skips the others. `attention_decode_tma` needs compute
// capability 9.0: it returns false, having done nothing, on other devices and where it was not compiled.
template <class T>
void attention_decode(const Launch&, const AttentionParams&, const AttentionIndices&);
template <class T>
bool attention_decode_tma(const Launch&, const AttentionParams&, const AttentionIndices&);

// Attends the sequences of more packed rows. `attention_prefill` takes dimensions up to kMostPrefillDim where a block
// has less than 128 KiB of shared memory. `attention_warpgroup` needs compute capability 9.0: it returns false, having
// done nothing, on other devices and where it was not compiled (CMAKE_CUDA_ARCHITECTURES without 90a).
inline constexpr int kMostPrefillDim = 128;
template <class T>
void attention_prefill(const Launch&, const AttentionParams&, const AttentionIndices&);
template <class T>
bool attention_warpgroup(const Launch&, const AttentionParams&, const AttentionIndices&);
// attention_warpgroup for E4M3 caches with dimensions up to 128; also false for larger dimensions.
bool attention_warpgroup_fp8(const Launch&, const AttentionParams&, const AttentionIndices&);

// Attends over latent caches of 16 bits, whose values are the first columns of the keys, on compute capability 9.0. The
// caches may have a part of the keys.
// Takes any number of rows and dimensions in whole packs up to 576 (keys) and 512 (values). Returns false, having done
// nothing, if it cannot.
bool attention_latent(const Launch&, const ops::AttentionArgs&, const AttentionIndices&);

// The same for a part of the keys, with few instances: decode takes caches of bf16, fp16 and E4M3, and sequences of up
// to p.most_decode_rows packed rows. Prefill takes caches of bf16 with dimensions up to kMostPrefillDim.
template <class T>
void attention_decode_part(const Launch&, const PartParams&, const AttentionIndices&);
void attention_prefill_part(const Launch&, const PartParams&, const AttentionIndices&);

// Whether the kernels before attention_latent take the type and dimensions of the caches.
bool attention_on_tensor_cores(const ops::AttentionArgs&);

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "shared memory of attention");
}

}  // namespace sluice::cuda
