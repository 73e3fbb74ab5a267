// Decoding on the device: warps that take units of work (decode_work.cuh) one after another, a ring of keys and values
// in shared memory for each of them, the products with them, and how the results of a sequence's chunks become one.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/decode_work.cuh"

namespace sluice::cuda {

inline constexpr int kMerged = 16;  // results of chunks that are added up at a time
inline constexpr int kStages = 3;   // of a warp's ring

// What a cache of T holds. Products are of 16 bits; 8-bit floats become fp16 in the registers, int8 bf16, exactly. In
// shared memory vectors lie as ones of kUnits<T, dim> units of 16 bits, rows of 128 bytes at least.
template <class T>
struct Cached {
  using Product = T;
  static constexpr int kPerUnit = 1;  // elements
};
template <class T>
requires(sizeof(T) == 1) struct Cached<T> {
  using Product = typename WideOf<T>::Type;
  static constexpr int kPerUnit = 2;
};
template <class T>
inline constexpr bool kScaled = std::is_same_v<T, int8_t>;
template <class T, int dim>
inline constexpr int kUnits = dim / Cached<T>::kPerUnit < 64 ? 64 : dim / Cached<T>::kPerUnit;

template <class T, int dim>
inline constexpr int kStageKeys = kUnits<T, dim> <= 64 ? 32 : 16;  // that a warp takes at a time
template <class T, int dim>
inline constexpr int kRingBytes = kStages* kStageKeys<T, dim>* kUnits<T, dim> * 2 * 2;  // of a warp

// Scales of the ring's keys and values: of every stage those of the keys, then those of the values.
template <class T, int dim>
inline constexpr int kScaleBytes = kScaled<T> ? kStages* kStageKeys<T, dim> * 2 * 4 : 0;

// Units that a warp's copies may be ahead of its arithmetic, the one after the last included.
inline constexpr int kQueue = 8;
static_assert(kStages < kQueue);

// A warp's units, one after another, and its ring of stages of keys and values: what they read. The first unit is that
// of the warp's number, later ones are those that no warp has taken yet.
template <class T, int elements>
class Stream {
  static constexpr int dim = kUnits<T, elements>, per_unit = Cached<T>::kPerUnit;

 public:
  __device__ Stream(const AttentionParams& p, const Work& work, uint32_t base, float* scales, int warps,
                    int32_t* tickets, Unit* queue)
      : p_(p),
        work_(work),
        keys_(p.k, p.head_dim / per_unit, p.head_dim / per_unit),
        values_(p.v, p.value_stride / per_unit, p.value_dim / per_unit),
        base_(base + threadIdx.x / kWarp * kRingBytes<T, elements>),
        scales_(scales + threadIdx.x / kWarp * (kScaleBytes<T, elements> / 4)),
        warps_of_all_(static_cast<int>(gridDim.x) * warps),
        tickets_(tickets),
        queue_(queue + threadIdx.x / kWarp * kQueue) {
    // Units that follow one another go to different multiprocessors.
    begin_unit(threadIdx.x / kWarp * gridDim.x + blockIdx.x);
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }

  // The unit whose keys come next.
  __device__ Unit next_unit() {
    __syncwarp();
    return queue_[taken_++ % kQueue];
  }

  __device__ SharedRows<dim> keys(int stage) const { return {base_ + stage * 2 * kBytes}; }
  __device__ SharedRows<dim> values(int stage) const { return {base_ + (stage * 2 + 1) * kBytes}; }
  __device__ const float* scales(int stage) const { return scales_ + stage * 2 * kKeys; }

  // Starts to copy the next keys; zeros for those that no row of the unit sees. One group of copies, empty at the end.
  __device__ void fetch(int stage) {
    if (next_ < stop_) {
      using Lane = CopyLane<dim>;
      constexpr int kGroups = kKeys / 8, kPitch = dim * 2;
      const int vector = place_.vector(p_, kv_head_);
      const uint32_t to = keys(stage).pack(Lane::key(), Lane::pack());
      copy_groups<dim, kGroups, kPitch>(to, keys_, vector, next_, begin_, end_);
      copy_groups<dim, kGroups, kPitch>(to + kBytes, values_, vector, next_, begin_, end_);
      if constexpr (kScaled<T>) copy_scales(stage, vector);
      next_ += kKeys;
      if (next_ < stop_) {
        look_up();
      } else {
        begin_unit(__shfl_sync(kFullWarp, ticket_, 0) + warps_of_all_);
      }
    }
    commit_copies();
  }

 private:
  static constexpr int kKeys = kStageKeys<T, elements>;
  static constexpr uint32_t kBytes = kKeys * dim * 2;

  // A lane has a key.
  __device__ void copy_scales(int stage, int vector) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, key = next_ + lane;
    const int at = __shfl_sync(kFullWarp, vector, lane / 8) + lane % 8;
    if (lane >= kKeys) return;
    const bool valid = key >= begin_ && key < end_;
    const uint32_t to = shared_address(scales(stage)) + lane * 4;
    copy_async_word(to, p_.k_scales + (valid ? at : 0), valid);
    copy_async_word(to + kKeys * 4, p_.v_scales + (valid ? at : 0), valid);
  }

  __device__ void begin_unit(int index) {
    const bool first_lane = threadIdx.x % kWarp == 0;
    Unit& place = queue_[begun_++ % kQueue];
    next_ = stop_ = 0;
    if (index >= work_.count()) {
      if (first_lane) place.index = -1;
      return;
    }
    if (first_lane) ticket_ = atomicAdd(tickets_, 1);
    const Unit unit = work_.unit(index);
    if (first_lane) place = unit;
    table_ = p_.block_table + int64_t{unit.sequence} * p_.block_table_stride;
    kv_head_ = unit.kv_head, begin_ = unit.begin, end_ = unit.end;
    next_ = unit.template first_stage<kKeys>(), stop_ = unit.template stop<kKeys>();
    look_up();
  }

  // Lane i finds group i of the next stage.
  __device__ void look_up() {
    const int group = static_cast<int>(threadIdx.x) % (kKeys / 8);
    place_.look_up(p_, table_, next_ + group * 8, begin_, end_);
  }

  const AttentionParams& p_;
  const Work& work_;
  const CopyLane<dim> keys_, values_;
  const uint32_t base_;
  float* const scales_;
  const int warps_of_all_;
  int32_t* const tickets_;
  Unit* const queue_;
  int ticket_ = 0, begun_ = 0, taken_ = 0;
  const int32_t* table_ = nullptr;
  int kv_head_ = 0, begin_ = 0, end_ = 0, next_ = 0, stop_ = 0;
  GroupPlace place_;
};

// The packed rows of a unit, `tiles` times eight: queries as the tensor cores take them, scores' running maxima and
// sums, mixed values. Lane l of a warp holds, with g = l / 4 and t = l % 4, scores of the queries 2t and 2t + 1 of each
// tile with keys g and g + 8, and their values of dimensions g and g + 8 of every 16. Of a cache of 8 bits a lane
// reads four dimensions of a key side by side, and two of a value: it has queries of 4t .. 4t + 3 of every 16 instead
// of 2t, 2t + 1 and eight further, and values of 2g and 2g + 1.
template <class Cache, int dim, int tiles>
class Queries {
  using T = typename Cached<Cache>::Product;
  static constexpr bool kEight = Cached<Cache>::kPerUnit == 2;
  using Rows = SharedRows<kUnits<Cache, dim>>;
  using Wide = WideOf<Cache>;  // of caches of 8 bits

 public:
  __device__ Queries(const AttentionParams& p, const Work& work, const Unit& unit) : p_(p), kv_len_(unit.kv_len) {
    const int first = work.row(unit, 0).position, last = work.row(unit, tiles * kQueries - 1).position;
    all_see_from_ = first_visible(p, last < 0 ? unit.kv_len - 1 : last);
    all_see_to_ = last_visible(p, first, unit.kv_len);
    const bool pairs = pairs_of_queries(p);
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const PackedRow row = work.row(unit, n * kQueries + 2 * t() + j);
        position_[n][j] = row.position, head_[n][j] = row.head;
        top_[n][j] = -INFINITY, sum_[n][j] = 0.0f;
      }
      const PackedRow own = work.row(unit, n * kQueries + g());
      const int64_t begin = int64_t{unit.first_token + own.token} * p.q_stride + int64_t{own.head} * p.head_dim;
      with_queries(p, [&](const auto* q) {
#pragma unroll
        for (int i = 0; i < dim / 8; ++i) {
          const int at = kEight ? i / 2 * 16 + 4 * t() + i % 2 * 2 : i * 8 + 2 * t();
          const bool there = own.position >= 0 && at < p.head_dim;
          const float2 values = there ? query_pair(q + begin + at, pairs) : float2{0.0f, 0.0f};
          query_[n][i / 2][i % 2] = pack2<T>(values.x, values.y);
        }
      });
#pragma unroll
      for (int i = 0; i < dim / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mixed_[n][i][j] = 0.0f;
      }
    }
  }

  // Keys and values [first_key, first_key + keys) of the sequence lie in the rows of k and v; `scales`, where the cache
  // has some, are those of the keys, then those of the values.
  template <int keys>
  __device__ void attend(const Rows& k, const Rows& v, const float* scales, int first_key) {
    float scores[tiles][keys / 4];
    multiply_keys<keys>(scores, k);
    const bool all = first_key >= all_see_from_ && first_key + keys - 1 <= all_see_to_;
    uint32_t weights[tiles][keys / 16][2];
#pragma unroll
    for (int n = 0; n < tiles; ++n) soften<keys>(n, scores[n], weights[n], scales, first_key, all);
    mix<keys>(weights, v);
  }

  // The only chunk of its sequence: results.
  __device__ void write(const Unit& unit) const {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float whole = sum(n, j);
        if (position_[n][j] < 0) continue;
        const float own = top_[n][j] * score_unit(p_);
        const float sink = p_.sinks != nullptr ? p_.sinks[head_[n][j]] * kLog2E : -INFINITY;
        const float top = fmaxf(own, sink), keep = exp2_fast(own - top);
        const float factor = keep / (whole * keep + (p_.sinks != nullptr ? exp2_fast(sink - top) : 0.0f));
        const int token = unit.first_token + position_[n][j] - (unit.kv_len - unit.rows);
        const int64_t at = token * p_.out_stride + int64_t{head_[n][j]} * p_.value_dim;
        each_value(n, j, factor, [&](int d, float value) { put_result(p_, at + d, value); });
      }
    }
  }

  // One of several: to its slot.
  __device__ void store(const Partials& to, int64_t slot) const {
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float whole = sum(n, j);
        if (position_[n][j] < 0) continue;
        const int64_t row = slot * to.rows + n * kQueries + 2 * t() + j;
        if (g() == 0) to.sums[row] = {top_[n][j] * score_unit(p_), whole};
        float* values = to.values + row * p_.value_dim;
        each_value(n, j, 1.0f, [&](int d, float value) { values[d] = value; });
      }
    }
  }

 private:
  __device__ static int g() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }

  // Of the whole row: lanes hold shares.
  __device__ float sum(int n, int j) const {
    float s = sum_[n][j];
    s += __shfl_xor_sync(kFullWarp, s, 4);
    s += __shfl_xor_sync(kFullWarp, s, 8);
    return s + __shfl_xor_sync(kFullWarp, s, 16);
  }

  // This lane's mixed values of query 2t + j, times a factor, with their places in the row's vector.
  template <class F>
  __device__ void each_value(int n, int j, float factor, F&& put) const {
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
      const int at = kEight ? i / 2 * 16 + 2 * g() + i % 2 : i * 8 + g();
      if (i * 8 < p_.value_dim) put(at, mixed_[n][i / 2][i % 2 * 2 + j] * factor);
    }
  }

  template <int keys>
  __device__ void multiply_keys(float (&scores)[tiles][keys / 4], const Rows& k) const {
    // A product waits for the one it adds to; where there are few of them, every other step has a sum of its own.
    constexpr int kSums = tiles * keys == 16 ? 2 : 1;
    const int lane = threadIdx.x % kWarp;
    float sums[kSums][tiles][keys / 4] = {};
    const auto multiply = [&](int step, int m, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        mma<T>(sums[step % kSums][n] + 4 * m, a0, a1, a2, a3, query_[n][step][0], query_[n][step][1]);
      }
    };
    constexpr int kSteps = kEight ? 2 : 1;  // of four matrices of 16 bytes a row
#pragma unroll
    for (int step = 0; step < dim / 16; step += kSteps) {
#pragma unroll
      for (int m = 0; m < keys / 16; ++m) {
        uint32_t a[4];
        ldmatrix4(a, k.pack(m * 16 + lane % 16, step / kSteps * 2 + lane / 16));
        if constexpr (kEight) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t low = a[2 * i], high = a[2 * i + 1];  // keys g and g + 8
            multiply(step + i, m, Wide::low(low), Wide::low(high), Wide::high(low), Wide::high(high));
          }
        } else {
          multiply(step, m, a[0], a[1], a[2], a[3]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i)
        scores[n][i] = kSums == 1 ? sums[0][n][i] : sums[0][n][i] + sums[kSums - 1][n][i];
    }
  }

  // Scores to softmax weights relative to the running maximum; what was mixed before is scaled to a new maximum.
  template <int keys>
  __device__ void soften(int n, float (&scores)[keys / 4], uint32_t (&weights)[keys / 16][2],
                         [[maybe_unused]] const float* scales, int first_key, bool all) {
    if constexpr (kScaled<Cache>) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) scores[i] *= scales[i / 2 * 8 + g()];
    }
    const auto row = [](int i) { return i % 2; };
    const auto key = [&](int i) { return first_key + i / 2 * 8 + g(); };
    if (!plain_scores(p_)) adjust(p_, scores, head_[n], position_[n], row, key);
    if (!all) mask(p_, scores, position_[n], kv_len_, row, key);
    const float unit = score_unit(p_);
    float keep[2], base[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float highest = top_[n][j];
#pragma unroll
      for (int i = 0; i < keys / 8; ++i) highest = fmaxf(highest, scores[2 * i + j]);
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 4));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 8));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 16));
      // While a row has seen no key, exponents are taken against 0, so that nothing becomes inf - inf.
      base[j] = highest == -INFINITY ? 0.0f : highest * unit;
      keep[j] = exp2_fast(top_[n][j] * unit - base[j]);
      top_[n][j] = highest;
    }
#pragma unroll
    for (int i = 0; i < keys / 4; ++i) {
      scores[i] = exp2_fast(fmaf(scores[i], unit, -base[i % 2]));
      sum[i % 2] += scores[i];
    }
    if constexpr (kScaled<Cache>) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) scores[i] *= scales[keys + i / 2 * 8 + g()];
    }
#pragma unroll
    for (int i = 0; i < keys / 8; ++i) weights[i / 2][i % 2] = transpose(pack2<T>(scores[2 * i], scores[2 * i + 1]));
#pragma unroll
    for (int j = 0; j < 2; ++j) sum_[n][j] = sum_[n][j] * keep[j] + sum[j];
    if (__any_sync(kFullWarp, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < dim / 16; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) mixed_[n][i][c] *= keep[c % 2];
      }
    }
  }

  template <int keys>
  __device__ void mix(const uint32_t (&weights)[tiles][keys / 16][2], const Rows& v) {
    const int lane = threadIdx.x % kWarp;
    const auto add = [&](int m, int i, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) mma<T>(mixed_[n][i], a0, a1, a2, a3, weights[n][m][0], weights[n][m][1]);
    };
#pragma unroll
    for (int m = 0; m < keys / 16; ++m) {
      if constexpr (kEight) {
#pragma unroll
        for (int i = 0; i < dim / 16; i += 2) {
          uint32_t a[4];
          ldmatrix4_transposed(a, v.pack(m * 16 + lane / 8 % 2 * 8 + lane % 8, i + lane / 16));
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            // Keys 2t and 2t + 1, then 8 more, each with dimensions 2g and 2g + 1: brought together by dimension.
            const uint32_t low = __byte_perm(a[2 * j], 0, 0x3120), high = __byte_perm(a[2 * j + 1], 0, 0x3120);
            add(m, i + j, Wide::low(low), Wide::high(low), Wide::low(high), Wide::high(high));
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < dim / 16; ++i) {
          uint32_t a[4];
          ldmatrix4_transposed(a, v.pack(m * 16 + lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2));
          add(m, i, a[0], a[1], a[2], a[3]);
        }
      }
    }
  }

  const AttentionParams& p_;
  const int kv_len_;
  int all_see_from_, all_see_to_;  // the first and the last key that every row sees
  int position_[tiles][2], head_[tiles][2];
  float top_[tiles][2], sum_[tiles][2];
  uint32_t query_[tiles][dim / 16][2];
  float mixed_[tiles][dim / 16][4];
};

// Is this warp the last of `expected` that come to the counter? Then it sees what the others wrote before.
__device__ inline bool last_to_arrive(int32_t* counter, int expected) {
  __syncwarp();
  int before = 0;
  if (threadIdx.x % kWarp == 0) {
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before == expected - 1) *counter = 0;
  }
  return __shfl_sync(kFullWarp, before, 0) == expected - 1;
}

// Adds up the slots first, first + step and so on, kMerged at most, in this order: into the first of them, or to the
// results where `whole`. Two rows at a time; lane i knows the weight of chunk i for the one, lane 16 + i for the other.
__device__ inline void merge(const AttentionParams& p, const Work& work, const Unit& unit, const Partials& partials,
                             int64_t first, int step, int count, bool whole) {
  static_assert(kMerged == kWarp / 2);
  const int lane = threadIdx.x % kWarp, rows = work.rows(unit);
  const auto slot = [&](int chunk, int row) { return (first + int64_t{chunk} * step) * partials.rows + row; };
  for (int row = 0; row < rows; row += 2) {
    const int own_row = row + lane / kMerged;
    float2 own = {-INFINITY, 0.0f};
    if (lane % kMerged < count && own_row < rows) {
      own = __ldcg(reinterpret_cast<const float2*>(partials.sums + slot(lane % kMerged, own_row)));
    }
    const bool sinks = whole && p.sinks != nullptr;
    const float sink = sinks ? p.sinks[work.row(unit, min(own_row, rows - 1)).head] * kLog2E : -INFINITY;
    float weight = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + r >= rows) break;
      const PackedRow packed = work.row(unit, row + r);
      const int64_t out = (unit.first_token + packed.token) * p.out_stride + int64_t{packed.head} * p.value_dim;
      float* sums = partials.values + slot(0, row + r) * p.value_dim;
      for (int first_d = 0; first_d < p.value_dim; first_d += kWarp * 4) {
        const int d = first_d + lane * 4;
        float4 parts[kMerged];  // all on their way at once
#pragma unroll
        for (int i = 0; i < kMerged; ++i) {
          parts[i] = {0.0f, 0.0f, 0.0f, 0.0f};
          if (i < count && d < p.value_dim) {
            parts[i] = __ldcg(reinterpret_cast<const float4*>(partials.values + slot(i, row + r) * p.value_dim + d));
          }
        }
        if (r == 0 && first_d == 0) {
          const float top = fmaxf(warp_max<kMerged>(own.x), sink), base = top == -INFINITY ? 0.0f : top;
          weight = exp2_fast(own.x - base);
          const float sum = warp_sum<kMerged>(weight * own.y) + (sinks ? exp2_fast(sink - base) : 0.0f);
          if (whole) weight /= sum;
          if (!whole && lane % kMerged == 0 && own_row < rows) partials.sums[slot(0, own_row)] = {top, sum};
        }
        float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < kMerged; ++i) {
          const float w = __shfl_sync(kFullWarp, weight, r * kMerged + i);
          value.x = fmaf(w, parts[i].x, value.x), value.y = fmaf(w, parts[i].y, value.y);
          value.z = fmaf(w, parts[i].z, value.z), value.w = fmaf(w, parts[i].w, value.w);
        }
        if (d >= p.value_dim) continue;
        if (whole) {
          put_result(p, out + d, value.x), put_result(p, out + d + 1, value.y);
          put_result(p, out + d + 2, value.z), put_result(p, out + d + 3, value.w);
        } else {
          *reinterpret_cast<float4*>(sums + d) = value;
        }
      }
    }
  }
}

// After a unit's result was stored: whoever completes a group of chunks adds it up, whoever completes the groups gives
// the result.
__device__ inline void merge_complete(const AttentionParams& p, const Work& work, const Unit& unit,
                                      const Partials& partials) {
  const int first_chunk = unit.chunk / kMerged * kMerged, in_group = min(kMerged, unit.chunks - first_chunk);
  const int groups = (unit.chunks + kMerged - 1) / kMerged;
  const int start = unit.index - unit.chunk * unit.step;  // the unit of chunk 0
  if (in_group > 1) {
    const int first = start + first_chunk * unit.step;
    if (!last_to_arrive(partials.arrivals + first, in_group)) return;
    merge(p, work, unit, partials, first, unit.step, in_group, groups == 1);
  }
  if (groups == 1) return;
  if (!last_to_arrive(partials.arrivals + start + unit.step, groups)) return;  // no group begins at chunk 1
  merge(p, work, unit, partials, start, unit.step * kMerged, groups, true);
}

// Decodes all units, by the first `team.warps` warps of every block of the grid. `memory`, aligned to 128 bytes: the
// warps' rings, their scales, their queues, the sequences (decode_bytes).
template <class T, int dim, int tiles>
__device__ inline void decode_units(const AttentionParams& p, const Partials& partials, int sequences, const Cut& cut,
                                    uint4* memory, const Team& team) {
  constexpr int kVector = kUnits<T, dim>, kPerUnit = Cached<T>::kPerUnit, kKeys = kStageKeys<T, dim>;
  const int rings = team.warps * kRingBytes<T, dim>;
  auto* scales = reinterpret_cast<float*>(memory + rings / 16);
  auto* queue = reinterpret_cast<Unit*>(memory + (rings + team.warps * kScaleBytes<T, dim>) / 16);
  auto* all = reinterpret_cast<SequenceWork*>(queue + team.warps * kQueue);
  if (p.head_dim < dim) {
    clear_beyond<kVector>(memory, rings / (kVector * 2), min(p.head_dim, p.value_dim) / kPerUnit, team.threads());
  }
  const Work work(p, all, sequences, tiles * kQueries, cut, team);
  team.sync();
  Stream<T, dim> stream(p, work, shared_address(memory), scales, team.warps, partials.tickets, queue);
  int stage = 0;
  for (Unit unit = stream.next_unit(); unit.index >= 0; unit = stream.next_unit()) {
    Queries<T, dim, tiles> queries(p, work, unit);
    for (int key = unit.first_stage<kKeys>(); key < unit.stop<kKeys>(); key += kKeys) {
      wait_for_copies<kStages - 2>();
      __syncwarp();
      stream.fetch(stage == 0 ? kStages - 1 : stage - 1);
      queries.template attend<kKeys>(stream.keys(stage), stream.values(stage), stream.scales(stage), key);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    if (unit.chunks == 1) {
      queries.write(unit);
    } else {
      queries.store(partials, unit.index);
      merge_complete(p, work, unit, partials);
    }
  }
  wait_for_copies<0>();
  const bool last = last_to_arrive(partials.finished, static_cast<int>(gridDim.x) * team.warps);
  if (last && threadIdx.x % kWarp == 0) *partials.tickets = 0;
}

template <int dim, class T = __nv_bfloat16>
constexpr int kDecodeBytesOfWarp = kRingBytes<T, dim> + kScaleBytes<T, dim> + kQueue* static_cast<int>(sizeof(Unit));
template <int dim, class T = __nv_bfloat16>
constexpr int decode_bytes(int warps, int sequences) {
  return warps * kDecodeBytesOfWarp<dim, T> + sequences * static_cast<int>(sizeof(SequenceWork));
}

}  // namespace sluice::cuda
