// Attention of one row per sequence inside a program (step_kernel.cuh), where what counts is how soon the result is
// there: a unit, the keys of a chunk for one kv head, is a block's, and each of its warps takes 16 keys at a time
// straight from the cache into registers. Scores are products of the tensor cores, keys by queries, with the inputs in
// the order of their packs of 16 bytes; values are mixed in fp32. Warps keep maxima and sums of their own, which meet
// in shared memory at the end of the unit, those of chunks in device memory.
#pragma once

#include "kernels/cuda/decode_plan.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/team.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

inline constexpr int kWarpKeys = 16, kTileKeys = kStepWarps * kWarpKeys;

// The keys of a sequence, cut for the device's blocks.
struct KeyChunks {
  int first, length, count, kv_len;
  __device__ KeyChunks(const StepAttention& a, int sequence) {
    kv_len = __ldg(a.params.kv_len + sequence);
    first = first_visible(a.params, kv_len - 1) / kTileKeys * kTileKeys;
    const int keys = kv_len - first, aim = (keys + a.cuts - 1) / a.cuts;
    length = (aim + kTileKeys - 1) / kTileKeys * kTileKeys;
    count = (keys + length - 1) / length;
  }
};

// Shared memory of a unit.
template <class T, int dim>
struct AttentionScratch {
  static constexpr int kPitch = dim + 8;
  T queries[kQueries][kPitch];
  float weights[kStepWarps][kWarpKeys][kQueries];
  float tops[kStepWarps][kQueries], sums[kStepWarps][kQueries];
  float mixed[kStepWarps][kQueries][dim];
  int last;
};

template <class T, int dim, int heads>
class ChunkAttention {
 public:
  using Scratch = AttentionScratch<T, dim>;

  __device__ ChunkAttention(const StepAttention& a, Scratch& scratch, int sequence, int kv_head,
                            const KeyChunks& chunks)
      : p_(a.params), scratch_(scratch), kv_head_(kv_head), kv_len_(chunks.kv_len) {
    table_ = p_.block_table + int64_t{sequence} * p_.block_table_stride;
    head_[0] = kv_head * p_.group + min(2 * t(), p_.group - 1);
    head_[1] = kv_head * p_.group + min(2 * t() + 1, p_.group - 1);
  }

  // Asks for the warp's keys and values of the tile from `key` on.
  __device__ void load(int key, int end) {
    const int first = key + warp() * kWarpKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = first + half * 8;
      int64_t vector = 0;
      if (group < end) {
        const int block = static_cast<int>(__umulhi(static_cast<unsigned>(group), p_.per_block));
        vector =
            (int64_t{__ldg(table_ + block)} * p_.kv_heads + kv_head_) * p_.block_size + group - block * p_.block_size;
      }
      const std::byte* k = p_.k + (vector + g()) * p_.head_dim * 2 + t() * 16;
#pragma unroll
      for (int i = 0; i < dim / 32; ++i) {
        keys_[i][half] = {0, 0, 0, 0};
        if (group < end && i * 32 + t() * 8 < p_.head_dim) {
          keys_[i][half] = __ldcg(reinterpret_cast<const uint4*>(k + i * 64));
        }
      }
      const std::byte* v = p_.v + (vector * p_.value_stride + lane() * (dim / 32)) * 2;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        Values& to = values_[half * 8 + i];
        to = {};
        if (group + i < end && lane() * (dim / 32) < p_.value_dim) {
          to = __ldcg(reinterpret_cast<const Values*>(v + i * p_.value_stride * 2));
        }
      }
    }
  }

  // What was loaded, for the keys from `key` on; queries are in shared memory.
  __device__ void attend(int key, int end) {
    float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const T* query = scratch_.queries[min(g(), p_.group - 1)] + t() * 8;
#pragma unroll
    for (int i = 0; i < dim / 32; ++i) {
      const uint4 q = *reinterpret_cast<const uint4*>(query + i * 32);
      const uint4 &a = keys_[i][0], &c = keys_[i][1];
      mma<T>(scores, a.x, c.x, a.y, c.y, q.x, q.y);
      mma<T>(scores, a.z, c.z, a.w, c.w, q.z, q.w);
    }
    const int first = key + warp() * kWarpKeys, position[2] = {kv_len_ - 1, kv_len_ - 1};
    const auto row = [](int i) { return i % 2; };
    const auto key_of = [&](int i) { return first + i / 2 * 8 + g(); };
    if (!plain_scores(p_)) adjust(p_, scores, head_, position, row, key_of);
    if (first + kWarpKeys > end || first < first_visible(p_, kv_len_ - 1))
      mask(p_, scores, position, kv_len_, row, key_of);
    soften(scores);
    mix();
  }

  // The unit's results to shared memory.
  __device__ void leave() const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = sum_[j];
      sum += __shfl_xor_sync(kFullWarp, sum, 4);
      sum += __shfl_xor_sync(kFullWarp, sum, 8);
      sum += __shfl_xor_sync(kFullWarp, sum, 16);
      if (g() == 0)
        scratch_.tops[warp()][2 * t() + j] = top_[j] * score_unit(p_), scratch_.sums[warp()][2 * t() + j] = sum;
    }
#pragma unroll
    for (int q = 0; q < heads; ++q) {
#pragma unroll
      for (int i = 0; i < dim / 32; ++i) scratch_.mixed[warp()][q][lane() * (dim / 32) + i] = mixed_[q][i];
    }
  }

 private:
  using Values = std::conditional_t<dim == 128, uint2, uint32_t>;  // of a lane: dim / 32

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }

  // Scores to weights relative to the running maximum, which go to shared memory.
  __device__ void soften(float (&scores)[4]) {
    const float unit = score_unit(p_);
    float keep[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float highest = fmaxf(top_[j], fmaxf(scores[j], scores[2 + j]));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 4));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 8));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 16));
      const float base = highest == -INFINITY ? 0.0f : highest * unit;
      keep[j] = exp2_fast(top_[j] * unit - base);
      top_[j] = highest;
      float sum = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float weight = exp2_fast(fmaf(scores[2 * half + j], unit, -base));
        scratch_.weights[warp()][half * 8 + g()][2 * t() + j] = weight;
        sum += weight;
      }
      sum_[j] = sum_[j] * keep[j] + sum;
    }
    __syncwarp();
    if (__any_sync(kFullWarp, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
      for (int q = 0; q < heads; ++q) {
        const float factor = __shfl_sync(kFullWarp, q % 2 == 0 ? keep[0] : keep[1], q / 2);
#pragma unroll
        for (int i = 0; i < dim / 32; ++i) mixed_[q][i] *= factor;
      }
    }
  }

  __device__ void mix() {
#pragma unroll
    for (int key = 0; key < kWarpKeys; ++key) {
      float v[dim / 32];
      unpack_values(values_[key], v);
      float weights[heads];
#pragma unroll
      for (int q = 0; q < heads; q += 4) {
        *reinterpret_cast<float4*>(weights + q) = *reinterpret_cast<const float4*>(&scratch_.weights[warp()][key][q]);
      }
#pragma unroll
      for (int q = 0; q < heads; ++q) {
#pragma unroll
        for (int i = 0; i < dim / 32; ++i) mixed_[q][i] = fmaf(weights[q], v[i], mixed_[q][i]);
      }
    }
    __syncwarp();
  }

  static __device__ void unpack_values(uint32_t pair, float (&v)[2]) { unpack_pair(pair, v[0], v[1]); }
  static __device__ void unpack_values(uint2 four, float (&v)[4]) {
    unpack_pair(four.x, v[0], v[1]), unpack_pair(four.y, v[2], v[3]);
  }
  static __device__ void unpack_pair(uint32_t pair, float& low, float& high) {
    if constexpr (std::is_same_v<T, __half>) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      low = both.x, high = both.y;
    } else {
      low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
    }
  }

  const AttentionParams& p_;
  Scratch& scratch_;
  const int32_t* table_;
  const int kv_head_, kv_len_;
  int head_[2];
  float top_[2] = {-INFINITY, -INFINITY}, sum_[2] = {0.0f, 0.0f};
  uint4 keys_[dim / 32][2];
  Values values_[kWarpKeys];
  float mixed_[heads][dim / 32] = {};
};

// Results of `count` parts become one: thread i has the values 4 (i % 32) .. + 3 of query i / 32. part(i) gives top,
// sum and values of part i.
struct PartialResult {
  float top = -INFINITY, sum = 0.0f;
  float4 values = {0.0f, 0.0f, 0.0f, 0.0f};

  __device__ void add(float other_top, float other_sum, const float4& v) {
    const float highest = fmaxf(top, other_top), base = highest == -INFINITY ? 0.0f : highest;
    const float keep = exp2_fast(top - base), take = exp2_fast(other_top - base);
    top = highest, sum = sum * keep + other_sum * take;
    values = {values.x * keep + v.x * take, values.y * keep + v.y * take, values.z * keep + v.z * take,
              values.w * keep + v.w * take};
  }
  __device__ void write(const AttentionParams& p, int token, int head, int at) const {
    const float sink = p.sinks != nullptr ? p.sinks[head] * kLog2E : -INFINITY;
    const float highest = fmaxf(top, sink), keep = exp2_fast(top - highest);
    const float factor = keep / (sum * keep + (p.sinks != nullptr ? exp2_fast(sink - highest) : 0.0f));
    if (at >= p.value_dim) return;  // whole packs of eight
    const int64_t to = token * p.out_stride + int64_t{head} * p.value_dim + at;
    put_result(p, to, values.x * factor), put_result(p, to + 1, values.y * factor);
    put_result(p, to + 2, values.z * factor), put_result(p, to + 3, values.w * factor);
  }
};

__device__ inline Rotation rotation_of(const StepRotation& a) {
  return {a.cos_sin, a.cos_sin_stride, a.rotary, a.interleaved};
}
__device__ inline const float* table_of(const StepRotation& a, int row) {
  return a.rotary > 0 ? a.cos_sin + __ldg(a.positions + row) * a.cos_sin_stride : nullptr;
}

// Key and value of a row, for one kv head, to the cache.
template <class T>
__device__ void store_key(const StepRotation& a, int row, int kv_head, const Team& team) {
  const Rotation rotation = rotation_of(a);
  const float* table = table_of(a, row);
  const int64_t slot = __ldg(a.slots + row);
  T* k = Cache<T>{reinterpret_cast<T*>(a.k_cache), a.kv_heads, a.block_size, a.head_dim}.row(slot, kv_head);
  T* v = Cache<T>{reinterpret_cast<T*>(a.v_cache), a.kv_heads, a.block_size, a.value_dim}.row(slot, kv_head);
  const float* from_k = a.k + row * a.k_stride + int64_t{kv_head} * a.head_dim;
  const float* from_v = a.v + row * a.v_stride + int64_t{kv_head} * a.value_dim;
  for (int i = threadIdx.x; i < a.head_dim + a.value_dim; i += team.threads()) {
    if (i < a.head_dim) {
      k[i] = from_f32<T>(rotated(rotation, table, from_k, i));
    } else {
      v[i - a.head_dim] = from_f32<T>(from_v[i - a.head_dim]);
    }
  }
}

template <class T, int dim, int heads>
__device__ void attend_units(const StepAttention& a, AttentionScratch<T, dim>& scratch, const Team& team) {
  const AttentionParams& p = a.params;
  const int thread = threadIdx.x, units = a.sequences * p.kv_heads * a.cuts;
  const int query = thread / kWarp, at = thread % kWarp * 4;  // of the results
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int pair = unit / a.cuts, chunk = unit % a.cuts, sequence = pair / p.kv_heads, kv_head = pair % p.kv_heads;
    const KeyChunks chunks(a, sequence);
    if (chunk >= chunks.count) continue;
    const int token = __ldg(p.query_start + sequence);
    const int begin = chunks.first + chunk * chunks.length, end = min(begin + chunks.length, chunks.kv_len);
    ChunkAttention<T, dim, heads> attention(a, scratch, sequence, kv_head, chunks);
    if (a.rotation.q != nullptr && end == chunks.kv_len) {
      store_key<T>(a.rotation, token, kv_head, team);
      team.sync();
    }
    attention.load(begin, end);
    const Rotation rotation = rotation_of(a.rotation);
    const float* table = table_of(a.rotation, token);
    for (int i = thread; i < p.group * (dim / 2); i += team.threads()) {
      const int head = i / (dim / 2), column = i % (dim / 2) * 2;
      float2 q = {0.0f, 0.0f};
      if (column < p.head_dim) {
        const float* from = p.q + token * p.q_stride + int64_t{kv_head * p.group + head} * p.head_dim;
        q = {rotated(rotation, table, from, column), rotated(rotation, table, from, column + 1)};
      }
      *reinterpret_cast<uint32_t*>(&scratch.queries[head][column]) = pack2<T>(q.x, q.y);
    }
    team.sync();
    for (int key = begin; key < end; key += kTileKeys) {
      if (key > begin) attention.load(key, end);
      attention.attend(key, end);
    }
    attention.leave();
    team.sync();
    PartialResult result;
    const bool own = query < p.group && at < dim;
    if (own) {
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) {
        result.add(scratch.tops[w][query], scratch.sums[w][query],
                   *reinterpret_cast<const float4*>(&scratch.mixed[w][query][at]));
      }
    }
    if (chunks.count == 1) {
      if (own) result.write(p, token, kv_head * p.group + query, at);
      team.sync();
      continue;
    }
    // To its slot; who comes last adds up all of them.
    const auto slot = [&](int c) { return (int64_t{pair} * a.cuts + c) * kQueries + query; };
    if (own) {
      if (at < p.value_dim) *reinterpret_cast<float4*>(a.values + slot(chunk) * dim + at) = result.values;
      if (at == 0) a.sums[slot(chunk)] = {result.top, result.sum};
    }
    team.sync();
    if (thread == 0) {
      int before = 0;
      asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(a.arrivals + pair) : "memory");
      scratch.last = before == chunks.count - 1;
      if (scratch.last) a.arrivals[pair] = 0;
    }
    team.sync();
    if (scratch.last && own) {
      PartialResult all;
#pragma unroll 4
      for (int c = 0; c < chunks.count; ++c) {
        const float2 sum = __ldcg(reinterpret_cast<const float2*>(a.sums + slot(c)));
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (at < p.value_dim) v = __ldcg(reinterpret_cast<const float4*>(a.values + slot(c) * dim + at));
        all.add(sum.x, sum.y, v);
      }
      all.write(p, token, kv_head * p.group + query, at);
    }
    team.sync();
  }
}

template <class T>
__device__ void attend(const StepAttention& a, std::byte* scratch, const Team& team) {
  const auto run = [&](auto dim_of) {
    constexpr int dim = decltype(dim_of)::value;
    auto& memory = *reinterpret_cast<AttentionScratch<T, dim>*>(scratch);
    if (a.params.group <= 4) {
      attend_units<T, dim, 4>(a, memory, team);
    } else {
      attend_units<T, dim, 8>(a, memory, team);
    }
  };
  if (max(a.params.head_dim, a.params.value_dim) <= 64) {
    run(std::integral_constant<int, 64>());
  } else {
    run(std::integral_constant<int, 128>());
  }
}

}  // namespace sluice::cuda::step
