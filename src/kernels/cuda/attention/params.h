// The arguments of an attention call as plain values for device code.
#pragma once

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

enum class RowType { kFloat, kBFloat16, kHalf };

struct AttentionParams {
  void* out;
  RowType out_type;
  const void* q;
  RowType q_type;                    // fp32 or bf16
  int first;                         // no row sees keys before this one
  const std::byte *k, *v;            // v equals k where values are a part of the keys
  const float *k_scales, *v_scales;  // for int8 caches, one per vector
  const int32_t *query_start, *kv_len, *block_table;
  const float *sinks, *alibi_slopes, *relative_bias;
  int64_t out_stride, q_stride;
  int64_t value_stride;  // elements from a cached value to the next one
  int64_t vectors;       // vectors of the cache
  int block_table_stride, block_size;
  uint32_t per_block;          // 2^32 / block_size, rounded up: the high word of key * per_block is the key's block
  int heads, kv_heads, group;  // group: query heads per kv head
  int head_dim, value_dim;
  float scale, soft_cap;
  int window, chunk, relative_reach;
  bool causal;
};

// The same if the caches have the keys of some positions only (ops::KeyShare). Lengths and masks count all positions.
// Kernels are templates over their parameters, so that those for whole caches count nothing.
struct PartParams : AttentionParams {
  int run, parts, part;
  uint32_t per_round;    // 2^32 / (run * parts), rounded up
  int most_decode_rows;  // the most packed rows of a sequence that is decoded
  float* log_sums;       // [tokens, heads]
};
template <class Params>
inline constexpr bool kOfPart = std::is_same_v<Params, PartParams>;

inline RowType result_type(const Tensor& out) {
  if (out.dtype == &kFloat32) return RowType::kFloat;
  if (out.dtype == &kBFloat16) return RowType::kBFloat16;
  CHECK(out.dtype == &kFloat16, "attention cannot write {} (expected one of: float32, bfloat16, float16)",
        out.dtype->name);
  return RowType::kHalf;
}
inline RowType query_type(const Tensor& q) {
  if (q.dtype == &kFloat32) return RowType::kFloat;
  CHECK(q.dtype == &kBFloat16, "attention cannot read queries of {} (expected one of: float32, bfloat16)",
        q.dtype->name);
  return RowType::kBFloat16;
}

inline AttentionParams attention_params(const ops::AttentionArgs& a, const AttentionIndices& at) {
  const bool apart = a.v_cache.data != nullptr;
  const int kv_heads = static_cast<int>(a.k_cache.shape[1]);
  return {.out = a.out.data,
          .out_type = result_type(a.out),
          .q = a.q.data,
          .q_type = query_type(a.q),
          .first = a.first,
          .k = a.k_cache.data,
          .v = apart ? a.v_cache.data : a.k_cache.data,
          .k_scales = a.k_cache.scales,
          .v_scales = apart ? a.v_cache.scales : a.k_cache.scales,
          .query_start = at.query_start,
          .kv_len = at.kv_len,
          .block_table = at.block_table,
          .sinks = a.sinks,
          .alibi_slopes = a.alibi_slopes,
          .relative_bias = a.relative_bias,
          .out_stride = a.out.row_stride,
          .q_stride = a.q.row_stride,
          .value_stride = apart ? a.v_cache.shape[3] : a.k_cache.shape[3],
          .vectors = a.k_cache.shape.elements() / a.k_cache.shape[3],
          .block_table_stride = a.block_table_stride,
          .block_size = static_cast<int>(a.k_cache.shape[2]),
          .per_block = static_cast<uint32_t>(((int64_t{1} << 32) + a.k_cache.shape[2] - 1) / a.k_cache.shape[2]),
          .heads = a.heads,
          .kv_heads = kv_heads,
          .group = a.heads / kv_heads,
          .head_dim = static_cast<int>(a.k_cache.shape[3]),
          .value_dim = static_cast<int>(apart ? a.v_cache.shape[3] : a.value_dim),
          .scale = a.scale,
          .soft_cap = a.soft_cap,
          .window = a.window,
          .chunk = a.chunk,
          .relative_reach = a.relative_reach,
          .causal = a.causal};
}

inline PartParams part_params(const ops::AttentionArgs& a, const AttentionIndices& at) {
  const ops::KeyShare& share = a.share;
  const int64_t run = share.whole() ? a.k_cache.shape[2] : share.run, round = run * share.parts;
  const auto per_round = static_cast<uint32_t>(((int64_t{1} << 32) + round - 1) / round);
  return {attention_params(a, at), static_cast<int>(run), share.parts, share.part, per_round,
          kMostDecodeRows,         a.log_sums.as<float>()};
}

}  // namespace sluice::cuda
