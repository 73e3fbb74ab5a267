// Paged prefill attention (many rows per sequence) by wgmma, for compute capability 9.0 (sm_90a). Bound by the tensor
// cores. Measured on one H200: 8192 causal rows, 32 heads of 128 over 8 in bf16, take 1018 us, 540 TFLOP/s.
//
// A block takes 128 packed rows of one kv head. One warp group copies tiles of keys and values into shared memory, and
// two compute 64 rows each (Shah et al. 2024, arXiv:2407.08608). Keys and values have two stages each. While the values
// of one tile are mixed, the scores and weights of the next tile are computed. Tiles are visited from the last keys to
// the first. Queries and softmax weights are rounded to the cache's type; scores and sums are fp32.
//
// Keys and values of 8 bits are copied as they are, two tiles ahead. The producer warp group widens them in its
// registers, exactly: 8-bit floats to fp16, int8 to bf16. Scales of int8 come with the keys: scores are multiplied by
// those of the keys, softmax weights by those of the values.
#include <type_traits>

#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace sluice::cuda {
namespace {

constexpr int kStages = 2;
constexpr int kPanel = 64;  // columns of a matrix in shared memory

// The operand type of the tensor cores, and the registers per thread.
template <class T>
struct Roles {
  using Operand = T;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};
template <class T>
requires(sizeof(T) == 1) struct Roles<T> {
  using Operand = typename WideOf<T>::Type;
  static constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
};

// Shared memory of a block, in bytes from a multiple of 1024.
template <int dim>
struct Layout {
  static constexpr int kTileKeys = dim <= 128 ? 128 : 64;
  static constexpr uint32_t kQuery = kGroupRows * dim * 2, kTile = kTileKeys * dim * 2;
  static constexpr uint32_t kTilePanel = kTileKeys * kPanel * 2, kQueryPanel = kGroupRows * kPanel * 2;
  static constexpr uint32_t kBarriers = kConsumers * kQuery + kStages * 2 * kTile;
  static constexpr uint32_t kBytes = kBarriers + kStages * 4 * 8;
  // For 8-bit caches: tiles of keys and values in turn that were copied and not widened yet.
  static constexpr int kNarrowTiles = dim > 128 ? 2 : 4;
  static constexpr uint32_t kNarrowTile = kTileKeys * dim, kNarrowBytes = kBytes + kNarrowTiles * kNarrowTile;
  static constexpr uint32_t kScales = kTileKeys * 4, kScaledBytes = kNarrowBytes + kStages * 2 * kScales;
  uint32_t base;

  __device__ uint32_t query(int consumer) const { return base + consumer * kQuery; }
  __device__ uint32_t keys(int stage) const { return base + kConsumers * kQuery + stage * 2 * kTile; }
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
      init_barrier(keys_empty(thread), kConsumers * kGroupThreads / kWarp);
      init_barrier(values_empty(thread), kConsumers * kGroupThreads / kWarp);
    }
  }
};

// The producer for 16-bit caches. Each warp copies a quarter of the keys. Keys outside [begin, end) become zeros and
// are not looked up.
template <int dim>
__device__ void produce_wide(const AttentionParams& p, const Block& b, const Layout<dim>& shared) {
  using Lane = CopyLane<dim>;
  using Tiles = CopiedTiles<Layout<dim>::kTileKeys>;
  const Lane keys(p.k, p.head_dim, p.head_dim), values(p.v, p.value_stride, p.value_dim);
  const uint32_t to = pack_at(Tiles::warp_key() + Lane::key(), Lane::pack(), Layout<dim>::kTilePanel);
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

// A lane's part of a tile of 8-bit keys or values: packs of 16 elements from the key groups of its warp. The lanes
// share these as CopyLane does for vectors half as long. A lane widens the packs that it copied.
template <class T, int dim>
class NarrowPacks {
 public:
  using Lane = CopyLane<dim / 2>;

  __device__ static void copy(uint32_t narrow, const Lane& lane, int vector, int first, int begin, int end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int in_group = i % kOfGroup * Lane::kKeys, at = __shfl_sync(0xffffffffu, vector, i / kOfGroup);
      const int key = first + i / kOfGroup * 8 + in_group + Lane::key();
      copy_async(pack(narrow, i), lane.from + (int64_t{at} + in_group) * lane.vector_bytes,
                 lane.there && key >= begin && key < end);
    }
  }

  // Widens the packs to the rows from `first_row` on of a tile. Lanes of the second panel write their second half
  // first, so that eight lanes meet all banks.
  __device__ static void widen(uint32_t narrow, uint32_t tile, int first_row, uint32_t panel_bytes) {
    const int second = Lane::pack() / 4 % 2;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = first_row + i / kOfGroup * 8 + i % kOfGroup * Lane::kKeys + Lane::key();
      const auto v = load_shared<uint4>(pack(narrow, i));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool high = (h ^ second) != 0;
        const uint32_t a = high ? v.z : v.x, b = high ? v.w : v.y;
        using Wide = WideOf<T>;
        const uint4 wide = {Wide::low(a), Wide::high(a), Wide::low(b), Wide::high(b)};
        store_shared(tile + pack_at(row, 2 * Lane::pack() + (h ^ second), panel_bytes), wide);
      }
    }
  }

 private:
  static constexpr int kOfGroup = 8 / Lane::kKeys, kCount = Layout<dim>::kTileKeys / 4 / 8 * kOfGroup;
  static_assert(kCount * kGroupThreads * 16 <= Layout<dim>::kNarrowTile);

  __device__ static uint32_t pack(uint32_t narrow, int i) { return narrow + (i * kGroupThreads + threadIdx.x) * 16; }
};

// Prefetches the scales of the next tiles. Each lane has one key of its warp's. Only int8 caches have scales.
template <class T, int dim, int depth>
class ScalesAhead {
 public:
  __device__ ScalesAhead(const AttentionParams&, const Block&) {}
  __device__ void load(int, int, int) {}
  __device__ void give(const Layout<dim>&, int) {}
};

template <int dim, int depth>
class ScalesAhead<int8_t, dim, depth> {
 public:
  __device__ ScalesAhead(const AttentionParams& p, const Block& b) : p_(p), b_(b) {}

  // Loads the scales of the warp's keys from `first` on into place `i` of the queue.
  __device__ void load(int i, int vector, int first) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, key = first + lane;
    const int at = __shfl_sync(kFullWarp, vector, lane / 8) + lane % 8;
    scales_[i] = {0.0f, 0.0f};
    if (lane < kKeys && key >= b_.begin && key < b_.end) scales_[i] = {p_.k_scales[at], p_.v_scales[at]};
  }
  // Writes the first scales of the queue to a stage.
  __device__ void give(const Layout<dim>& shared, int stage) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, at = static_cast<int>(threadIdx.x) / kWarp * kKeys + lane;
    if (lane < kKeys) {
      store_shared(shared.key_scales(stage) + at * 4, scales_[0].x);
      store_shared(shared.value_scales(stage) + at * 4, scales_[0].y);
    }
#pragma unroll
    for (int i = 0; i + 1 < depth; ++i) scales_[i] = scales_[i + 1];
  }

 private:
  static constexpr int kKeys = Layout<dim>::kTileKeys / 4;

  const AttentionParams& p_;
  const Block& b_;
  float2 scales_[depth];
};

template <class T, int dim>
__device__ void produce_narrow(const AttentionParams& p, const Block& b, const Layout<dim>& shared) {
  using Packs = NarrowPacks<T, dim>;
  constexpr int kAhead = Layout<dim>::kNarrowTiles - 1;
  const typename Packs::Lane keys(p.k, p.head_dim / 2, p.head_dim / 2),
      values(p.v, p.value_stride / 2, p.value_dim / 2);
  CopiedTiles<Layout<dim>::kTileKeys> tiles(p, b);
  int vector = 0;
  ScalesAhead<T, dim, kAhead / 2 + 1> scales(p, b);
  // Copy 2 i is that of the keys of tile i, counted from the last tile; copy 2 i + 1 is that of its values.
  const auto copy_keys = [&](int i, int place_of_scales) {
    if (i < tiles.count()) {
      vector = tiles.vector();
      tiles.look_up(i + 1);
      Packs::copy(shared.narrow(2 * i), keys, vector, tiles.first_key(i), b.begin, b.end);
      scales.load(place_of_scales, vector, tiles.first_key(i));
    }
    commit_copies();
  };
  const auto copy_values = [&](int i) {
    if (i < tiles.count()) {
      Packs::copy(shared.narrow(2 * i + 1), values, vector, tiles.first_key(i), b.begin, b.end);
    }
    commit_copies();
  };
  const auto give = [&](int copy, uint32_t tile, uint32_t empty, uint32_t full, int parity) {
    wait_for_copies<kAhead>();
    wait_barrier(empty, parity);
    Packs::widen(shared.narrow(copy), tile, tiles.warp_key(), Layout<dim>::kTilePanel);
    if (copy % 2 == 0) scales.give(shared, copy / 2 % kStages);
    fence_proxy_async();
    arrive(full);
  };
  static_assert(kAhead % 2 == 1);
  copy_keys(0, 0);
#pragma unroll
  for (int i = 1; i < kAhead; i += 2) copy_values(i / 2), copy_keys(i / 2 + 1, i / 2 + 1);
  for (int i = 0; i < tiles.count(); ++i) {
    const int stage = i % kStages, parity = i / kStages % 2 ^ 1;
    copy_values(i + kAhead / 2);
    give(2 * i, shared.keys(stage), shared.keys_empty(stage), shared.keys_full(stage), parity);
    copy_keys(i + kAhead / 2 + 1, kAhead / 2);
    give(2 * i + 1, shared.values(stage), shared.values_empty(stage), shared.values_full(stage), parity);
  }
}

// The 64 rows of a consumer. With g = l / 4 and t = l % 4, lane l of warp w has scores of rows 16 w + g and 16 w + g +
// 8. `scaled`: scores and weights are multiplied by the scales of keys and values.
template <class T, int dim, bool scaled>
class RowsConsumer {
 public:
  static constexpr int kKeys = Layout<dim>::kTileKeys;

  __device__ RowsConsumer(const AttentionParams& p, const Block& b, const Layout<dim>& shared)
      : p_(p), b_(b), shared_(shared), index_(Lane::consumer()), rows_(p, b, index_) {}

  // Copies the rows' queries to shared memory, with zeros where there are none.
  __device__ void load_queries() const {
    with_block_queries(p_, b_, [&](const auto& queries) { load_queries(queries); });
    fence_proxy_async();
    sync_threads(kQueriesThere + index_, kGroupThreads);
  }

  // Attends to all tiles, from the last to the first.
  __device__ void attend() {
    const int first = b_.begin / kKeys, last = (b_.end - 1) / kKeys;
    float scores[kKeys / 2];
    uint32_t weights[kKeys / 16][4];
    wait_barrier(shared_.keys_full(0), 0);
    multiply_keys(scores, 0);
    wgmma_wait<0>();
    wgmma_fence_operands(scores);
    float keep[2];
    soften_tile(scores, 0, last * kKeys, keep);
    pack<T>(weights, scores);
    give_first_turn();
    for (int tile = last - 1, i = 1; tile >= first; --tile, ++i) {
      const int stage = i % kStages, before = stage ^ 1;
      wait_barrier(shared_.keys_full(stage), i / kStages % 2);
      take_turn();
      multiply_keys(scores, stage);
      wait_barrier(shared_.values_full(before), (i - 1) / kStages % 2);
      mix(weights, before);
      give_turn();
      wgmma_wait<1>();
      wgmma_fence_operands(scores);
      soften_tile(scores, stage, tile * kKeys, keep);
      wgmma_wait<0>();
      fence_mixed();
      release(shared_.values_empty(before));
      rescale(keep);
      pack<T>(weights, scores);
    }
    const int tiles = last - first;
    wait_barrier(shared_.values_full(tiles % kStages), tiles / kStages % 2);
    mix(weights, tiles % kStages);
    wgmma_wait<0>();
    fence_mixed();
  }

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

 private:
  static constexpr int kParts = dim <= 128 ? 1 : 2, kPart = dim / kParts;  // columns of values at a time
  using Scores = Wgmma<T, kKeys>;
  using Mixing = Wgmma<T, kPart>;
  using Lane = ConsumerLane;

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
      store_shared(to + pack_at(r, pack, Layout<dim>::kQueryPanel), packed);
    }
  }

  __device__ void multiply_keys(float (&scores)[kKeys / 2], int stage) const {
    fence_proxy_async();
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      const uint32_t query = shared_.query(index_) + step / 4 * Layout<dim>::kQueryPanel + step % 4 * 32;
      const uint32_t keys = shared_.keys(stage) + step / 4 * Layout<dim>::kTilePanel + step % 4 * 32;
      Scores::from_shared(scores, matrix(query), matrix(keys), step > 0);
    }
    wgmma_commit();
  }

  // Turns scores into weights. Frees the stage of the keys, together with their scales once these were used.
  __device__ void soften_tile(float (&scores)[kKeys / 2], int stage, int first_key, float (&keep)[2]) {
    if constexpr (!scaled) release(shared_.keys_empty(stage));
    if constexpr (scaled) scale_by(scores, shared_.key_scales(stage));
    const Rise rise = raise(p_, rows_, scores, first_key, b_.kv_len);
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
            shared_.values(stage) + part * (kPart / kPanel) * Layout<dim>::kTilePanel + step * 16 * kRowBytes;
        Mixing::from_registers(mixed_[part], weights[step], matrix(values, Layout<dim>::kTilePanel));
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

  const AttentionParams& p_;
  const Block& b_;
  const Layout<dim>& shared_;
  const int index_;
  PrefillRows rows_;
  float mixed_[kParts][kPart / 2] = {};
};

template <class T, int dim>
struct Design : Roles<T> {
  using Shared = Layout<dim>;
  using Consumer = RowsConsumer<typename Roles<T>::Operand, dim, std::is_same_v<T, int8_t>>;
  static constexpr int kBytes = std::is_same_v<T, int8_t> ? Shared::kScaledBytes
                                : sizeof(T) == 1          ? Shared::kNarrowBytes
                                                          : Shared::kBytes;

  struct Source {};

  // wgmma also reads packs beyond the keys' own. They are cleared, because zero times NaN would not be zero.
  __device__ static void prepare(const AttentionParams& p, const Shared& shared) {
    const int own = p.head_dim / 8, beyond = dim / 8 - own;
    for (int i = static_cast<int>(threadIdx.x); i < kStages * Shared::kTileKeys * beyond; i += kPrefillThreads) {
      const int row = i / beyond % Shared::kTileKeys, stage = i / beyond / Shared::kTileKeys;
      store_shared(shared.keys(stage) + pack_at(row, own + i % beyond, Shared::kTilePanel), {0, 0, 0, 0});
    }
  }
  __device__ static void produce(const AttentionParams& p, const Block& b, const Source&, const Shared& shared) {
    if constexpr (sizeof(T) == 1) {
      produce_narrow<T, dim>(p, b, shared);
    } else {
      produce_wide<dim>(p, b, shared);
    }
  }
};

}  // namespace

template <class T>
bool attention_warpgroup([[maybe_unused]] const Launch& l, [[maybe_unused]] const AttentionParams& p,
                         [[maybe_unused]] const AttentionIndices& at) {
#ifdef SLUICE_SM90A
  if (l.compute_capability != 90) return false;
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    if (!attention_warpgroup_fp8(l, p, at)) launch_prefill<Design<T, 256>>(l, p, at, {});
  } else {
    const int dim = std::max(p.head_dim, p.value_dim);
    if (dim <= 64) {
      launch_prefill<Design<T, 64>>(l, p, at, {});
    } else if (dim <= 128) {
      launch_prefill<Design<T, 128>>(l, p, at, {});
    } else {
      launch_prefill<Design<T, 256>>(l, p, at, {});
    }
  }
  return true;
#else
  return false;
#endif
}

template bool attention_warpgroup<__nv_bfloat16>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_warpgroup<__half>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_warpgroup<__nv_fp8_e4m3>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_warpgroup<__nv_fp8_e5m2>(const Launch&, const AttentionParams&, const AttentionIndices&);
template bool attention_warpgroup<int8_t>(const Launch&, const AttentionParams&, const AttentionIndices&);

}  // namespace sluice::cuda
