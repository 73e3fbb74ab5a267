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

#include "kernels/cuda/attention/warpgroup_tiles.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace sluice::cuda {
namespace {

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
    if (copy % 2 == 0) scales.give(shared, copy / 2 % Layout<dim>::kStages);
    fence_proxy_async();
    arrive(full);
  };
  static_assert(kAhead % 2 == 1);
  copy_keys(0, 0);
#pragma unroll
  for (int i = 1; i < kAhead; i += 2) copy_values(i / 2), copy_keys(i / 2 + 1, i / 2 + 1);
  for (int i = 0; i < tiles.count(); ++i) {
    const int stage = i % Layout<dim>::kStages, parity = i / Layout<dim>::kStages % 2 ^ 1;
    copy_values(i + kAhead / 2);
    give(2 * i, shared.keys(stage), shared.keys_empty(stage), shared.keys_full(stage), parity);
    copy_keys(i + kAhead / 2 + 1, kAhead / 2);
    give(2 * i + 1, shared.values(stage), shared.values_empty(stage), shared.values_full(stage), parity);
  }
}

template <class T, int dim>
struct Design : Roles<T> {
  using Shared = Layout<dim>;
  using Consumer = RowsConsumer<typename Roles<T>::Operand, dim, std::is_same_v<T, int8_t>>;
  static constexpr int kBytes = std::is_same_v<T, int8_t> ? Shared::kScaledBytes
                                : sizeof(T) == 1          ? Shared::kNarrowBytes
                                                          : Shared::kBytes;

  struct Source {};

  __device__ static void prepare(const AttentionParams& p, const Shared& shared) { clear_beyond_keys<dim>(p, shared); }
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
