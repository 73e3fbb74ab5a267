// Paged prefill attention (many rows per sequence) over E4M3 caches for compute capability 9.0 (sm_90a): warpgroup.cu
// with fp8 wgmma, for dimensions up to 128. Bound equally by the tensor cores and by the exponentials.
// Measured on one H200: 8192 causal rows, 32 heads of 128 over 8, take 820 us, 670 TFLOP/s.
//
// Keys are multiplied as they lie in the cache. Queries are rounded to E4M3 with a power of two per row, which becomes
// part of the unit of the row's scores. Softmax weights are rounded to E4M3 from 2^8 down; their sum is that of the
// unrounded weights. The tensor cores take 8-bit values only if the keys of a column are contiguous, so the producer
// warp group transposes each tile in shared memory.
//
// The order of keys and of columns is free within a matmul. The tensor cores give a lane the scores of keys 2t, 2t + 1
// and those 8 further on, and take four contiguous weights from it. So the keys of values are stored in the order in
// which lanes have them: within 16 keys 0, 1, 8, 9, 2, 3, 10, 11 and so on. Then weights need not change lanes. Column
// 4w + j of the values is row w + dim / 4 * j of the transposed tile. So eight lanes that write different words of a
// value meet all banks, and a lane gets eight neighbours of a result.
//
// The tensor cores' sums of fp8 products have fewer bits than fp32 (13 fraction bits), and the error adds up over
// thousands of keys. So the sums of each tile are added to fp32 sums.
#include "kernels/cuda/attention/cache_maps.h"
#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

using E4M3 = __nv_fp8_e4m3;

constexpr int kKeys = 128;           // keys of a tile
constexpr int kAhead = 3;            // tiles that are copied ahead of the one being transposed
constexpr int kStages = kAhead + 1;  // stages of tiles of keys, and of values that are not transposed yet
constexpr int kValueStages = 2;      // stages of transposed values
constexpr int kProducerWarps = kGroupThreads / kWarp;

// Shared memory of a block, in bytes from a multiple of 1024. Rows of all matrices are 128 bytes.
template <int dim>
struct Layout {
  static constexpr uint32_t kQuery = kGroupRows * kRowBytes, kQueries = kConsumers * kQuery;
  static constexpr uint32_t kTile = kKeys * kRowBytes, kValues = dim * kRowBytes;
  static constexpr uint32_t kFirstValues = kQueries + kStages * kTile;
  static constexpr uint32_t kFirstCopied = kFirstValues + kValueStages * kValues;
  static constexpr uint32_t kScales = kFirstCopied + kStages * kTile, kBarriers = kScales + kConsumers * kGroupRows * 4;
  static constexpr uint32_t kZero = kBarriers + ((2 + kProducerWarps) * kStages + 2 * kValueStages) * 8;
  static constexpr uint32_t kBytes = kZero + 4;
  uint32_t base;

  __device__ uint32_t query(int consumer) const { return base + consumer * kQuery; }
  __device__ uint32_t keys(int i) const { return base + kQueries + i % kStages * kTile; }
  __device__ uint32_t values(int i) const { return base + kFirstValues + i % kValueStages * kValues; }
  __device__ uint32_t copied(int i) const { return base + kFirstCopied + i % kStages * kTile; }
  __device__ uint32_t scale(int consumer, int row) const { return base + kScales + (consumer * kGroupRows + row) * 4; }
  __device__ uint32_t zero() const { return base + kZero; }
  __device__ uint32_t barrier(int i) const { return base + kBarriers + i * 8; }
  __device__ uint32_t keys_full(int i) const { return barrier(i % kStages); }
  __device__ uint32_t keys_empty(int i) const { return barrier(kStages + i % kStages); }
  __device__ uint32_t values_full(int i) const { return barrier(2 * kStages + i % kValueStages); }
  __device__ uint32_t values_empty(int i) const { return barrier(2 * kStages + kValueStages + i % kValueStages); }
  __device__ uint32_t copied_full(int i, int warp) const {
    return barrier(2 * (kStages + kValueStages) + i % kStages * kProducerWarps + warp);
  }

  __device__ void init_barriers(int thread) const {
    constexpr int kConsumerWarps = kConsumers * kGroupThreads / kWarp;
    if (thread < kStages) {
      init_barrier(keys_full(thread), kProducerWarps);
      init_barrier(keys_empty(thread), kConsumerWarps);
    }
    if (thread < kValueStages) {
      init_barrier(values_full(thread), kProducerWarps);
      init_barrier(values_empty(thread), kConsumerWarps);
    }
    if (thread < kStages * kProducerWarps) {
      init_barrier(copied_full(thread / kProducerWarps, thread % kProducerWarps), 1);
    }
    if (thread == 0) store_shared(zero(), 0.0f);
  }
};
__device__ inline int stage_phase(int i) { return i / kStages % 2; }
__device__ inline int value_phase(int i) { return i / kValueStages % 2; }

// Transposes a 4 x 4 matrix of bytes: byte j of the four words becomes word j.
__device__ inline void transpose_bytes(uint32_t (&v)[4]) {
  const uint32_t low01 = __byte_perm(v[0], v[1], 0x5140), high01 = __byte_perm(v[0], v[1], 0x7362);
  const uint32_t low23 = __byte_perm(v[2], v[3], 0x5140), high23 = __byte_perm(v[2], v[3], 0x7362);
  v[0] = __byte_perm(low01, low23, 0x5410), v[1] = __byte_perm(low01, low23, 0x7632);
  v[2] = __byte_perm(high01, high23, 0x5410), v[3] = __byte_perm(high01, high23, 0x7632);
}

// Clears the values of a key outside [begin, end). Its weight is zero, but the memory may hold NaN.
__device__ inline void clear_outside(uint32_t row, int key, const Block& b) {
  if (key < b.begin || key >= b.end) {
#pragma unroll 1
    for (uint32_t pack = 0; pack < kRowBytes; pack += 16) store_shared(row + pack, {0, 0, 0, 0});
  }
  __syncwarp();
}

// Transposes the warp's 32 keys of a tile of values. A lane reads words of 16 keys and writes packs of 16 keys.
template <int dim>
__device__ void transpose_values(uint32_t copied, uint32_t values) {
  constexpr int kWarpKeys = CopiedTiles<kKeys>::kWarpKeys, kWords = dim / 4, kGroup = 16, kAtOnce = kWarp / kWords;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int word = lane % kWords, group = warp * (kWarpKeys / kGroup) + lane / kWords;
  const uint32_t from = copied + group * kGroup * kRowBytes + word * 4;
  const uint32_t to = values + word * kRowBytes + ((group ^ word) & 7) * 16;
#pragma unroll
  for (int i = 0; i < kWarpKeys / kGroup; i += kAtOnce) {
    uint32_t packs[4][4];  // [column of the word][keys]
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t block[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = k / 2 * 8 + 2 * n + k % 2;
        block[k] = load_shared<uint32_t>((from ^ key % 8 * 16) + (i * kGroup + key) * kRowBytes);
      }
      transpose_bytes(block);
#pragma unroll
      for (int j = 0; j < 4; ++j) packs[j][n] = block[j];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      store_shared((to ^ i * 16) + j * kWords * kRowBytes, {packs[j][0], packs[j][1], packs[j][2], packs[j][3]});
    }
  }
}

// The producer. Each warp copies a quarter of the keys as TMA tiles of `maps.rows` keys, one lane per tile, and
// transposes the values that it copied. Tiles without a key in [begin, end) are not looked up.
template <int dim>
__device__ void produce_transposed(const AttentionParams& p, const Block& b, const CacheMaps& maps,
                                   const Layout<dim>& shared) {
  using Tiles = CopiedTiles<kKeys>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const uint32_t warp_rows = Tiles::warp_key() * kRowBytes, own_tile = warp_rows + lane * maps.rows * kRowBytes;
  const uint64_t policy = l2_evict_normal();
  Tiles tiles(p, b, maps.rows);
  const auto copy = [&](int i) {
    if (i >= tiles.count()) return;
    const int vector = lane < Tiles::kWarpKeys / maps.rows ? tiles.vector() : -1;
    tiles.look_up(i + 1);
    const uint32_t bytes = __popc(__ballot_sync(kFullWarp, vector >= 0)) * maps.rows * kRowBytes;
    const uint32_t keys = shared.keys_full(i), values = shared.copied_full(i, warp);
    wait_barrier(shared.keys_empty(i), stage_phase(i) ^ 1);
    if (lane == 0) arrive_expecting(keys, bytes), arrive_expecting(values, bytes);
    __syncwarp();
    if (vector >= 0) {
      copy_tma_tile(shared.keys(i) + own_tile, maps.keys, 0, vector, keys, policy);
      copy_tma_tile(shared.copied(i) + own_tile, maps.values, 0, vector, values, policy);
    }
  };
  for (int i = 0; i < kAhead; ++i) copy(i);
  for (int i = 0; i < tiles.count(); ++i) {
    copy(i + kAhead);
    wait_barrier(shared.copied_full(i, warp), stage_phase(i));
    const int first = tiles.first_key(i);
    if (first < b.begin || first + Tiles::kWarpKeys > b.end) {
      clear_outside(shared.copied(i) + warp_rows + lane * kRowBytes, first + lane, b);
    }
    wait_barrier(shared.values_empty(i), value_phase(i) ^ 1);
    transpose_values<dim>(shared.copied(i), shared.values(i));
    fence_proxy_async();
    __syncwarp();
    release(shared.values_full(i));
  }
}

// Rows whose scores are divided by a scale per row.
class ScaledRows : public PrefillRows {
 public:
  static constexpr float kLargest = 8.0f;  // weights are at most 2^8, of the 448 that E4M3 holds

  using PrefillRows::PrefillRows;

  __device__ void set_scale(const AttentionParams& p, int h, float scale) {
    scale_[h] = scale;
    unit_[h] = plain_scores(p) ? score_unit(p) * scale : score_unit(p);
  }
  __device__ float unit(const AttentionParams&, int h) const { return unit_[h]; }
  template <int count>
  __device__ void restore(float (&scores)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) scores[i] *= scale_[i / 2 % 2];
  }

 private:
  float scale_[2], unit_[2];
};

// The 64 rows of a consumer.
template <int dim>
class Fp8Consumer {
 public:
  __device__ Fp8Consumer(const AttentionParams& p, const Block& b, const Layout<dim>& shared)
      : p_(p), b_(b), shared_(shared), index_(Lane::consumer()), rows_(p, b, index_) {}

  // Copies the rows' queries and their scales to shared memory, with zeros where there are none.
  __device__ void load_queries() {
    with_block_queries(p_, b_, [&](const auto& queries) { load_queries(queries); });
    fence_proxy_async();
    sync_threads(kQueriesThere + index_, kGroupThreads);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows_.set_scale(p_, h, load_shared<float>(shared_.scale(index_, Lane::row() + 8 * h)));
    }
  }

  // Attends to all tiles, from the last to the first. The values of a tile are mixed while the scores of the next one
  // become weights.
  __device__ void attend() {
    const int last = (b_.end - 1) / kKeys, tiles = last - b_.begin / kKeys + 1;
    float scores[kKeys / 2];
    uint32_t weights[kKeys / 32][4];
    wait_barrier(shared_.keys_full(0), 0);
    multiply_keys(scores, 0);
    wgmma_wait<0>();
    wgmma_fence_operands(scores);
    Rise rise = raise_by(scores, 0, last);
    give_first_turn();
    weigh_in_turn(scores, rise);
    pack(weights, scores);
    for (int i = 1; i < tiles; ++i) {
      wait_barrier(shared_.keys_full(i), stage_phase(i));
      multiply_keys(scores, i);
      wait_barrier(shared_.values_full(i - 1), value_phase(i - 1));
      mix_part(0, weights, i - 1);
      wgmma_wait<1>();
      wgmma_fence_operands(scores);
      const Rise next = raise_by(scores, i, last - i);
      // The parts' sums share registers, one part after another.
#pragma unroll
      for (int part = 0; part + 1 < kParts; ++part) {
        wgmma_wait<0>();
        add(part, rise.keep);
        mix_part(part + 1, weights, i - 1);
      }
      weigh_in_turn(scores, next);
      wgmma_wait<0>();
      release(shared_.values_empty(i - 1));
      add(kParts - 1, rise.keep);
      rise = next;
      pack(weights, scores);
    }
    wait_barrier(shared_.values_full(tiles - 1), value_phase(tiles - 1));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      mix_part(part, weights, tiles - 1);
      wgmma_wait<0>();
      add(part, rise.keep);
    }
  }

  __device__ void write() const {
    const bool eights = eights_of_results(p_);
    each_result_row(p_, b_, rows_, [&](int h, float factor, int64_t out) {
#pragma unroll
      for (int i = 0; i < dim / 32; ++i) {
        const int column = 32 * i + 8 * Lane::t();
        if (column >= p_.value_dim) continue;
        float v[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const int eight = c % 4 * (dim / 32) + i;  // index among the eights of rows of the transposed tile
          v[c] = mixed_[eight / (kPart / 8)][eight % (kPart / 8) * 4 + 2 * h + c / 4] * factor;
        }
        if (eights) {
          put_eight_results(p_, out + column, v);
        } else {
#pragma unroll
          for (int c = 0; c < 8; ++c) put_result(p_, out + column + c, v[c]);
        }
      }
    });
  }

 private:
  static constexpr int kPart = 64, kParts = dim / kPart;  // columns of values at a time
  using Lane = ConsumerLane;
  using Scores = Wgmma<E4M3, kKeys>;
  using Mixing = Wgmma<E4M3, kPart>;

  template <class Queries>
  __device__ void load_queries(const Queries& queries) const {
    constexpr int kPacks = dim / 16;
    const int pack = Lane::thread() % kPacks;
#pragma unroll
    for (int r = Lane::thread() / kPacks; r < kGroupRows; r += kGroupThreads / kPacks) {
      const PackedRow row = consumer_row(p_, b_, index_, r);
      float q[2][8], largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        queries.load(row, 2 * pack + i, q[i]);
#pragma unroll
        for (const float x : q[i]) largest = fmaxf(largest, fabsf(x));
      }
#pragma unroll
      for (int i = 1; i < kPacks; i *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, i));
      const Fp8Scale scale = fp8_power(largest);
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = q[i / 2] + i % 2 * 4;
        words[i] = pack_fp8({x[0], x[1], x[2], x[3]}, scale.inverse);
      }
      store_shared(shared_.query(index_) + pack_at(r, pack, 0), {words[0], words[1], words[2], words[3]});
      if (pack == 0) store_shared(shared_.scale(index_, r), scale.scale);
    }
  }

  __device__ void multiply_keys(float (&scores)[kKeys / 2], int i) const {
    const uint64_t queries = matrix(shared_.query(0)) + index_ * (Layout<dim>::kQuery / 16);
    const uint64_t keys = matrix(shared_.keys(0)) + i % kStages * (Layout<dim>::kTile / 16);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < dim / 32; ++step) {
      Scores::from_shared(scores, queries + step * 2, keys + step * 2, step > 0);
    }
    wgmma_commit();
  }

  // Raises the maxima and frees the stage of the keys.
  __device__ Rise raise_by(float (&scores)[kKeys / 2], int i, int tile) {
    release(shared_.keys_empty(i));
    return raise(p_, rows_, scores, tile * kKeys, b_.kv_len);
  }

  __device__ static void pack(uint32_t (&weights)[kKeys / 32][4], const float (&scores)[kKeys / 2]) {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const int first = i / 2 * 8 + i % 2 * 2;
      weights[i / 4][i % 4] = pack_fp8({scores[first], scores[first + 1], scores[first + 4], scores[first + 5]}, 1.0f);
    }
  }

  // Turns raised scores into softmax weights, in this consumer's turn. Exponentials of both consumers at once would
  // take as long as one after the other, and the tensor cores would idle meanwhile. The assembler moves arithmetic
  // across barriers, so data dependences tie it to them: the barrier's id depends on what has to be computed before
  // (sums are never negative, which the assembler does not know), and what follows depends on a zero from shared
  // memory.
  __device__ void weigh_in_turn(float (&scores)[kKeys / 2], Rise rise) {
    const auto turn_of = [](int consumer, float sum) { return kTurn + consumer + static_cast<int>(sum < 0.0f); };
    constexpr int kThreads = kConsumers * kGroupThreads;
    sync_threads(turn_of(index_, rows_.sum[0] * rise.keep[0] + rows_.sum[1] * rise.keep[1]), kThreads);
    const float zero = load_shared<float>(shared_.zero());
    rise.shift[0] += zero, rise.shift[1] += zero;
    weigh(p_, rows_, rise, scores);
    arrive_threads(turn_of(index_ ^ 1, rows_.sum[0] + rows_.sum[1]), kThreads);
  }

  __device__ void mix_part(int part, const uint32_t (&weights)[kKeys / 32][4], int i) {
    const uint64_t values =
        matrix(shared_.values(0)) + i % kValueStages * (Layout<dim>::kValues / 16) + part * (kPart * kRowBytes / 16);
    wgmma_arrive();
    Mixing::template by_rows<0>(sums_, weights[0], values);
#pragma unroll
    for (int step = 1; step < kKeys / 32; ++step) Mixing::by_rows(sums_, weights[step], values + step * 2);
    wgmma_commit();
  }

  // Adds the sums of finished matmuls.
  __device__ void add(int part, const float (&keep)[2]) {
    wgmma_fence_operands(sums_);
#pragma unroll
    for (int i = 0; i < kPart / 2; ++i) mixed_[part][i] = fmaf(mixed_[part][i], keep[i / 2 % 2], sums_[i]);
    wgmma_fence_operands(mixed_[part]);
  }

  const AttentionParams& p_;
  const Block& b_;
  const Layout<dim>& shared_;
  const int index_;
  ScaledRows rows_;
  float mixed_[kParts][kPart / 2] = {}, sums_[kPart / 2];
};

template <int dim>
struct Design {
  using Shared = Layout<dim>;
  using Consumer = Fp8Consumer<dim>;
  static constexpr int kBytes = Shared::kBytes, kProducerRegisters = 56, kConsumerRegisters = 224;

  using Source = CacheMaps;

  __device__ static void prepare(const AttentionParams&, const Shared&) {}  // TMA fills tiles with zeros beyond the end
                                                                            // of vectors
  __device__ static void produce(const AttentionParams& p, const Block& b, const CacheMaps& maps,
                                 const Shared& shared) {
    produce_transposed<dim>(p, b, maps, shared);
  }
};

}  // namespace

bool attention_warpgroup_fp8(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const int dim = std::max(p.head_dim, p.value_dim);
  if (l.compute_capability != 90 || dim > 128) return false;
  const CacheMaps maps = cache_maps(p, sizeof(E4M3), CopiedTiles<kKeys>::kWarpKeys);
  if (dim <= 64) {
    launch_prefill<Design<64>>(l, p, at, maps);
  } else {
    launch_prefill<Design<128>>(l, p, at, maps);
  }
  return true;
}
#else
bool attention_warpgroup_fp8(const Launch&, const AttentionParams&, const AttentionIndices&) { return false; }
#endif

}  // namespace sluice::cuda
