// Paged attention on the tensor cores: chooses the kernel for each sequence of a batch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <climits>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

constexpr int kMostDim = 256;

template <class T>
bool run(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  if constexpr (sizeof(T) == 1) {  // 8-bit caches have no prefill kernel on devices before 9.0
    if (at.prefill_tiles > 0 && !attention_warpgroup<T>(l, p, at)) return false;
  } else {
    if (at.prefill_tiles > 0 && !attention_warpgroup<T>(l, p, at)) attention_prefill<T>(l, p, at);
  }
  if (at.decode_rows > 0 && !attention_decode_tma<T>(l, p, at)) attention_decode<T>(l, p, at);
  return true;
}

// Where no prefill kernel attends to a part of the keys, sequences of many rows are decoded.
template <class T>
bool run(const Launch& l, PartParams p, AttentionIndices at) {
  const bool prefill = std::is_same_v<T, __nv_bfloat16> && std::max(p.head_dim, p.value_dim) <= kMostPrefillDim;
  if (prefill && at.prefill_tiles > 0) attention_prefill_part(l, p, at);
  if (!prefill && at.prefill_tiles > 0) {
    const int64_t rows = at.prefill_tiles * kPrefillTileRows / p.group;  // an upper bound, as the number of keys is
    p.most_decode_rows = INT_MAX;
    at.decode_rows = static_cast<int>(std::max<int64_t>(at.decode_rows, rows)), at.decode_tokens += rows;
    at.decode_keys = p.block_table_stride * p.block_size;
  }
  if (at.decode_rows > 0) attention_decode_part<T>(l, p, at);
  return true;
}

bool whole_packs(const Tensor& cache) {
  const int64_t bytes = cache.shape[3] * cache.dtype->block_bytes;
  return bytes % 16 == 0 && cache.shape[3] <= kMostDim && reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
}

}  // namespace

void AttentionIndices::count(int rows, int keys, int group) {
  if (rows == 0) return;
  if (int64_t{rows} * group > kMostDecodeRows) {
    prefill_tiles += pieces(int64_t{rows} * group, kPrefillTileRows);
  } else {
    decode_rows = std::max(decode_rows, rows), decode_keys = std::max(decode_keys, keys), decode_tokens += rows;
  }
}

bool attention_on_tensor_cores(const ops::AttentionArgs& args) {
  const Tensor& k = args.k_cache;
  const bool narrow = k.dtype == &kFloat8E4M3 || k.dtype == &kFloat8E5M2 || k.dtype == &kInt8;
  if ((k.dtype != &kBFloat16 && k.dtype != &kFloat16 && !narrow) || !whole_packs(k)) return false;
  const bool apart = args.v_cache.data != nullptr;
  if (apart ? !whole_packs(args.v_cache) : args.value_dim * k.dtype->block_bytes % 16 != 0) return false;
  // Keys are copied in groups of eight; vectors are counted in 32 bits.
  return k.shape[2] % 8 == 0 && k.shape.elements() / k.shape[3] <= INT32_MAX;
}

bool attention_tensor(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  if (attention_latent(l, args, at)) return true;
  if (!attention_on_tensor_cores(args)) return false;
  const DType type = args.k_cache.dtype;
  const AttentionParams p = attention_params(args, at);
  const bool little = shared_of_block(l) < (128 << 10);
  if (at.prefill_tiles > 0 && little && std::max(p.head_dim, p.value_dim) > kMostPrefillDim) return false;
  if (args.log_sums.data != nullptr) {
    const PartParams part = part_params(args, at);
    if (type == &kBFloat16) return run<__nv_bfloat16>(l, part, at);
    if (type == &kFloat16) return run<__half>(l, part, at);
    return type == &kFloat8E4M3 && run<__nv_fp8_e4m3>(l, part, at);
  }
  if (type == &kBFloat16) return run<__nv_bfloat16>(l, p, at);
  if (type == &kFloat16) return run<__half>(l, p, at);
  if (type == &kInt8) return run<int8_t>(l, p, at);
  if (type == &kFloat8E5M2) return run<__nv_fp8_e5m2>(l, p, at);
  return run<__nv_fp8_e4m3>(l, p, at);
}

}  // namespace sluice::cuda
