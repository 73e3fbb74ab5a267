// Paged attention in fp32 for every shape, type and mask: for checks, fp32 caches and dimensions that the tensor cores
// do not take. One block of 8 warps per row and head. Each warp takes every kWarps-th key with its own online softmax,
// and the warps' results are merged in order. It is batch-invariant: a row's bits depend on its own keys alone. Bound
// by fp32 arithmetic and by reading the cache once per row and head.
#include <type_traits>

#include "kernels/cuda/device/attention_queries.cuh"
#include "kernels/cuda/device/attention_results.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/device/visible_keys.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostDim = 768;
constexpr int kPerLane = kMostDim / kWarp;

struct Partial {
  float top, sum;
};

template <class T, class Params>
__global__ void __launch_bounds__(kWarps* kWarp) attend(const __grid_constant__ Params p, int sequences) {
  constexpr bool kScaled = std::is_same_v<T, int8_t>;
  extern __shared__ float shared[];  // [kWarps][value_dim], then the partials
  auto* partials = reinterpret_cast<Partial*>(shared + kWarps * p.value_dim);
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int sequence = last_of(0, sequences - 1, [&](int s) { return p.query_start[s] <= row; });
  const int position = p.kv_len[sequence] - p.query_start[sequence + 1] + row;
  const int first = first_visible(p, position), last = last_visible(p, position, p.kv_len[sequence]);
  const int32_t* table = p.block_table + int64_t{sequence} * p.block_table_stride;
  const T *keys = reinterpret_cast<const T*>(p.k), *values = reinterpret_cast<const T*>(p.v);
  float query[kPerLane], mixed[kPerLane];
  with_queries(p, [&](const auto* q) {
    q += row * p.q_stride + int64_t{head} * p.head_dim;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) query[i] = lane + i * kWarp < p.head_dim ? to_f32(q[lane + i * kWarp]) : 0.0f;
  });
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mixed[i] = 0.0f;
  Partial own{-INFINITY, 0.0f};
  for (int key = first + warp; key <= last; key += kWarps) {
    const int64_t block = table[key / p.block_size];
    const int64_t slot = (block * p.kv_heads + head / p.group) * p.block_size + key % p.block_size;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = lane + i * kWarp;
      if (d < p.head_dim) dot = fmaf(query[i], to_f32(keys[slot * p.head_dim + d]), dot);
    }
    float score = warp_sum(dot) * p.scale;
    if constexpr (kScaled) score *= p.k_scales[slot];
    if (p.soft_cap > 0) score = p.soft_cap * tanhf(score / p.soft_cap);
    if (p.alibi_slopes != nullptr) score += p.alibi_slopes[head] * static_cast<float>(key - position);
    if (p.relative_bias != nullptr) score += distance_bias(p, head, position, key);
    const bool higher = !(score <= own.top);  // true for NaN, which has to reach the result
    const float top = higher ? score : own.top;
    const float keep = higher ? expf(own.top - top) : 1.0f;
    float weight = expf(score - top);
    own = {top, own.sum * keep + weight};
    if constexpr (kScaled) weight *= p.v_scales[slot];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = lane + i * kWarp;
      if (d < p.value_dim) mixed[i] = fmaf(weight, to_f32(values[slot * p.value_stride + d]), mixed[i] * keep);
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + i * kWarp < p.value_dim) shared[warp * p.value_dim + lane + i * kWarp] = mixed[i];
  }
  if (lane == 0) partials[warp] = own;
  __syncthreads();
  float top = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
  for (int w = 0; w < kWarps; ++w) top = !(partials[w].top <= top) ? partials[w].top : top;
  if (kOfPart<Params> && first > last) top = 0.0f;  // the row sees no key
  float sum = p.sinks != nullptr ? expf(p.sinks[head] - top) : 0.0f;
  // A warp without keys adds nothing: its weight is zero (the largest score is finite or NaN).
  for (int w = 0; w < kWarps; ++w) sum += partials[w].sum * expf(partials[w].top - top);
  if constexpr (kOfPart<Params>) {
    if (threadIdx.x == 0) p.log_sums[int64_t{row} * p.heads + head] = top + logf(sum);
    if (first > last) sum = 1.0f;  // all values are zero
  }
  for (int d = threadIdx.x; d < p.value_dim; d += blockDim.x) {
    float result = 0.0f;
    for (int w = 0; w < kWarps; ++w) result += shared[w * p.value_dim + d] * expf(partials[w].top - top);
    put_result(p, row * p.out_stride + int64_t{head} * p.value_dim + d, result / sum);
  }
}

template <class Params>
void launch(const Launch& l, const ops::AttentionArgs& args, const Params& p, int sequences) {
  CHECK(p.head_dim <= kMostDim && p.value_dim <= kMostDim, "attention: head dimensions {} and {} are above {}",
        p.head_dim, p.value_dim, kMostDim);
  if (args.q.rows() == 0) return;
  const dim3 grid(static_cast<unsigned>(args.q.rows()), static_cast<unsigned>(p.heads));
  const size_t shared = kWarps * (static_cast<size_t>(p.value_dim) * sizeof(float) + sizeof(Partial));
  const DType type = args.k_cache.dtype;
  if (type == &kFloat32) {
    attend<float, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  } else if (type == &kBFloat16) {
    attend<__nv_bfloat16, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  } else if (type == &kFloat16) {
    attend<__half, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  } else if (type == &kInt8) {
    attend<int8_t, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  } else if (type == &kFloat8E5M2) {
    attend<__nv_fp8_e5m2, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  } else {
    CHECK(type == &kFloat8E4M3, "attention: caches of {} are not supported", type->name);
    attend<__nv_fp8_e4m3, Params><<<grid, kWarps * kWarp, shared, l.stream>>>(p, sequences);
  }
  check_launch("exact attention");
}

}  // namespace

void attention_exact(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  if (args.log_sums.data != nullptr) return launch(l, args, part_params(args, at), at.sequences);
  launch(l, args, attention_params(args, at), at.sequences);
}

}  // namespace sluice::cuda
