// Paged attention in an order that the row alone fixes, by wgmma, for caches of 16 bits on compute capability 9.0
// (sm_90a). Bound by the tensor cores in prefill, and by reading the cache once in decode.
//
// Keys lie in tiles at absolute positions, and tiles in splits of kSplitKeys keys. Tiles and splits are visited from
// the last keys to the first. The online softmax begins anew with every split, and the splits are merged in order
// (device/split_merge.cuh). All rows are computed so, whatever shares their block or their batch:
// - Sequences with many rows have blocks of 128 packed rows, which take all splits. What was merged so far lies in
//   shared memory.
// - Sequences with few rows have a block of 64 packed rows per kv head. Where there are few such blocks, there is one
//   per split. They write to the workspace, and the last one to do so merges what is there.
// Tiles and splits that a row does not see change no bit of it. Heads of more than 128 dimensions are not split, for
// want of shared memory.
#include <climits>
#include <type_traits>

#include "kernels/cuda/attention/splits.h"
#include "kernels/cuda/attention/warpgroup_tiles.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/split_merge.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

template <int dim>
inline constexpr int kSplitKeys = dim <= 128 ? 512 : INT_MAX;

// A Layout with room for what a consumer merged so far: value i of thread t at [i][t].
template <int dim, int consumers, int stages>
struct SplitLayout : Layout<dim, consumers, stages> {
  using Base = Layout<dim, consumers, stages>;
  static constexpr uint32_t kMerged = kSplitKeys<dim> < INT_MAX ? kGroupRows * dim * 4 : 0;
  static constexpr uint32_t kBytes = Base::kBytes + consumers * kMerged;

  __device__ uint32_t merged(int consumer, int i) const {
    return this->base + Base::kBytes + consumer * kMerged + (i * kGroupThreads + ConsumerLane::thread()) * 4;
  }
};

// Where the blocks of single splits leave their results: values [slot][value_dim] and sums [slot], with a slot for each
// split, sequence, row and head. Splits are counted from a sequence's last one.
struct SplitResults {
  float* values;
  SplitSum* sums;
  int32_t* arrivals;                   // for each sequence and kv head; zeros before and after a launch
  int splits, sequences, rows, heads;  // splits: blocks per sequence and kv head; 1: blocks take all splits

  __device__ int64_t slot(int split, int sequence, int row, int head) const {
    return ((int64_t{split} * sequences + sequence) * rows + row) * heads + head;
  }
};

template <class T, int dim, class Shared>
class SplitConsumer : public RowsConsumer<T, dim, false, Shared> {
  using Base = RowsConsumer<T, dim, false, Shared>;
  using Base::b_, Base::index_, Base::kKeys, Base::kPart, Base::kParts, Base::mixed_, Base::p_, Base::rows_,
      Base::shared_;
  using typename Base::Lane;

 public:
  using Base::Base;

  __device__ void attend() {
    const int first = b_.begin / kKeys;
    int last = (b_.end - 1) / kKeys;
    if constexpr (kSplitKeys<dim> == INT_MAX) {
      this->attend_to(first, last, 0);
    } else {
      constexpr int kTiles = kSplitKeys<dim> / kKeys;
      for (int begun = 0;;) {
        const int begin = max(first, last / kTiles * kTiles);
        this->attend_to(begin, last, begun);
        if (begun > 0) merge();
        if (begin == first) break;
        put_aside();
        begun += last - begin + 1, last = begin - 1;
      }
    }
  }

  // Writes the unscaled results of one split.
  __device__ void write_split(const SplitResults& to, int split) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const SplitSum own = whole(h);  // a warp-wide operation, so all lanes call it
      if (rows_.position[h] < 0) continue;
      const int token = rows_.position[h] - (b_.kv_len - b_.rows);
      const int64_t slot = to.slot(split, b_.sequence, token, rows_.head[h]);
      if (Lane::t() == 0) to.sums[slot] = own;
      float* values = to.values + slot * p_.value_dim;
#pragma unroll
      for (int i = 0; i < dim / 8; ++i) {
        const int column = i * 8 + 2 * Lane::t();
        const float(&mixed)[kPart / 2] = mixed_[i / (kPart / 8)];
        if (column >= p_.value_dim) continue;
        *reinterpret_cast<float2*>(values + column) = {mixed[i % (kPart / 8) * 4 + 2 * h],
                                                       mixed[i % (kPart / 8) * 4 + 2 * h + 1]};
      }
    }
  }

 private:
  // The sum of a row over the four lanes that share it.
  __device__ SplitSum whole(int h) const {
    float sum = rows_.sum[h];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    return {rows_.top[h], sum};
  }

  template <class F>
  __device__ void each_value(F&& f) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) f(mixed_[part][i], part * (kPart / 2) + i, i / 2 % 2);
    }
  }

  __device__ void put_aside() {
    each_value([&](float& v, int i, int) {
      store_shared(shared_.merged(index_, i), v);
      v = 0.0f;
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      aside_[h] = whole(h);
      rows_.top[h] = -INFINITY, rows_.sum[h] = 0.0f;
    }
  }

  __device__ void merge() {
    SplitFactors factors[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factors[h] = merge_split(aside_[h], whole(h), rows_.unit(p_, h));
      rows_.top[h] = aside_[h].top;
      rows_.sum[h] = Lane::t() == 0 ? aside_[h].sum : 0.0f;
    }
    each_value([&](float& v, int i, int h) { v = factors[h].merge(load_shared<float>(shared_.merged(index_, i)), v); });
  }

  SplitSum aside_[2];
};

// Many rows: see warpgroup.cuh.
template <class T, int dim>
struct ManyRows {
  using Shared = SplitLayout<dim, kConsumers, 2>;
  using Consumer = SplitConsumer<T, dim, Shared>;
  static constexpr int kBytes = Shared::kBytes, kProducerRegisters = 40, kConsumerRegisters = 232;

  struct Source {};

  __device__ static void prepare(const AttentionParams& p, const Shared& shared) { clear_beyond_keys<dim>(p, shared); }
  __device__ static void produce(const AttentionParams& p, const Block& b, const Source&, const Shared& shared) {
    produce_wide<dim>(p, b, shared);
  }
};

// Few rows. A block has one producer and one consumer. There is room for two blocks on an SM if heads have at most 128
// dimensions. Heads of 128 dimensions then have one stage, and two where there is no more than one block for an SM.
template <int dim>
inline constexpr int kTogether = dim <= 128 ? 2 : 1;
template <int dim>
inline constexpr int kFewestStages = dim == 128 ? 1 : 2;
template <int dim, int stages>
constexpr int of_sm() {
  return stages == kFewestStages<dim> ? kTogether<dim> : 1;
}
template <int dim, int stages>
using FewLayout = SplitLayout<dim, 1, stages>;
inline constexpr int kFewThreads = 2 * kGroupThreads;

// Whether this is the last of `splits` blocks that arrive here. Called by the consumer; `flag` is an address in shared
// memory that nobody uses any more.
__device__ inline bool arrives_last(int32_t* arrivals, int splits, uint32_t flag) {
  __threadfence();
  sync_threads(kQueriesThere, kGroupThreads);
  if (ConsumerLane::thread() == 0) {
    const bool last = atomicAdd(arrivals, 1) == splits - 1;
    if (last) *arrivals = 0;
    store_shared(flag, last ? 1.0f : 0.0f);
  }
  sync_threads(kQueriesThere, kGroupThreads);
  __threadfence();
  return load_shared<float>(flag) != 0.0f;
}

// Merges the splits of all rows of a block. A warp merges a row, and a lane every 32nd value of it. Called by the
// consumer.
template <int dim>
__device__ void merge_splits(const AttentionParams& p, const Block& b, const SplitResults& from, int splits) {
  constexpr int kValues = dim / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = ConsumerLane::thread() / kWarp; row < b.rows * p.group; row += kGroupThreads / kWarp) {
    const PackedRow at = packed_row(p, b.kv_head, row, b.rows, b.kv_len);
    SoftmaxRows rows(at, at);
    const float unit = rows.unit(p, 0);
    SplitSum all;
    float mixed[kValues] = {};
#pragma unroll 8
    for (int split = 0; split < splits; ++split) {
      const int64_t slot = from.slot(split, b.sequence, at.token, at.head);
      const float2 sum = __ldcg(reinterpret_cast<const float2*>(from.sums + slot));
      float values[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const int column = lane + i * kWarp;
        values[i] = column < p.value_dim ? __ldcg(from.values + slot * p.value_dim + column) : 0.0f;
      }
      const SplitSum next{sum.x, sum.y};
      if (split == 0) {
        all = next;
#pragma unroll
        for (int i = 0; i < kValues; ++i) mixed[i] = values[i];
      } else {
        const SplitFactors factors = merge_split(all, next, unit);
#pragma unroll
        for (int i = 0; i < kValues; ++i) mixed[i] = factors.merge(mixed[i], values[i]);
      }
    }
    rows.top[0] = all.top, rows.sum[0] = lane % 4 == 0 ? all.sum : 0.0f;
    const float factor = result_factor(p, rows, 0);
    const int64_t out = (b.first_token + at.token) * p.out_stride + int64_t{at.head} * p.value_dim;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int column = lane + i * kWarp;
      if (column < p.value_dim) put_result(p, out + column, mixed[i] * factor);
    }
  }
}

// Grid: (kv heads of splits, sequences). Many blocks have no split if sequences are unequally long, so this is found
// out first.
template <class T, int dim, int stages>
__global__ void __launch_bounds__(kFewThreads, of_sm<dim, stages>())
    attend_few(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitResults results) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Shared = FewLayout<dim, stages>;
  constexpr bool kShared = of_sm<dim, stages>() > 1;  // an SM, whose registers the consumers need most of
  extern __shared__ __align__(1024) uint4 memory[];
  wait_for_earlier();
  const auto block = static_cast<int>(blockIdx.x);
  const int split = block / p.kv_heads;
  const PrefillTile tile{.sequence = static_cast<int>(blockIdx.y), .kv_head = block % p.kv_heads, .first_row = 0};
  Block b = block_of(p, tile);
  if (b.rows <= 0 || b.rows * p.group > kMostDecodeRows || b.kv_len < b.rows || b.begin >= b.end) return;
  const int last = (b.end - 1) / kSplitKeys<dim>, splits = last - b.begin / kSplitKeys<dim> + 1;
  if (results.splits > 1) {
    const int begin = (last - split) * kSplitKeys<dim>;
    if (split > 0) b.end = min(b.end, begin + kSplitKeys<dim>);
    b.begin = max(b.begin, begin);
    if (b.begin >= b.end) return;
  }
  const Shared shared{shared_address(memory)};
  shared.init_barriers(static_cast<int>(threadIdx.x));
  clear_beyond_keys<dim>(p, shared);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    if constexpr (kShared) fewer_registers<40>();
    produce_wide<dim>(p, b, shared);
  } else {
    if constexpr (kShared) more_registers<216>();
    SplitConsumer<T, dim, Shared> consumer(p, b, shared);
    consumer.load_queries();
    consumer.attend();
    if (results.splits == 1 || splits == 1) {
      consumer.write();
      return;
    }
    consumer.write_split(results, split);
    int32_t* arrivals = results.arrivals + tile.sequence * p.kv_heads + tile.kv_head;
    if (arrives_last(arrivals, splits, shared.query(0))) merge_splits<dim>(p, b, results, splits);
  }
#endif
}

// The most splits that a sequence with few rows has.
template <int dim>
int most_splits(const AttentionParams& p, const AttentionIndices& at) {
  int64_t keys = at.decode_keys;
  const int64_t reach = p.chunk > 0 ? p.chunk : p.window > 0 && p.causal ? p.window : keys;
  // A range of so many keys lies in one more split than it fills.
  return static_cast<int>(std::min(pieces(keys, kSplitKeys<dim>), pieces(reach + at.decode_rows, kSplitKeys<dim>) + 1));
}

// The results of single splits, or of all splits if blocks are so numerous that they keep the device busy, or if the
// workspace is too small.
template <int dim>
SplitResults plan_splits(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  constexpr int kEven = 4;          // blocks per place on the device that even out their unequal keys
  constexpr int kShortKeys = 4096;  // keys that make no block much longer than others
  SplitResults r{.values = nullptr,
                 .sums = nullptr,
                 .arrivals = l.arrivals,
                 .splits = 1,
                 .sequences = at.sequences,
                 .rows = at.decode_rows,
                 .heads = p.heads};
  const int64_t blocks = int64_t{at.sequences} * p.kv_heads, places = int64_t{kTogether<dim>} * l.sm_count;
  if (blocks >= kEven * places || (at.decode_keys <= kShortKeys && 10 * blocks >= 9 * places)) return r;
  const int splits = most_splits<dim>(p, at);
  const int64_t slots = int64_t{splits} * at.sequences * at.decode_rows * p.heads;
  const auto room = static_cast<int64_t>(l.workspace_bytes);
  if (splits == 1 || slots * (int64_t{p.value_dim} * 4 + 8) > room) return r;
  if (blocks > room / static_cast<int64_t>(kBytesPerArrival)) return r;
  r.splits = splits;
  r.values = reinterpret_cast<float*>(l.workspace);
  r.sums = reinterpret_cast<SplitSum*>(r.values + slots * p.value_dim);
  return r;
}

template <class T, int dim, int stages>
void launch_few(const Launch& l, const AttentionParams& p, const AttentionIndices& at, const SplitResults& results) {
  constexpr int kBytes = FewLayout<dim, stages>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, attend_few<T, dim, stages>, kBytes);
  launch_pdl(l, "attention by splits", attend_few<T, dim, stages>,
             dim3(static_cast<unsigned>(results.splits * p.kv_heads), static_cast<unsigned>(at.sequences)), kFewThreads,
             kBytes, p, results);
}

template <class T, int dim>
void launch_few(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const SplitResults results = plan_splits<dim>(l, p, at);
  if constexpr (kFewestStages<dim> == 1) {
    if (results.splits * p.kv_heads * at.sequences <= l.sm_count) return launch_few<T, dim, 2>(l, p, at, results);
  }
  launch_few<T, dim, kFewestStages<dim>>(l, p, at, results);
}

template <class T, int dim>
void launch(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  if (at.prefill_tiles > 0) launch_prefill<ManyRows<T, dim>>(l, p, at, {});
  if (at.decode_rows > 0) launch_few<T, dim>(l, p, at);
}

template <class T>
void launch_type(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const int dim = std::max(p.head_dim, p.value_dim);
  if (dim <= 64) return launch<T, 64>(l, p, at);
  if (dim <= 128) return launch<T, 128>(l, p, at);
  launch<T, 256>(l, p, at);
}

}  // namespace

bool attention_by_splits(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  const DType type = args.k_cache.dtype;
  if (l.compute_capability != 90 || (type != &kBFloat16 && type != &kFloat16)) return false;
  // Selected keys of latent caches are copied, and the copies are for other kernels (attention/selected.cu).
  if (args.v_cache.data == nullptr || !args.share.whole() || args.log_sums.data != nullptr) return false;
  if (!attention_on_tensor_cores(args)) return false;
  const AttentionParams p = attention_params(args, at);
  if (type == &kBFloat16) {
    launch_type<__nv_bfloat16>(l, p, at);
  } else {
    launch_type<__half>(l, p, at);
  }
  return true;
}
#else
bool attention_by_splits(const Launch&, const ops::AttentionArgs&, const AttentionIndices&) { return false; }
#endif

}  // namespace sluice::cuda
