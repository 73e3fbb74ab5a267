// What the warp-group kernels over caches of 16 bits, or of 8 bits that are widened, share (attention/warpgroup.cu,
// attention/splits.cu): the layout of a block's shared memory, the copies of tiles, and a consumer's rows.
#pragma once

#include "kernels/cuda/attention/warpgroup.cuh"

namespace sluice::cuda {

inline constexpr int kPanel = 64;  // columns of a matrix in shared memory

// Shared memory of a block, in bytes from a multiple of 1024. `consumers`: warp groups that multiply.
template <int dim, int consumers = kConsumers, int stages = 2>
struct Layout {
  static constexpr int kStages = stages;
  static constexpr bool kTurns = consumers > 1;  // the consumers take turns at their matmuls
  static constexpr int kTileKeys = dim <= 128 ? 128 : 64;
  static constexpr uint32_t kQuery = kGroupRows * dim * 2, kTile = kTileKeys * dim * 2;
  static constexpr uint32_t kTilePanel = kTileKeys * kPanel * 2, kQueryPanel = kGroupRows * kPanel * 2;
  static constexpr uint32_t kBarriers = consumers * kQuery + kStages * 2 * kTile;
  static constexpr uint32_t kBytes = kBarriers + kStages * 4 * 8;
  // For 8-bit caches: tiles of keys and values in turn that were copied and not widened yet.
  static constexpr int kNarrowTiles = dim > 128 ? 2 : 4;
  static constexpr uint32_t kNarrowTile = kTileKeys * dim, kNarrowBytes = kBytes + kNarrowTiles * kNarrowTile;
  static constexpr uint32_t kScales = kTileKeys * 4, kScaledBytes = kNarrowBytes + kStages * 2 * kScales;
  uint32_t base;

  __device__ uint32_t query(int consumer) const { return base + consumer * kQuery; }
  __device__ uint32_t keys(int stage) const { return base + consumers * kQuery + stage * 2 * kTile; }
  __device__ uint32_t values(int stage) const { return keys(stage) + kTile; }
  __device__ uint32_t narrow(int i) const { return base + kBytes + i % kNarrowTiles * kNarrowTile; }
  __device__ uint32_t key_scales(int stage) const { return base + kNarrowBytes + stage * 2 * kScales; }
  __device__ uint32_t value_scales(int stage) const { return key_scales(stage) + kScales; }
  __device__ uint32_t barrier(int i) const { return base + kBarriers + i * 8; }
  __device__ uint32_t keys_full(int stage) const { return barrier(stage * 4); }
  __device__ uint32_t values_full(int stage) const { return barrier(stage * 4 + 1); }
  __device__ uint32_t keys_empty(int stage) const { return barrier(stage * 4 + 2); }
  __device__ uint32_t values_empty(int stage) const { return barrier(stage * 4 + 3); }

  __device__ void init_barriers(int thread) const {
    if (thread < kStages) {
      init_barrier(keys_full(thread), kGroupThreads);
      init_barrier(values_full(thread), kGroupThreads);
      init_barrier(keys_empty(thread), consumers * kGroupThreads / kWarp);
      init_barrier(values_empty(thread), consumers * kGroupThreads / kWarp);
    }
  }
};

// Clears the packs beyond the keys' own, which wgmma also reads, because zero times NaN would not be zero.
template <int dim, class Shared>
__device__ void clear_beyond_keys(const AttentionParams& p, const Shared& shared) {
  const int own = p.head_dim / 8, beyond = dim / 8 - own, threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < Shared::kStages * Shared::kTileKeys * beyond; i += threads) {
    const int row = i / beyond % Shared::kTileKeys, stage = i / beyond / Shared::kTileKeys;
    store_shared(shared.keys(stage) + pack_at(row, own + i % beyond, Shared::kTilePanel), {0, 0, 0, 0});
  }
}

// The producer for 16-bit caches. Each warp copies a quarter of the keys. Keys outside [begin, end) become zeros and
// are not looked up.
template <int dim, class Shared>
__device__ void produce_wide(const AttentionParams& p, const Block& b, const Shared& shared) {
  using Lane = CopyLane<dim>;
  using Tiles = CopiedTiles<Shared::kTileKeys>;
  constexpr int kStages = Shared::kStages;
  const Lane keys(p.k, p.head_dim, p.head_dim), values(p.v, p.value_stride, p.value_dim);
  const uint32_t to = pack_at(Tiles::warp_key() + Lane::key(), Lane::pack(), Shared::kTilePanel);
  Tiles tiles(p, b);
  for (int i = 0; i < tiles.count(); ++i) {
    const int stage = i % kStages, parity = i / kStages % 2 ^ 1, first = tiles.first_key(i), vector = tiles.vector();
    wait_barrier(shared.keys_empty(stage), parity);
    copy_groups<dim, Tiles::kGroups, kRowBytes>(shared.keys(stage) + to, keys, vector, first, b.begin, b.end);
    arrive_after_copies(shared.keys_full(stage));
    tiles.look_up(i + 1);
    wait_barrier(shared.values_empty(stage), parity);
    copy_groups<dim, Tiles::kGroups, kRowBytes>(shared.values(stage) + to, values, vector, first, b.begin, b.end);
    arrive_after_copies(shared.values_full(stage));
  }
  wait_for_all_copies();
}

// The 64 rows of a consumer. With g = l / 4 and t = l % 4, lane l of warp w has scores of rows 16 w + g and 16 w + g +
// 8. `scaled`: scores and weights are multiplied by the scales of keys and values. Shared is a Layout, or derived from
// one.
template <class T, int dim, bool scaled, class Shared = Layout<dim>>
class RowsConsumer {
 public:
  static constexpr int kKeys = Shared::kTileKeys;

  __device__ RowsConsumer(const AttentionParams& p, const Block& b, const Shared& shared)
      : p_(p), b_(b), shared_(shared), index_(Lane::consumer()), rows_(p, b, index_) {}

  // Copies the rows' queries to shared memory, with zeros where there are none.
  __device__ void load_queries() const {
    with_block_queries(p_, b_, [&](const auto& queries) { load_queries(queries); });
    fence_proxy_async();
    sync_threads(kQueriesThere + index_, kGroupThreads);
  }

  // Attends to all tiles, from the last to the first.
  __device__ void attend() { attend_to(b_.begin / kKeys, (b_.end - 1) / kKeys, 0); }

  __device__ void write() const {
    const bool pairs = pairs_of_results(p_);
    each_result_row(p_, b_, rows_, [&](int h, float factor, int64_t out) {
#pragma unroll
      for (int i = 0; i < dim / 8; ++i) {
        const int column = i * 8 + 2 * Lane::t();
        const float(&mixed)[kPart / 2] = mixed_[i / (kPart / 8)];
        const float2 pair = {mixed[i % (kPart / 8) * 4 + 2 * h] * factor,
                             mixed[i % (kPart / 8) * 4 + 2 * h + 1] * factor};
        if (column >= p_.value_dim) continue;
        if (pairs) {
          put_results(p_, out + column, pair);
        } else {
          put_result(p_, out + column, pair.x), put_result(p_, out + column + 1, pair.y);
        }
      }
    });
  }

 protected:
  // Attends to tiles `first` to `last`, of which the last is the block's tile `begun`, counted from its last one.
  __device__ void attend_to(int first, int last, int begun) {
    float scores[kKeys / 2];
    uint32_t weights[kKeys / 16][4];
    wait_barrier(shared_.keys_full(begun % kStages), begun / kStages % 2);
    multiply_keys(scores, begun % kStages);
    wgmma_wait<0>();
    wgmma_fence_operands(scores);
    float keep[2];
    soften_tile(scores, begun % kStages, last * kKeys, keep);
    pack<T>(weights, scores);
    if (kTurns && begun == 0) give_first_turn();
    for (int tile = last - 1, i = begun + 1; tile >= first; --tile, ++i) {
      const int stage = i % kStages, before = (i - 1) % kStages;
      wait_barrier(shared_.keys_full(stage), i / kStages % 2);
      if constexpr (kTurns) take_turn();
      multiply_keys(scores, stage);
      wait_barrier(shared_.values_full(before), (i - 1) / kStages % 2);
      mix(weights, before);
      if constexpr (kTurns) give_turn();
      wgmma_wait<1>();
      wgmma_fence_operands(scores);
      soften_tile(scores, stage, tile * kKeys, keep);
      wgmma_wait<0>();
      fence_mixed();
      release(shared_.values_empty(before));
      rescale(keep);
      pack<T>(weights, scores);
    }
    const int final = begun + last - first, stage = final % kStages;
    wait_barrier(shared_.values_full(stage), final / kStages % 2);
    mix(weights, stage);
    wgmma_wait<0>();
    fence_mixed();
    release(shared_.values_empty(stage));
  }

  static constexpr int kParts = dim <= 128 ? 1 : 2, kPart = dim / kParts;  // columns of values at a time
  using Lane = ConsumerLane;

  const AttentionParams& p_;
  const Block& b_;
  const Shared& shared_;
  const int index_;
  PrefillRows rows_;
  float mixed_[kParts][kPart / 2] = {};

 private:
  static constexpr int kStages = Shared::kStages;
  static constexpr bool kTurns = Shared::kTurns;
  using Scores = Wgmma<T, kKeys>;
  using Mixing = Wgmma<T, kPart>;

  template <class Queries>
  __device__ void load_queries(const Queries& queries) const {
    constexpr int kPacks = dim / 8;
    const int pack = Lane::thread() % kPacks;
    const auto to = shared_.query(index_);
#pragma unroll 4
    for (int r = Lane::thread() / kPacks; r < kGroupRows; r += kGroupThreads / kPacks) {
      float q[8];
      queries.load(consumer_row(p_, b_, index_, r), pack, q);
      const uint4 packed = {pack2<T>(q[0], q[1]), pack2<T>(q[2], q[3]), pack2<T>(q[4], q[5]), pack2<T>(q[6], q[7])};
      store_shared(to + pack_at(r, pack, Shared::kQueryPanel), packed);
    }
  }

  __device__ void multiply_keys(float (&scores)[kKeys / 2], int stage) const {
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      const uint32_t query = shared_.query(index_) + step / 4 * Shared::kQueryPanel + step % 4 * 32;
      const uint32_t keys = shared_.keys(stage) + step / 4 * Shared::kTilePanel + step % 4 * 32;
      Scores::from_shared(scores, matrix(query), matrix(keys), step > 0);
    }
    wgmma_commit();
  }

  // Turns scores into weights. Frees the stage of the keys, together with their scales once these were used.
  __device__ void soften_tile(float (&scores)[kKeys / 2], int stage, int first_key, float (&keep)[2]) {
    if constexpr (!scaled) release(shared_.keys_empty(stage));
    if constexpr (scaled) scale_by(scores, shared_.key_scales(stage));
    const float before[2] = {rows_.top[0], rows_.top[1]};
    Rise rise = raise(p_, rows_, scores, first_key, b_.kv_len);
    // A tile that a row does not see keeps all bits of the row.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (rows_.top[h] == before[h]) rise.keep[h] = 1.0f;
    }
    weigh(p_, rows_, rise, scores);
    keep[0] = rise.keep[0], keep[1] = rise.keep[1];
    if constexpr (scaled) {
      scale_by(scores, shared_.value_scales(stage));
      __syncwarp();
      release(shared_.keys_empty(stage));
    }
  }

  __device__ static void scale_by(float (&scores)[kKeys / 2], uint32_t scales) {
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
      const auto pair = load_shared<float2>(scales + (i * 8 + 2 * Lane::t()) * 4);
      scores[4 * i] *= pair.x, scores[4 * i + 1] *= pair.y;
      scores[4 * i + 2] *= pair.x, scores[4 * i + 3] *= pair.y;
    }
  }

  __device__ void mix(const uint32_t (&weights)[kKeys / 16][4], int stage) {
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        const uint32_t values =
            shared_.values(stage) + part * (kPart / kPanel) * Shared::kTilePanel + step * 16 * kRowBytes;
        Mixing::from_registers(mixed_[part], weights[step], matrix(values, Shared::kTilePanel));
      }
    }
    wgmma_commit();
  }

  __device__ void fence_mixed() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_fence_operands(mixed_[part]);
  }

  __device__ void rescale(const float (&keep)[2]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) mixed_[part][i] *= keep[i / 2 % 2];
    }
  }
};

}  // namespace sluice::cuda
