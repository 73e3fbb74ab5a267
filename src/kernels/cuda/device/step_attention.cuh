// Attention of one row per sequence inside a program (step_kernel.cuh), where what counts is how soon the result is
// there: a unit, the keys of a chunk for one kv head, is a block's. Keys and values come through the ring as weights
// do, 16 of each in a stage, long before the queries; a stage is the warp's that its place belongs to. Scores are
// products of the tensor cores, keys by queries, with the inputs in the order of their packs of 16 bytes; values are
// mixed in fp32. Warps keep maxima and sums of their own, which meet in shared memory at the end of the unit, those of
// chunks in device memory.
#pragma once

#include "kernels/cuda/decode_plan.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/team.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

inline constexpr int kStageKeys = 16;
// Chunks begin at multiples of kCutKeys and are kShortestCut keys at least, where there are so many: a few stages more
// take less time than adding up two results.
inline constexpr int kCutKeys = 128, kShortestCut = 256;

// A block's unit of attention, the keys of a chunk for one kv head of a sequence, and all of it that does not depend on
// the layer: found once at the begin of a launch.
struct UnitPlace {
  int kv_head, pair, chunk, chunks;  // chunks: of the sequence; 0: the block has no unit
  int begin, end, kv_len, token, first_block, blocks;
  int64_t slot, table;  // table: where the sequence's blocks begin
  int32_t ids[kWarp];   // the first ones of its blocks
  alignas(16) float cos_sin[kStepMostDim];
};

// By one warp.
__device__ inline void find_place(const StepAttention& a, int unit, UnitPlace& to) {
  const AttentionParams& p = a.params;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int pair = unit / a.cuts, chunk = unit % a.cuts, sequence = pair / p.kv_heads;
  if (sequence >= a.sequences) {
    if (lane == 0) to.chunks = 0;
    return;
  }
  const int kv_len = __ldg(p.kv_len + sequence), token = __ldg(p.query_start + sequence);
  const int first = first_visible(p, kv_len - 1) / kCutKeys * kCutKeys, keys = kv_len - first;
  const int length = (max((keys + a.cuts - 1) / a.cuts, kShortestCut) + kCutKeys - 1) / kCutKeys * kCutKeys;
  const int begin = first + chunk * length, end = min(begin + length, kv_len);
  const bool is_one = begin < kv_len;
  const int64_t table = int64_t{sequence} * p.block_table_stride;
  const int first_block = begin / p.block_size, blocks = is_one ? (end - 1) / p.block_size - first_block + 1 : 0;
  if (lane == 0) {
    to.kv_head = pair % p.kv_heads, to.pair = pair, to.chunk = chunk;
    to.chunks = is_one ? (keys + length - 1) / length : 0;
    to.begin = begin, to.end = end, to.kv_len = kv_len, to.token = token;
    to.first_block = first_block, to.blocks = blocks, to.table = table;
    to.slot = __ldg(a.rotation.slots + token);
  }
  to.ids[lane] = lane < blocks ? __ldg(p.block_table + table + first_block + lane) : 0;
  if (!is_one || a.rotation.rotary == 0) return;
  const float* cos_sin = a.rotation.cos_sin + __ldg(a.rotation.positions + token) * a.rotation.cos_sin_stride;
  for (int i = lane; i < a.rotation.rotary; i += kWarp) to.cos_sin[i] = __ldg(cos_sin + i);
}

// The stages of the ring that are a warp's: those at places warp, warp + kStepWarps and so on. So a place is waited for
// by one warp alone, in every round.
struct OwnStages {
  RingPlace place;
  int next;  // counted from the begin of the panel, or of the keys, that are next
};

// Shared memory of a unit.
template <class T, int dim>
struct AttentionScratch {
  static constexpr int kPitch = dim + 8;
  alignas(16) T queries[kQueries][kPitch];
  alignas(16) T new_key[dim], new_value[dim];   // of the last position, on their way to the cache
  alignas(16) float raw[(kQueries + 2) * dim];  // queries, key and value before the rotation
  float weights[kStepWarps][kStageKeys][kQueries];
  float tops[kStepWarps][kQueries], sums[kStepWarps][kQueries];
  alignas(16) float mixed[kStepWarps][kQueries][dim];
  int last;
};

template <class T, int dim, int heads>
class ChunkAttention {
 public:
  using Scratch = AttentionScratch<T, dim>;

  __device__ ChunkAttention(const StepAttention& a, Scratch& scratch, const UnitPlace& place)
      : p_(a.params), scratch_(scratch), kv_len_(place.kv_len), end_(place.end) {
    head_[0] = place.kv_head * p_.group + min(2 * t(), p_.group - 1);
    head_[1] = place.kv_head * p_.group + min(2 * t() + 1, p_.group - 1);
  }

  // The keys from `first` on that a stage has; queries, and key and value of the last position, which the cache did not
  // have yet, are in shared memory.
  __device__ void attend(const std::byte* stage, int first) {
    float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const T* query = scratch_.queries[min(g(), p_.group - 1)] + t() * 8;
    const int last = kv_len_ - 1 - first;  // where that position is among these keys
    const std::byte* keys = stage + (g() * p_.head_dim + t() * 8) * 2;
    const std::byte* new_key = reinterpret_cast<const std::byte*>(scratch_.new_key + t() * 8);
#pragma unroll
    for (int i = 0; i < dim / 32; ++i) {
      const uint4 q = *reinterpret_cast<const uint4*>(query + i * 32);
      uint4 a = {0, 0, 0, 0}, c = {0, 0, 0, 0};  // what is behind the keys' dims is multiplied, too
      if (i * 32 + t() * 8 < p_.head_dim) {
        a = *reinterpret_cast<const uint4*>((last == g() ? new_key : keys) + i * 64);
        c = *reinterpret_cast<const uint4*>((last == g() + 8 ? new_key : keys + 16 * p_.head_dim) + i * 64);
      }
      mma<T>(scores, a.x, c.x, a.y, c.y, q.x, q.y);
      mma<T>(scores, a.z, c.z, a.w, c.w, q.z, q.w);
    }
    const int position[2] = {kv_len_ - 1, kv_len_ - 1};
    const auto row = [](int i) { return i % 2; };
    const auto key_of = [&](int i) { return first + i / 2 * 8 + g(); };
    if (!plain_scores(p_)) adjust(p_, scores, head_, position, row, key_of);
    if (first + kStageKeys > end_ || first < first_visible(p_, kv_len_ - 1)) {
      mask(p_, scores, position, kv_len_, row, key_of);
    }
    soften(scores);
    mix(stage + kStageKeys * p_.head_dim * 2, last, min(end_ - first, kStageKeys));
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
      float* to = &scratch_.mixed[warp()][q][lane() * (dim / 32)];
      if constexpr (dim == 128) {
        *reinterpret_cast<float4*>(to) = {mixed_[q][0], mixed_[q][1], mixed_[q][2], mixed_[q][3]};
      } else {
        *reinterpret_cast<float2*>(to) = {mixed_[q][0], mixed_[q][1]};
      }
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

  // What is behind the last key may be no numbers.
  __device__ void mix(const std::byte* values, int last, int count) {
    const bool own = lane() * (dim / 32) < p_.value_dim;
    const std::byte* new_value = reinterpret_cast<const std::byte*>(scratch_.new_value);
#pragma unroll
    for (int key = 0; key < kStageKeys; ++key) {
      if (key >= count) break;
      const std::byte* from = key == last ? new_value : values + key * p_.value_dim * 2;
      float v[dim / 32];
      unpack_values(own ? *reinterpret_cast<const Values*>(from + lane() * (dim / 32) * 2) : Values{}, v);
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
  const int kv_len_, end_;
  int head_[2];
  float top_[2] = {-INFINITY, -INFINITY}, sum_[2] = {0.0f, 0.0f};
  float mixed_[heads][dim / 32] = {};
};

// Results of parts become one: thread i has the values 4 (i % 32) .. + 3 of query i / 32.
struct PartialResult {
  float top = -INFINITY, sum = 0.0f;
  float4 values = {0.0f, 0.0f, 0.0f, 0.0f};

  // Of a part whose top is lower by what makes this factor.
  __device__ void add(float factor, float other_sum, const float4& v) {
    sum = fmaf(other_sum, factor, sum);
    values = {fmaf(v.x, factor, values.x), fmaf(v.y, factor, values.y), fmaf(v.z, factor, values.z),
              fmaf(v.w, factor, values.w)};
  }
  __device__ void merge(float other_top, float other_sum, const float4& v) {
    const float highest = fmaxf(top, other_top), base = highest == -INFINITY ? 0.0f : highest;
    const float keep = exp2_fast(top - base), take = exp2_fast(other_top - base);
    top = highest, sum = sum * keep + other_sum * take;
    values = {values.x * keep + v.x * take, values.y * keep + v.y * take, values.z * keep + v.z * take,
              values.w * keep + v.w * take};
  }
  template <class T>
  __device__ void write(const StepAttention& a, int token, int head, int at, uint32_t tag) const {
    const AttentionParams& p = a.params;
    const float sink = p.sinks != nullptr ? p.sinks[head] * kLog2E : -INFINITY;
    const float highest = fmaxf(top, sink), keep = exp2_fast(top - highest);
    const float factor = keep / (sum * keep + (p.sinks != nullptr ? exp2_fast(sink - highest) : 0.0f));
    if (at >= p.value_dim) return;  // whole packs of eight
    const int64_t column = int64_t{head} * p.value_dim + at, to = token * p.out_stride + column;
    const float4 v = {values.x * factor, values.y * factor, values.z * factor, values.w * factor};
    if (a.put.words != nullptr) {
      put_quad(a.put.words + token * a.put.stride + column / 2, {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w), 0.0f, tag});
    }
    if (!a.keeps_out) return;
    put_result(p, to, v.x), put_result(p, to + 1, v.y), put_result(p, to + 2, v.z), put_result(p, to + 3, v.w);
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

// Queries of a unit and, at its end, key and value of the last position, as the product before gives them. Asked for
// when this is made: before keys and values are, which take longer.
template <class T, int dim>
class Vectors {
 public:
  __device__ Vectors(const StepAttention& a, const UnitPlace& place, bool last, uint32_t tag)
      : a_(a), place_(place), last_(last), tag_(tag) {
    const AttentionParams& p = a.params;
    of_queries_ = p.group * p.head_dim, with_key_ = of_queries_ + (last ? p.head_dim : 0);
    all_ = with_key_ + (last ? p.value_dim : 0);
#pragma unroll
    for (int i = 0; i < kAsked; ++i) {
      asked_[i] = {0, tag, 0, tag};
      if (at(i) >= all_) break;
      if (a.in.words != nullptr) {
        asked_[i] = look_at_words(words(i));
      } else {
        const float* from = memory(i);
        asked_[i].x = __float_as_uint(__ldcg(from)), asked_[i].z = __float_as_uint(__ldcg(from + 1));
      }
    }
  }

  // To shared memory, rotated; the new key and value also to the cache.
  __device__ void take(AttentionScratch<T, dim>& scratch, const Team& team) const;

 private:
  static constexpr int kThreads = kStepWarps * kWarp, kAsked = ((kQueries + 2) * dim / 2 + kThreads - 1) / kThreads;

  // The element of the i-th pair. Heads are whole eights of elements.
  static __device__ int at(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) * 2; }
  __device__ const uint4* words(int i) const {
    const AttentionParams& p = a_.params;
    int column = at(i);
    if (column < of_queries_) {
      column += a_.q_at + place_.kv_head * of_queries_;
    } else if (column < with_key_) {
      column += a_.k_at + place_.kv_head * p.head_dim - of_queries_;
    } else {
      column += a_.v_at + place_.kv_head * p.value_dim - with_key_;
    }
    return reinterpret_cast<const uint4*>(a_.in.words + place_.token * a_.in.stride + column);
  }
  __device__ const float* memory(int i) const {
    const AttentionParams& p = a_.params;
    const StepRotation& r = a_.rotation;
    if (at(i) < of_queries_) {
      return static_cast<const float*>(p.q) + place_.token * p.q_stride + int64_t{place_.kv_head} * of_queries_ + at(i);
    }
    if (at(i) < with_key_) {
      return r.k + place_.token * r.k_stride + int64_t{place_.kv_head} * p.head_dim + at(i) - of_queries_;
    }
    return r.v + place_.token * r.v_stride + int64_t{place_.kv_head} * p.value_dim + at(i) - with_key_;
  }

  const StepAttention& a_;
  const UnitPlace& place_;
  const bool last_;
  const uint32_t tag_;
  int of_queries_, with_key_, all_;
  uint4 asked_[kAsked];
};

template <class T, int dim>
__device__ void Vectors<T, dim>::take(AttentionScratch<T, dim>& scratch, const Team& team) const {
  const AttentionParams& p = a_.params;
  const int kv_head = place_.kv_head;
#pragma unroll
  for (int i = 0; i < kAsked; ++i) {
    if (at(i) >= all_) break;
    const bool waits = a_.in.words != nullptr;
    const uint2 pair = waits ? wait_for_words(words(i), asked_[i], tag_) : uint2{asked_[i].x, asked_[i].z};
    *reinterpret_cast<uint2*>(scratch.raw + at(i)) = pair;
  }
  team.sync();
  // Two elements a thread, which are rotated together or not at all; behind the queries comes the key.
  const StepRotation& r = a_.rotation;
  T *k = nullptr, *v = nullptr;
  if (last_) {
    k = Cache<T>{reinterpret_cast<T*>(r.k_cache), r.kv_heads, r.block_size, r.head_dim}.row(place_.slot, kv_head);
    v = Cache<T>{reinterpret_cast<T*>(r.v_cache), r.kv_heads, r.block_size, r.value_dim}.row(place_.slot, kv_head);
  }
  const int half = r.rotary / 2, heads = p.group + (last_ ? 1 : 0);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < heads * (dim / 2); i += team.threads()) {
    const int head = i / (dim / 2), pair = i % (dim / 2);
    const bool rotates = pair < half, apart = rotates && !r.interleaved;
    const int first = apart ? pair : 2 * pair, second = apart ? pair + half : first + 1;
    float x = 0.0f, y = 0.0f;
    if (first < p.head_dim) x = scratch.raw[head * p.head_dim + first], y = scratch.raw[head * p.head_dim + second];
    if (rotates) {
      const float c = place_.cos_sin[pair], s = place_.cos_sin[half + pair], before = x;
      x = before * c - y * s, y = y * c + before * s;
    }
    T* to = head < p.group ? scratch.queries[head] : scratch.new_key;
    to[first] = from_f32<T>(x), to[second] = from_f32<T>(y);
    if (head == p.group && first < p.head_dim) k[first] = from_f32<T>(x), k[second] = from_f32<T>(y);
  }
  if (last_) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < r.value_dim; i += team.threads()) {
      scratch.new_value[i] = v[i] = from_f32<T>(scratch.raw[with_key_ + i]);
    }
  }
  team.sync();
}

template <class T, int dim, int heads>
__device__ void attend_unit(const StepAttention& a, AttentionScratch<T, dim>& scratch, const std::byte* ring,
                            OwnStages& own_stages, const UnitPlace& place, const Team& team, uint32_t epoch,
                            uint32_t tag) {
  if (place.chunks == 0) return;
  const AttentionParams& p = a.params;
  const int thread = threadIdx.x, query = thread / kWarp, at = thread % kWarp * 4;  // of the results
  const int kv_head = place.kv_head, token = place.token, pair = place.pair, chunks = place.chunks;
  const Vectors<T, dim> vectors(a, place, place.end == place.kv_len, epoch + a.in.step);
  ChunkAttention<T, dim, heads> attention(a, scratch, place);
  vectors.take(scratch, team);
  const int stages = (place.end - place.begin + kStageKeys - 1) / kStageKeys;
#pragma unroll 1
  while (own_stages.next < stages) {
    own_stages.place.wait_full();
    attention.attend(ring + own_stages.place.offset(), place.begin + own_stages.next * kStageKeys);
    __syncwarp();
    if (thread % kWarp == 0) arrive(own_stages.place.empty());
    own_stages.next += own_stages.place.next();
  }
  own_stages.next -= stages;
  attention.leave();
  team.sync();
  PartialResult result;
  const bool own = query < p.group && at < dim;
  if (own) {
    float tops[kStepWarps];
#pragma unroll
    for (int w = 0; w < kStepWarps; ++w) {
      tops[w] = scratch.tops[w][query];
      result.top = fmaxf(result.top, tops[w]);
    }
    const float base = result.top == -INFINITY ? 0.0f : result.top;
#pragma unroll
    for (int w = 0; w < kStepWarps; ++w) {
      result.add(exp2_fast(tops[w] - base), scratch.sums[w][query],
                 *reinterpret_cast<const float4*>(&scratch.mixed[w][query][at]));
    }
  }
  if (chunks == 1) {
    if (own) result.write<T>(a, token, kv_head * p.group + query, at, tag);
    return;
  }
  // To its slot; who comes last adds up all of them.
  const auto slot = [&](int c) { return (int64_t{pair} * a.cuts + c) * kQueries + query; };
  if (own) {
    if (at < p.value_dim) *reinterpret_cast<float4*>(a.values + slot(place.chunk) * dim + at) = result.values;
    if (at == 0) a.sums[slot(place.chunk)] = {result.top, result.sum};
  }
  team.sync();
  if (thread == 0) {
    uint32_t before;  // zero again after the last one
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(a.arrivals + pair), "r"(chunks - 1)
                 : "memory");
    scratch.last = before == static_cast<uint32_t>(chunks - 1);
  }
  team.sync();
  if (scratch.last && own) {
    PartialResult all;
#pragma unroll 4
    for (int c = 0; c < chunks; ++c) {
      const float2 sum = __ldcg(reinterpret_cast<const float2*>(a.sums + slot(c)));
      float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
      if (at < p.value_dim) v = __ldcg(reinterpret_cast<const float4*>(a.values + slot(c) * dim + at));
      all.merge(sum.x, sum.y, v);
    }
    all.write<T>(a, token, kv_head * p.group + query, at, tag);
  }
}

template <class T>
__device__ void attend(const StepAttention& a, std::byte* scratch, const std::byte* ring, OwnStages& own,
                       const UnitPlace& place, const Team& team, uint32_t epoch, uint32_t tag) {
  const auto run = [&](auto dim_of) {
    constexpr int dim = decltype(dim_of)::value;
    auto& memory = *reinterpret_cast<AttentionScratch<T, dim>*>(scratch);
    if (a.params.group <= 4) {
      attend_unit<T, dim, 4>(a, memory, ring, own, place, team, epoch, tag);
    } else {
      attend_unit<T, dim, 8>(a, memory, ring, own, place, team, epoch, tag);
    }
  };
  if (max(a.params.head_dim, a.params.value_dim) <= 64) {
    run(std::integral_constant<int, 64>());
  } else {
    run(std::integral_constant<int, 128>());
  }
}

}  // namespace sluice::cuda::step
