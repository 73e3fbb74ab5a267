// Attention of one query row per sequence inside the persistent decode kernel (decode_kernel/kernel.cuh), where latency
// matters most. A unit is the keys of one chunk for one kv head and belongs to one block. Keys and values come through
// the ring, as weights do, kDecodeKeys of each per stage, and before the queries arrive. Each warp takes stages of its
// own. It multiplies queries by keys and then weights by values on the tensor cores; the second matmul takes its
// operand from the registers as the first one leaves it (Dao 2023, arXiv:2307.08691). The warps' results are merged in
// shared memory at the end of the unit, those of chunks in device memory.
#pragma once

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/team.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda::persistent {

// Chunks begin at multiples of kCutKeys and have at least kShortestCut keys, if there are that many. A few more stages
// take less time than merging two results.
inline constexpr int kCutKeys = 128, kShortestCut = 256;

// A block's unit of attention: the keys of a chunk for one kv head of a sequence, with everything that does not depend
// on the layer. Found once at the start of a launch.
struct UnitPlace {
  int kv_head, pair, chunk, chunks;  // chunks: number of chunks of the sequence; 0: the block has no unit
  int begin, end, kv_len, token, first_block, blocks, first_visible;
  int64_t vector, table;  // vector: index of the last position's vector in the cache; table: where the sequence's block
                          // table begins
  int32_t ids[kWarp];     // the first KV-cache blocks of the chunk
  alignas(16) float cos_sin[kMostHeadDim];
};

// Finds the unit's place. Called by one warp.
__device__ inline void find_place(const AttentionInstruction& a, int unit, UnitPlace& to) {
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
    to.first_visible = first_visible(p, kv_len - 1);
    to.first_block = first_block, to.blocks = blocks, to.table = table;
    const RopeInstruction& r = a.rotation;
    to.vector = Cache<void>{nullptr, r.kv_heads, r.block_size, 0}.vector(__ldg(r.slots + token), pair % p.kv_heads);
  }
  to.ids[lane] = lane < blocks ? __ldg(p.block_table + table + first_block + lane) : 0;
  if (!is_one || a.rotation.rotary == 0) return;
  const float* cos_sin = a.rotation.cos_sin + __ldg(a.rotation.positions + token) * a.rotation.cos_sin_stride;
  for (int i = lane; i < a.rotation.rotary; i += kWarp) to.cos_sin[i] = __ldg(cos_sin + i);
}

// The stages of the ring that belong to a warp group: every kMathGroups-th.
struct OwnStages {
  RingPlace place;
  int next;  // the next stage, counted from the start of the current panel or key range
};

// The shared memory of a unit.
template <class T, int dim>
struct AttentionScratch {
  static constexpr int kPitch = dim + 8, kMixedPitch = dim + 4;  // pitches avoid bank conflicts
  alignas(16) T queries[kQueries][kPitch];
  alignas(16) T new_key[dim], new_value[dim];  // key and value of the last position
  float squares[kQueries + 2][2];              // sums of squares of the halves of each vector
  alignas(16) float tops[kQueries][kMathWarps], sums[kQueries][kMathWarps];  // tops are exponents of two
  int last;
  alignas(16) float mixed[kQueries][kMathWarps][kMixedPitch];

  // The bytes needed for this many queries.
  static constexpr int bytes(int queries) {
    return static_cast<int>(sizeof(AttentionScratch) - sizeof(float) * kMixedPitch * kMathWarps * (kQueries - queries));
  }
};

// Adjusts the scores of a head: two pairs of neighbouring keys, the pairs eight keys apart. Not inlined, as few models
// need it.
static __device__ __noinline__ float4 adjusted_scores(const AttentionParams& p, float4 v, int head, int key, int last) {
  float scores[4] = {v.x, v.y, v.z, v.w};
  const int heads[2] = {head, head}, position[2] = {last, last};
  adjust(
      p, scores, heads, position, [](int) { return 0; }, [&](int i) { return key + i / 2 * 8 + i % 2; });
  return {scores[0], scores[1], scores[2], scores[3]};
}

// A warp's part of a unit: every kMathWarps-th stage, or two stages at once if the unit has no more than that. A stage
// holds tiles of 128 bytes of all its keys, then those of the values, with packs of 16 bytes swizzled as by
// CU_TENSOR_MAP_SWIZZLE_128B. A lane has the scores of query g with keys 2 t and 2 t + 1 and with those eight keys
// further on.
//
// The whole is a chain of a few hundred dependent instructions that begins when the vectors arrive. So everything that
// does not depend on the vectors is loaded before, and there are few branches.
template <class T, int dim>
class ChunkAttention {
 public:
  using Scratch = AttentionScratch<T, dim>;

  __device__ ChunkAttention(const AttentionInstruction& a, Scratch& scratch, const UnitPlace& place,
                            const RingPlace& at, std::byte* ring)
      : params_(a.params),
        scratch_(scratch),
        at_(at),
        ring_(ring),
        values_at_((a.params.head_dim + 63) / 64 * kTmaTileBytes),
        group_(a.params.group),
        first_head_(place.kv_head * group_),
        begin_(place.begin),
        end_(place.end),
        last_(place.kv_len - 1),
        first_visible_(place.first_visible),
        stages_((end_ - begin_ + kDecodeKeys - 1) / kDecodeKeys),
        together_(stages_ <= min(kMostTogether, at.stages()) ? stages_ : kMathWarps),
        plain_(a.plain),
        unit_(a.score_unit) {
    wait_for_stages();
  }

  // Where the value of the last position is stored: in its stage if that is one of the first ones.
  __device__ uint32_t new_value(int column) const {
    if (stages_ > together_) return shared_address(scratch_.new_value + column);
    const RingPlace last = at_.moved(stages_ - 1);
    last.wait_full();
    return shared_address(ring_) + last.offset() + values_at_ +
           pack_at(end_ - 1 - begin_ - (stages_ - 1) * kDecodeKeys, column / 8) + column % 8 * 2;
  }

  // Attends to the keys and values of the stages at hand.
  __device__ void add() {
    float scores[kOwn][2][4] = {};                                     // eight keys each
    const int last = last_ - begin_ - (first_ + warp_) * kDecodeKeys;  // index of the last position, counted from the
                                                                       // first stage's keys
    const T* new_key = scratch_.new_key + t() * 8;
    const T* query = scratch_.queries[min(g(), group_ - 1)] + t() * 8;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4 q = *reinterpret_cast<const uint4*>(query + i * 32);
      const auto* key = reinterpret_cast<const std::byte*>(new_key + i * 32);
#pragma unroll
      for (int s = 0; s < kOwn; ++s) {
        const int row = last - s * kMathWarps * kDecodeKeys - g();  // 0 or 8: this row is the new key
        const std::byte* keys = stages_at_[s] + pack_at(g(), i * 4 + t());
        const uint4 a = *reinterpret_cast<const uint4*>(row == 0 ? key : keys);
        const uint4 b = *reinterpret_cast<const uint4*>(row == 8 ? key : keys + 8 * 128);
        mma<T>(scores[s][0], q.x, 0, q.y, 0, a.x, a.y);
        mma<T>(scores[s][1], q.x, 0, q.y, 0, b.x, b.y);
        mma<T>(scores[s][0], q.z, 0, q.w, 0, a.z, a.w);
        mma<T>(scores[s][1], q.z, 0, q.w, 0, b.z, b.w);
      }
    }
    float own[kOwn][4], highest = -INFINITY;
#pragma unroll
    for (int s = 0; s < kOwn; ++s) {
      const int key = begin_ + (first_ + warp_ + s * kMathWarps) * kDecodeKeys + 2 * t();
#pragma unroll
      for (int i = 0; i < 4; ++i) own[s][i] = scores[s][i / 2][i % 2];
      if (!plain_) {
        const float4 v = adjusted_scores(params_, {own[s][0], own[s][1], own[s][2], own[s][3]},
                                         first_head_ + min(g(), group_ - 1), key, last_);
        own[s][0] = v.x, own[s][1] = v.y, own[s][2] = v.z, own[s][3] = v.w;
      }
      const bool is_one = warp_ + s * kMathWarps < count();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = key + i / 2 * 8 + i % 2;
        if (!is_one || k < first_visible_ || k >= end_) own[s][i] = -INFINITY;
        highest = fmaxf(highest, own[s][i]);
      }
    }
    highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 2));
    const float top = fmaxf(top_, highest * unit_), base = top == -INFINITY ? 0.0f : top;
    if (first_ > 0) {
      const float keep = exp2_fast(top_ - base);
      const float keeps[2] = {__shfl_sync(kFullWarp, keep, 8 * t()), __shfl_sync(kFullWarp, keep, 8 * t() + 4)};
      sum_ *= keep;
#pragma unroll
      for (int i = 0; i < dim / 16 * 4; ++i) mixed_[i / 4][i % 4] *= keeps[i % 2];
    }
    top_ = top;
#pragma unroll
    for (int s = 0; s < kOwn; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[s][i] = exp2_fast(fmaf(own[s][i], unit_, -base)), sum_ += own[s][i];
    }
    if (warp_ < count()) mix(stages_at_[0], own[0], last);
    if (warp_ + kMathWarps < count()) mix(stages_at_[1], own[1], last - kMathWarps * kDecodeKeys);
  }

  __device__ bool at_last() const { return first_ + count() == stages_; }
  // Frees the stages at hand.
  __device__ void free() {
    const int done = count();
    for (int s = warp_; s < done; s += kMathWarps) {
      if (lane() == 0) arrive(at_.moved(s).empty(), kWarpgroupWarps);
    }
    at_ = at_.moved(done), first_ += done;
  }
  __device__ void next() {
    free();
    wait_for_stages();
  }

  // Stores this warp's results in shared memory.
  __device__ void store_results() const {
    float sum = sum_ + __shfl_xor_sync(kFullWarp, sum_, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    if (t() == 0) scratch_.tops[g()][warp_] = top_, scratch_.sums[g()][warp_] = sum;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (2 * t() + j >= group_) break;
      float* to = &scratch_.mixed[2 * t() + j][warp_][g()];
#pragma unroll
      for (int tile = 0; tile < dim / 16; ++tile)
        to[tile * 16] = mixed_[tile][j], to[tile * 16 + 8] = mixed_[tile][2 + j];
    }
  }

  // The ring place after the last stage.
  __device__ const RingPlace& place() const { return at_; }
  __device__ int stages() const { return stages_; }

 private:
  static constexpr int kSteps = dim / 32, kTmaTileBytes = kDecodeKeys * 128;
  // Stages at hand: per warp, and of all warps together. Longer units have one per warp.
  static constexpr int kOwn = 2, kMostTogether = kOwn * kMathWarps;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  // Where pack i of a vector lies in its tiles.
  __device__ static int pack_at(int row, int i) { return i / 8 * kTmaTileBytes + row * 128 + ((i ^ row) & 7) * 16; }
  __device__ int count() const { return min(together_, stages_ - first_); }

  __device__ void wait_for_stages() {
#pragma unroll
    for (int s = 0; s < kOwn; ++s) {
      if (warp_ + s * kMathWarps < count()) {
        const RingPlace place = at_.moved(warp_ + s * kMathWarps);
        place.wait_full();
        stages_at_[s] = ring_ + place.offset();
      } else {
        stages_at_[s] = s == 0 ? ring_ : stages_at_[0];
      }
    }
  }

  // Adds the values of a stage. `last` is the index of the last position in it.
  __device__ void mix(std::byte* stage, const float (&weights)[4], int last) {
    const bool ends = last < kDecodeKeys;
    if (ends && stages_ > together_ && lane() < dim / 8) {
      *reinterpret_cast<uint4*>(stage + values_at_ + pack_at(last, lane())) =
          *reinterpret_cast<const uint4*>(scratch_.new_value + lane() * 8);
    }
    __syncwarp();
    // Memory behind the last key may hold NaN.
    const int behind = ends ? last : kDecodeKeys;
    const auto kept = [&](int key) { return (key <= behind ? 0xffffu : 0) | (key < behind ? 0xffff0000u : 0); };
    const uint32_t low = kept(2 * t()), high = kept(2 * t() + 8);
    const uint32_t b0 = pack2<T>(weights[0], weights[1]), b1 = pack2<T>(weights[2], weights[3]);
    // Lane l loads the first or the last eight columns of key l % 8 + l / 16 * 8.
    const int key = lane() % 8 + lane() / 16 * 8;
    const uint32_t from = shared_address(stage) + values_at_ + key * 128, pack = (lane() / 8 % 2) ^ (lane() % 8);
#pragma unroll
    for (int tile = 0; tile < dim / 16; ++tile) {
      uint32_t v[4];
      ldmatrix4_transposed(v, from + tile / 4 * kTmaTileBytes + (pack ^ tile % 4 * 2) * 16);
      mma<T>(mixed_[tile], v[0] & low, v[1] & low, v[2] & high, v[3] & high, b0, b1);
    }
  }

  const AttentionParams& params_;
  Scratch& scratch_;
  RingPlace at_;  // the first of the stages at hand
  std::byte* const ring_;
  const int warp_ = static_cast<int>(threadIdx.x) / kWarp;
  const int values_at_;  // offset of the values in a stage
  const int group_, first_head_, begin_, end_, last_, first_visible_, stages_, together_;
  const bool plain_;
  const float unit_;
  int first_ = 0;  // index of the first stage at hand
  std::byte* stages_at_[kOwn];
  float top_ = -INFINITY, sum_ = 0.0f;  // the running maximum of query g; the sum over this lane's keys
  float mixed_[dim / 16][4] = {};       // columns g and g + 8 of every 16, for queries 2 t and 2 t + 1
};

// What the mixed values of a head are multiplied by at the end. sink: -inf if there is none.
__device__ inline float final_factor(float top, float sum, float sink) {
  if (sink == -INFINITY) return 1.0f / sum;
  const float highest = fmaxf(top, sink), keep = exp2_fast(top - highest);
  return keep / (sum * keep + exp2_fast(sink - highest));
}

// Writes four columns of a head's result to memory.
__device__ inline void keep_result(const AttentionParams& p, int token, int head, int at, const float4& v) {
  const int64_t to = token * p.out_stride + int64_t{head} * p.value_dim + at;
  put_result(p, to, v.x), put_result(p, to + 1, v.y), put_result(p, to + 2, v.z), put_result(p, to + 3, v.w);
}

// A merged result of chunks: thread i has the values 4 (i % 32) .. + 3 of query i / 32.
struct PartialResult {
  float top = -INFINITY, sum = 0.0f;
  float4 values = {0.0f, 0.0f, 0.0f, 0.0f};

  // Adds a part whose weights have to be multiplied by `factor` to be relative to this top.
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
};

__device__ inline Rotation rotation_of(const RopeInstruction& a) {
  return {a.cos_sin, a.cos_sin_stride, a.rotary, a.interleaved};
}
__device__ inline const float* table_of(const RopeInstruction& a, int row) {
  return a.rotary > 0 ? a.cos_sin + __ldg(a.positions + row) * a.cos_sin_stride : nullptr;
}

// Writes key and value of a row to the cache, for one kv head.
template <class T>
__device__ void store_key(const RopeInstruction& a, int row, int kv_head, const Team& team) {
  const Rotation rotation = rotation_of(a);
  const float* table = table_of(a, row);
  const int64_t slot = __ldg(a.slots + row);
  if (slot < 0) return;
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

// The queries of a unit and, in the last chunk, key and value of the last position, as the matmul before computes them.
// They are held as pairs of elements that are rotated together, or not at all. The key follows the queries, and the
// value follows the key.
template <class T, int dim>
class Vectors {
 public:
  // Starts to load the vectors.
  __device__ Vectors(const AttentionInstruction& a, const UnitPlace& place, AttentionScratch<T, dim>& scratch,
                     uint32_t tag)
      : words_(a.in.words != nullptr ? a.in.words + place.token * a.in.stride : nullptr),
        tag_(tag),
        group_(a.params.group),
        all_(a.params.group + (place.end == place.kv_len ? 2 : 0)) {
    const AttentionParams& p = a.params;
    const RopeInstruction& r = a.rotation;
    const int half = r.rotary / 2;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Pair& pair = pairs_[i];
      const int vector = vector_of(i), index = index_of(i);
      if (vector >= all_) continue;
      const bool is_key = vector == group_, is_value = vector > group_;
      const bool rotates = !is_value && index < half, apart = rotates && !r.interleaved;
      const int first = apart ? index : 2 * index, columns = is_value ? p.value_dim : p.head_dim;
      pair.second = apart ? half : 1;
      pair.to = shared_address((is_value ? scratch.new_value
                                : is_key ? scratch.new_key
                                         : scratch.queries[vector]) +
                               first);
      if (first >= columns) {
        store_shared(pair.to, 0u);
        continue;
      }
      if (rotates) pair.turn = {place.cos_sin[index], place.cos_sin[half + index]};
      if (a.norms.q_weight != nullptr && !is_value) {
        const float* weight = (is_key ? a.norms.k_weight : a.norms.q_weight) + first;
        pair.factors = {__ldg(weight) + a.norms.offset, __ldg(weight + pair.second) + a.norms.offset};
      }
      const int head = is_key || is_value ? place.kv_head : place.kv_head * p.group + vector;
      pair.column = first, pair.at = head * columns + first;
      if (words_ != nullptr) {
        pair.at += is_value ? a.v_at : is_key ? a.k_at : a.q_at;
        pair.loaded[0] = load_word(words_ + pair.at), pair.loaded[1] = load_word(words_ + pair.at + pair.second);
      } else {
        const float* from = is_value ? r.v + place.token * r.v_stride
                            : is_key ? r.k + place.token * r.k_stride
                                     : static_cast<const float*>(p.q) + place.token * p.q_stride;
        pair.loaded[0].x = __float_as_uint(__ldcg(from + pair.at));
        pair.loaded[1].x = __float_as_uint(__ldcg(from + pair.at + pair.second));
      }
    }
  }

  // Lets the value of the last position go directly to the stage where `attention` reads it.
  __device__ void place_value(const ChunkAttention<T, dim>& attention) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (pairs_[i].column >= 0 && vector_of(i) > group_) pairs_[i].to = attention.new_value(pairs_[i].column);
    }
  }
  // Normalizes and rotates the vectors and stores them in shared memory.
  __device__ void take(const AttentionInstruction& a, AttentionScratch<T, dim>& scratch, const Team& team) {
    const bool normalizes = a.norms.q_weight != nullptr;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Pair& pair = pairs_[i];
      if (pair.column >= 0 && words_ != nullptr) {
        pair.loaded[0].x = wait_for_word(words_ + pair.at, pair.loaded[0], tag_);
        pair.loaded[1].x = wait_for_word(words_ + pair.at + pair.second, pair.loaded[1], tag_);
      }
      if (!normalizes) continue;
      const float2 v = pair.values();
      const float squares = warp_sum(pair.column >= 0 ? v.x * v.x + v.y * v.y : 0.0f);
      if (vector_of(i) < kQueries + 2) scratch.squares[vector_of(i)][half_of(i)] = squares;
    }
    if (normalizes) team.sync();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Pair& pair = pairs_[i];
      if (pair.column < 0) continue;
      float2 v = pair.values();
      const int vector = vector_of(i);
      if (normalizes && vector <= group_) {
        float squares = scratch.squares[vector][0];
        if constexpr (dim / 2 > kWarp) squares += scratch.squares[vector][1];
        const float scale = rsqrtf(squares / static_cast<float>(a.params.head_dim) + a.norms.eps);
        v = {v.x * scale * pair.factors.x, v.y * scale * pair.factors.y};
      }
      const float c = pair.turn.x, s = pair.turn.y;
      pair.result = s == 0.0f && c == 1.0f ? pack2<T>(v.x, v.y) : pack2<T>(v.x * c - v.y * s, v.y * c + v.x * s);
      store_shared(pair.to, static_cast<uint16_t>(pair.result));
      store_shared(pair.to + pair.second * 2, static_cast<uint16_t>(pair.result >> 16));
    }
    team.sync();
  }
  // Also writes the new key and value to the cache.
  __device__ void store(const AttentionInstruction& a, const UnitPlace& place) const {
    const RopeInstruction& r = a.rotation;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Pair& pair = pairs_[i];
      if (pair.column < 0 || vector_of(i) < group_) continue;
      const bool is_value = vector_of(i) > group_;
      auto* to = reinterpret_cast<uint16_t*>(is_value ? r.v_cache : r.k_cache) +
                 place.vector * (is_value ? r.value_dim : r.head_dim) + pair.column;
      to[0] = static_cast<uint16_t>(pair.result), to[pair.second] = static_cast<uint16_t>(pair.result >> 16);
    }
  }

 private:
  static constexpr int kThreads = kMathWarps * kWarp, kPairs = ((kQueries + 2) * dim / 2 + kThreads - 1) / kThreads;
  struct Pair {
    int column = -1;             // the pair's first column in its vector; -1: there is no such pair
    int at = 0, second = 1;      // the pair's offset, and the distance to its second element
    uint32_t to = 0;             // shared-memory address
    float2 turn = {1.0f, 0.0f};  // cosine, sine
    float2 factors;              // norm weights
    uint2 loaded[2] = {};
    uint32_t result = 0;

    __device__ float2 values() const { return {__uint_as_float(loaded[0].x), __uint_as_float(loaded[1].x)}; }
  };
  // The pairs of a warp all belong to one vector.
  static_assert(dim / 2 == kWarp || dim / 2 == 2 * kWarp);
  __device__ static int half_of(int i) { return index_of(i) / kWarp; }
  __device__ static int vector_of(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / (dim / 2); }
  __device__ static int index_of(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) % (dim / 2); }

  const uint2* const words_;
  const uint32_t tag_;
  const int group_, all_;
  Pair pairs_[kPairs];
};

// Merges the warps' results of a unit: thread i has the values 4 (i % 32) .. + 3 of query i / 32.
template <class T, int dim>
__device__ PartialResult merge_warps(const AttentionScratch<T, dim>& scratch, int query, int at) {
  float tops[kMathWarps];
  PartialResult result;
#pragma unroll
  for (int w = 0; w < kMathWarps; ++w) tops[w] = scratch.tops[query][w];
#pragma unroll
  for (int w = 0; w < kMathWarps; ++w) result.top = fmaxf(result.top, tops[w]);
  const float base = result.top == -INFINITY ? 0.0f : result.top;
#pragma unroll
  for (int w = 0; w < kMathWarps; ++w) {
    result.add(exp2_fast(tops[w] - base), scratch.sums[query][w],
               *reinterpret_cast<const float4*>(&scratch.mixed[query][w][at]));
  }
  return result;
}

// Stores the results of a chunk in its slot; the last block to arrive merges all of them. Returns false if this block
// was not the last.
template <int dim>
__device__ bool merge_chunks(const AttentionInstruction& a, const UnitPlace& place, bool own, int query, int at,
                             PartialResult& result, int& last, const Team& team) {
  const int pair = place.pair, chunks = place.chunks;
  const auto slot = [&](int c) { return (int64_t{pair} * a.cuts + c) * kQueries + query; };
  if (own) {
    *reinterpret_cast<float4*>(a.values + slot(place.chunk) * dim + at) = result.values;
    if (at == 0) a.sums[slot(place.chunk)] = {result.top, result.sum};
  }
  team.sync();
  if (threadIdx.x == 0) {
    uint32_t before;  // the counter wraps to zero after the last block
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(a.arrivals + pair), "r"(chunks - 1)
                 : "memory");
    last = before == static_cast<uint32_t>(chunks - 1);
  }
  team.sync();
  if (!last || !own) return false;
  result = {};
#pragma unroll 4
  for (int c = 0; c < chunks; ++c) {
    const float2 of_chunk = __ldcg(reinterpret_cast<const float2*>(a.sums + slot(c)));
    result.merge(of_chunk.x, of_chunk.y, __ldcg(reinterpret_cast<const float4*>(a.values + slot(c) * dim + at)));
  }
  return true;
}

template <class T, int dim>
__device__ void attend_unit(const AttentionInstruction& a, AttentionScratch<T, dim>& scratch, std::byte* ring,
                            OwnStages& own, const UnitPlace& place, const Team& team, uint32_t epoch, uint32_t tag) {
  Vectors<T, dim> vectors(a, place, scratch, epoch + a.in.step);
  ChunkAttention<T, dim> attention(a, scratch, place, own.place.moved(-own.next), ring);
  vectors.place_value(attention);
  const AttentionParams& p = a.params;
  const int query = static_cast<int>(threadIdx.x) / kWarp, at = static_cast<int>(threadIdx.x) % kWarp * 4;
  const int head = place.kv_head * p.group + query, column = head * p.value_dim + at;
  const bool has_result = query < p.group && at < p.value_dim;
  const float sink = p.sinks != nullptr && has_result ? __ldg(p.sinks + head) * kLog2E : -INFINITY;
  uint2* const put =
      has_result && a.put.words != nullptr ? a.put.words + place.token * a.put.stride + column / 2 : nullptr;
  vectors.take(a, scratch, team);
  attention.add();
  while (!attention.at_last()) {
    attention.next();
    attention.add();
  }
  attention.store_results();
  team.sync();
  PartialResult result;
  bool writes = has_result;
  if (has_result) result = merge_warps<T, dim>(scratch, query, at);
  if (place.chunks > 1) writes = merge_chunks<dim>(a, place, has_result, query, at, result, scratch.last, team);
  if (writes) {
    const float factor = final_factor(result.top, result.sum, sink);
    const float4 v = {result.values.x * factor, result.values.y * factor, result.values.z * factor,
                      result.values.w * factor};
    if (put != nullptr) put_quad(put, {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w), 0.0f, tag});
    if (a.keeps_out) keep_result(p, place.token, head, at, v);
  }
  vectors.store(a, place);
  fence_proxy_async();  // TMA copies overwrite the place where the value was stored
  attention.free();
  own.next = (own.next + attention.stages()) % kMathGroups;
  own.place = attention.place().moved(own.next);
}

template <class T>
__device__ void attend(const AttentionInstruction& a, std::byte* scratch, std::byte* ring, OwnStages& own,
                       const UnitPlace& place, const Team& team, uint32_t epoch, uint32_t tag) {
  if (place.chunks == 0) return;
  const auto run = [&](auto dim_of) {
    constexpr int dim = decltype(dim_of)::value;
    attend_unit(a, *reinterpret_cast<AttentionScratch<T, dim>*>(scratch), ring, own, place, team, epoch, tag);
  };
  if (max(a.params.head_dim, a.params.value_dim) <= 64) {
    run(std::integral_constant<int, 64>());
  } else {
    run(std::integral_constant<int, 128>());
  }
}

}  // namespace sluice::cuda::persistent
