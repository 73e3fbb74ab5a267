// Attention over 16-bit latent caches (multi-head latent attention, DeepSeek-V2, arXiv:2405.04434), for compute
// capability 9.0 (sm_90a). There is one kv head, whose values are the first columns of its keys. Takes any number of
// rows per sequence. Bound by reading the cache where few heads are decoded, else by the tensor cores.
// Measured on one H200 (4.64 TB/s): decoding 64 sequences of 4096 keys with 16 heads takes 108 us, 2.78 TB/s. Prefill
// of 4096 rows with 16 heads takes 699 us, 418 TFLOP/s.
//
// The first kernel has one block of four warp groups per SM. The blocks share the work evenly (device/latent_work.cuh)
// and take 64 packed rows by 64 keys at a time. A second kernel merges the pieces of units that were cut. In a block,
// one warp plans the pieces and one warp copies tiles of keys into a ring in shared memory, as TMA tiles of whole cache
// blocks. One warp group computes scores and softmax weights. Two warp groups mix values, half of the columns each; the
// values are the keys' own tile, read transposed. Weights lie in the last panel of their tile, whose keys are no longer
// needed by then. If the keys of the next tile have arrived, its scores are multiplied before the weights are handed
// on, so that softmax overlaps with mixing.
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/latent_work.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::cuda {
#ifdef SLUICE_SM90A
namespace {

constexpr int kGroupThreads = 128;  // threads of a warp group
constexpr int kThreads = 4 * kGroupThreads;
constexpr int kCopying = 0, kScoring = 1, kMixing = 2;  // roles of the warp groups; two of them mix
constexpr int kMixers = 2;
constexpr int kReaders = 1 + (1 + kMixers) * kGroupThreads / kWarp;  // warps that read the pieces
constexpr int kPanel = 64;                                           // columns of a matrix in shared memory
constexpr uint32_t kPanelBytes = kLatentKeys * kPanel * 2;
// Registers per thread of each role, in all those of 4 x 128.
constexpr int kCopyRegisters = 40, kScoreRegisters = 152, kMixRegisters = 160;
constexpr int kQueue = 4;                       // pieces that a block keeps in shared memory
constexpr int kScorersMet = 1, kMixersMet = 2;  // ids of named barriers; each mixer has one from kMixersMet on

// Shared memory of a block, in bytes from a multiple of 1024. Keys have one panel more than values.
template <int value_panels>
struct LatentLayout {
  static constexpr int kPanels = value_panels + 1, kStages = value_panels > 4 ? 2 : 4;
  static constexpr uint32_t kStage = kPanels * kPanelBytes;
  static constexpr uint32_t kQueries = kStages * kStage,
                            kFactors = kQueries + kPanels * kPanelBytes;           // [kStages, 2, kLatentRows]
  static constexpr uint32_t kBarriers = kFactors + kStages * 2 * kLatentRows * 4;  // [kStages, 3]
  static constexpr uint32_t kPieceBarriers = kBarriers + kStages * 3 * 8;          // [kQueue, 2]
  static constexpr uint32_t kPieces = kPieceBarriers + kQueue * 2 * 8, kSums = kPieces + kQueue * sizeof(LatentPiece);
  static constexpr uint32_t kCosts = kSums + kThreads / kWarp * 4;
  static constexpr uint32_t kBytes = kCosts + kLatentSequences * sizeof(LatentCost);
  static_assert(kBytes <= 227 << 10 && kCosts % 8 == 0);
  uint32_t base;

  __device__ uint32_t panel(int stage, int i) const { return base + stage * kStage + i * kPanelBytes; }
  __device__ uint32_t queries(int i) const { return base + kQueries + i * kPanelBytes; }
  __device__ uint32_t weights(int stage) const { return panel(stage, value_panels); }
  // By row: the factor of the values mixed before, and the factor of all of them after the last tile.
  __device__ uint32_t keep(int stage) const { return base + kFactors + stage * 2 * kLatentRows * 4; }
  __device__ uint32_t factors(int stage) const { return keep(stage) + kLatentRows * 4; }
  __device__ uint32_t keys_full(int stage) const { return base + kBarriers + stage * 24; }
  __device__ uint32_t weights_full(int stage) const { return keys_full(stage) + 8; }
  __device__ uint32_t empty(int stage) const { return keys_full(stage) + 16; }
  __device__ uint32_t piece_full(int place) const { return base + kPieceBarriers + place * 16; }
  __device__ uint32_t piece_empty(int place) const { return piece_full(place) + 8; }
};

// A position in a ring. It continues across pieces.
template <int stages>
struct Place {
  int stage = 0, parity = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

struct LatentMap {
  CUtensorMap keys;
  int rows;  // rows of a TMA tile, which divide a block
};

__device__ inline void store_pair(float* to, float a, float b) { *reinterpret_cast<float2*>(to) = {a, b}; }
__device__ inline void store_pair(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ inline void store_pair(__half* to, float a, float b) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}

// The thread's index in its warp group. It is hidden from the compiler, so that values derived from it are recomputed
// where they are used: registers are scarce, and the compiler would keep them all.
__device__ inline int thread_of_group() {
  int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  asm volatile("" : "+r"(thread));
  return thread;
}
__device__ inline int lane() { return thread_of_group() % kWarp; }
__device__ inline int warp_of_group() { return thread_of_group() / kWarp; }
// The first of a lane's two rows of a matmul result; the other is eight rows further.
__device__ inline int own_row() {
  const int thread = thread_of_group();
  return thread / kWarp * 16 + thread % kWarp / 4;
}

// The pieces that the planning warp wrote, one after another, as read by a warp that works on them.
template <int value_panels>
class Pieces {
 public:
  __device__ Pieces(const LatentPiece* queue, const LatentLayout<value_panels>& shared)
      : queue_(queue), shared_(shared) {}

  // Waits for the next piece. Null: there is none left.
  __device__ const LatentPiece* next() {
    wait_barrier(shared_.piece_full(place_.stage), place_.parity);
    const LatentPiece* piece = queue_ + place_.stage;
    return piece->sequence < 0 ? nullptr : piece;
  }
  __device__ void done() {
    __syncwarp();
    if (lane() == 0) arrive(shared_.piece_empty(place_.stage));
    place_.next();
  }

 private:
  const LatentPiece* const queue_;
  const LatentLayout<value_panels>& shared_;
  Place<kQueue> place_;
};

// Writes the block's pieces to the queue. Called by one warp.
template <int value_panels, class Params>
__device__ void plan_pieces(const LatentPartials& partials, LatentStretch<Params> stretch, LatentPiece* queue,
                            const LatentLayout<value_panels>& shared) {
  Place<kQueue> place;
  LatentCut cut{.sequence = -1, .first_row = 0, .first_block = 0, .last_block = 0};
  bool first = true;
  for (LatentPiece piece{.sequence = 0}; piece.sequence >= 0; place.next(), first = false) {
    if (!stretch.next(piece)) piece.sequence = -1;
    if (first && piece.sequence >= 0 && piece.begins_inside()) {
      cut = {piece.sequence, piece.first_row, stretch.first_block(), stretch.last_block()};
    }
    wait_barrier(shared.piece_empty(place.stage), place.parity ^ 1);
    if (lane() == 0) {
      queue[place.stage] = piece;
      arrive(shared.piece_full(place.stage));
    }
  }
  if (lane() == 0) partials.cuts[blockIdx.x] = cut;
}

// Copies the keys of all pieces. Called by one warp; each lane copies panels of one TMA tile of keys.
template <int value_panels>
__device__ void copy_keys(const AttentionParams& p, const LatentMap& map, Pieces<value_panels> pieces,
                          const LatentLayout<value_panels>& shared) {
  using Layout = LatentLayout<value_panels>;
  const int rows = map.rows, tiles = kLatentKeys / rows, tile = lane() % tiles;
  Place<Layout::kStages> place;
  for (const LatentPiece* piece = pieces.next(); piece != nullptr; pieces.done(), piece = pieces.next()) {
    const int32_t* table = p.block_table + int64_t{piece->sequence} * p.block_table_stride;
    const uint64_t policy = piece->rows * p.group <= kLatentRows ? l2_evict_first() : l2_evict_normal();
    int key = piece->first_tile * kLatentKeys + tile * rows;
    GroupPlace vectors;
    if (piece->tiles > 0) vectors.look_up(p, table, key, piece->begin, piece->end, rows);
    for (int i = piece->tiles; i > 0; --i, place.next()) {
      const int vector = vectors.vector(p, 0);
      const unsigned copying = __ballot_sync(kFullWarp, vector >= 0 && lane() < tiles);
      const uint32_t full = shared.keys_full(place.stage);
      wait_barrier(shared.empty(place.stage), place.parity ^ 1);
      if (lane() == 0) expect_bytes(full, static_cast<uint32_t>(__popc(copying) * rows * Layout::kPanels * 128));
      __syncwarp();
      if (vector >= 0) {
        for (int panel = lane() / tiles; panel < Layout::kPanels; panel += kWarp / tiles) {
          copy_tma_tile(shared.panel(place.stage, panel) + tile * rows * 128, map.keys, panel * 128, vector, full,
                        policy);
        }
      }
      key += kLatentKeys;
      vectors.look_up(p, table, key, piece->begin, piece->end, rows);
    }
  }
}

// Computes scores and softmax weights.
template <class T, int value_panels, class Params>
class Scorer {
  using Layout = LatentLayout<value_panels>;
  using Scores = Wgmma<T, kLatentKeys>;

 public:
  __device__ Scorer(const Params& p, const LatentPartials& partials, const Layout& shared)
      : p_(p), partials_(partials), shared_(shared) {}

  __device__ void score(const LatentPiece& piece) {
    SoftmaxRows rows(piece.row(p_, own_row()), piece.row(p_, own_row() + 8));
    if (piece.tiles > 0) {
      with_queries(p_, [&](const auto* q) { load_queries(piece, q); });
      wait_barrier(shared_.keys_full(place_.stage), place_.parity);
      float scores[kLatentKeys / 2];
      multiply(scores);
      for (int i = 1; i < piece.tiles; ++i) {
        const int stage = place_.stage;
        soften_tile(piece, rows, scores, piece.first_tile + i - 1);
        fence_proxy_async();
        __syncwarp();
        place_.next();
        // The warps vote: one warp may see the next keys when another does not, and all must hand on their rows in the
        // same order.
        const bool later = __all_sync(kFullWarp, barrier_passed(shared_.keys_full(place_.stage), place_.parity));
        if (!later) {
          give(stage);
          wait_barrier(shared_.keys_full(place_.stage), place_.parity);
        }
        multiply(scores);
        if (later) give(stage);
      }
      soften_tile(piece, rows, scores, piece.first_tile + piece.tiles - 1);
      const float factor[2] = {result_factor(p_, rows, 0), result_factor(p_, rows, 1)};
      if constexpr (kOfPart<Params>) {
        if (piece.slot < 0) put_log_sums(piece, rows);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (lane() % 4 == 0) store_shared(shared_.factors(place_.stage) + (own_row() + 8 * h) * 4, factor[h]);
      }
      fence_proxy_async();
      __syncwarp();
      give(place_.stage);
      place_.next();
    }
    if (piece.slot >= 0) store_sums(piece, rows);
  }

 private:
  // Copies the rows' queries to shared memory, with zeros where there are none.
  template <class Q>
  __device__ void load_queries(const LatentPiece& piece, const Q* all) const {
    constexpr int kPacks = Layout::kPanels * 8, kAtOnce = value_panels > 4 ? 12 : 10;
    static_assert(kLatentRows * kPacks % (kGroupThreads * kAtOnce) == 0);
    const bool vectors = reinterpret_cast<uintptr_t>(all) % 16 == 0 && p_.q_stride % kPack<Q> == 0;
#pragma unroll 1
    for (int first = thread_of_group(); first < kLatentRows * kPacks; first += kGroupThreads * kAtOnce) {
      float q[kAtOnce][8];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = (first + i * kGroupThreads) / kPacks, pack = (first + i * kGroupThreads) % kPacks;
        const PackedRow at = piece.row(p_, row);
#pragma unroll
        for (int j = 0; j < 8; ++j) q[i][j] = 0.0f;
        if (at.position < 0 || pack >= p_.head_dim / 8) continue;
        const Q* from = all + (piece.first_token + at.token) * p_.q_stride + int64_t{at.head} * p_.head_dim + pack * 8;
        if (vectors) {
          query_eight(from, q[i]);
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j) q[i][j] = to_f32(from[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = (first + i * kGroupThreads) / kPacks, pack = (first + i * kGroupThreads) % kPacks;
        const uint4 packed = {pack2<T>(q[i][0], q[i][1]), pack2<T>(q[i][2], q[i][3]), pack2<T>(q[i][4], q[i][5]),
                              pack2<T>(q[i][6], q[i][7])};
        store_shared(shared_.queries(pack / 8) + row * kPanel * 2 + ((pack ^ row) & 7) * 16, packed);
      }
    }
    fence_proxy_async();
    sync_threads(kScorersMet, kGroupThreads);
  }

  __device__ void multiply(float (&scores)[kLatentKeys / 2]) const {
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < Layout::kPanels * 4; ++step) {
      Scores::from_shared(scores, matrix(shared_.queries(step / 4) + step % 4 * 32),
                          matrix(shared_.panel(place_.stage, step / 4) + step % 4 * 32), step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operands(scores);
  }

  // Turns scores into weights in shared memory.
  __device__ void soften_tile(const LatentPiece& piece, SoftmaxRows& rows, float (&scores)[kLatentKeys / 2], int tile) {
    float keep[2];
    soften(p_, rows, scores, tile * kLatentKeys, piece.kv_len, keep);
    uint32_t weights[kLatentKeys / 16][4];
    pack<T>(weights, scores);
    const int row = warp_of_group() * 16 + lane() % 16, stage = place_.stage;
    sync_threads(kScorersMet, kGroupThreads);  // all warps have finished reading the keys that the weights replace
#pragma unroll
    for (int i = 0; i < kLatentKeys / 16; ++i) {
      const int pack = 2 * i + lane() / 16;
      stmatrix4(shared_.weights(stage) + row * kPanel * 2 + ((pack ^ row) & 7) * 16, weights[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane() % 4 == 0) store_shared(shared_.keep(stage) + (own_row() + 8 * h) * 4, keep[h]);
    }
  }

  __device__ void put_log_sums(const LatentPiece& piece, const SoftmaxRows& rows) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      put_log_sum(p_, rows, h, piece.first_token + piece.row(p_, own_row() + 8 * h).token);
    }
  }

  __device__ void give(int stage) const {
    if (lane() == 0) arrive(shared_.weights_full(stage));
  }

  __device__ void store_sums(const LatentPiece& piece, const SoftmaxRows& rows) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = rows.sum[h];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (lane() % 4 == 0 && rows.position[h] >= 0) {
        partials_.sums[piece.slot * kLatentRows + own_row() + 8 * h] = {rows.top[h] * score_unit(p_), sum};
      }
    }
  }

  const Params& p_;
  const LatentPartials& partials_;
  const Layout& shared_;
  Place<Layout::kStages> place_;
};

// Mixes one half of the columns of the values.
template <class T, int value_panels>
class ValueMixer {
  using Layout = LatentLayout<value_panels>;
  static constexpr int kOwnPanels = value_panels / kMixers, kPart = 128, kParts = kOwnPanels * kPanel / kPart;
  using Mixing = Wgmma<T, kPart>;

 public:
  __device__ ValueMixer(const AttentionParams& p, const LatentPartials& partials, const Layout& shared)
      : p_(p),
        partials_(partials),
        shared_(shared),
        index_(__shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / kGroupThreads - kMixing, 0)) {}

  __device__ void mix(const LatentPiece& piece) {
    float factor[2] = {1.0f, 1.0f};
    for (int i = 0; i < piece.tiles; ++i, place_.next()) {
      wait_barrier(shared_.keys_full(place_.stage), place_.parity);
      wait_barrier(shared_.weights_full(place_.stage), place_.parity);
      const int first_key = (piece.first_tile + i) * kLatentKeys;
      if (first_key < piece.begin || first_key + kLatentKeys > piece.end) clear_unseen(piece, first_key);
      if (i > 0) rescale();
      if (i + 1 == piece.tiles && piece.slot < 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          factor[h] = load_shared<float>(shared_.factors(place_.stage) + (own_row() + 8 * h) * 4);
      }
      multiply(i > 0);
      if (lane() == 0) arrive(shared_.empty(place_.stage));
    }
    if (piece.tiles > 0) write(piece, factor);
  }

 private:
  // Clears values of keys that no row of the unit sees. Their weights are zero, but the values may be NaN.
  __device__ void clear_unseen(const LatentPiece& piece, int first_key) const {
    constexpr int kPacks = kOwnPanels * 8;
#pragma unroll 1
    for (int i = thread_of_group(); i < kLatentKeys * kPacks; i += kGroupThreads) {
      const int row = i / kPacks, pack = i % kPacks, key = first_key + row;
      if (key >= piece.begin && key < piece.end) continue;
      store_shared(shared_.panel(place_.stage, index_ * kOwnPanels + pack / 8) + row * kPanel * 2 + pack % 8 * 16,
                   uint4{0, 0, 0, 0});
    }
    fence_proxy_async();
    sync_threads(kMixersMet + index_, kGroupThreads);
  }

  __device__ void rescale() {
    const uint32_t from = shared_.keep(place_.stage) + own_row() * 4;
    const float keep[2] = {load_shared<float>(from), load_shared<float>(from + 8 * 4)};
    if (__any_sync(kFullWarp, keep[0] != 1.0f || keep[1] != 1.0f)) scale_by(keep);
  }

  __device__ void multiply(bool accumulate) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_fence_operands(mixed_[part]);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < kLatentKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t values = shared_.panel(place_.stage, index_ * kOwnPanels + part * (kPart / kPanel));
        Mixing::from_shared_transposed(mixed_[part], matrix(shared_.weights(place_.stage) + step * 32),
                                       matrix(values + step * 16 * kPanel * 2, kPanelBytes), accumulate || step > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_fence_operands(mixed_[part]);
  }

  __device__ void write(const LatentPiece& piece, const float (&factor)[2]) {
    scale_by(factor);
    if (piece.slot >= 0) {
      write_rows(piece, partials_.values + int64_t{piece.slot} * kLatentRows * p_.value_dim, true);
    } else if (p_.out_type == RowType::kFloat) {
      write_rows(piece, static_cast<float*>(p_.out), false);
    } else if (p_.out_type == RowType::kBFloat16) {
      write_rows(piece, static_cast<__nv_bfloat16*>(p_.out), false);
    } else {
      write_rows(piece, static_cast<__half*>(p_.out), false);
    }
  }

  __device__ void scale_by(const float (&factor)[2]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i) mixed_[part][i] *= factor[i / 2 % 2];
    }
  }

  // Writes the rows to a slot, or to the results.
  template <class Out>
  __device__ void write_rows(const LatentPiece& piece, Out* to, bool slot) const {
    const int column = index_ * kOwnPanels * kPanel + lane() % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PackedRow row = piece.row(p_, own_row() + 8 * h);
      if (row.position < 0) continue;
      const int64_t at = slot ? int64_t{own_row() + 8 * h} * p_.value_dim
                              : (piece.first_token + row.token) * p_.out_stride + int64_t{row.head} * p_.value_dim;
      Out* const from = to + at + column;
#pragma unroll
      for (int i = 0; i < kOwnPanels * 8; ++i) {
        const float(&mixed)[kPart / 2] = mixed_[i / (kPart / 8)];
        const int own = i % (kPart / 8) * 4 + 2 * h;
        if (column + i * 8 < p_.value_dim) store_pair(from + i * 8, mixed[own], mixed[own + 1]);
      }
    }
  }

  const AttentionParams& p_;
  const LatentPartials& partials_;
  const Layout& shared_;
  const int index_;
  Place<Layout::kStages> place_;
  float mixed_[kParts][kPart / 2];
};

template <class T, int value_panels, class Params>
__global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ Params p, const __grid_constant__ LatentMap map,
           const __grid_constant__ LatentPartials partials, int sequences) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  using Layout = LatentLayout<value_panels>;
  const Layout shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      init_barrier(shared.keys_full(stage), 1);
      init_barrier(shared.weights_full(stage), kGroupThreads / kWarp);
      init_barrier(shared.empty(stage), kMixers * kGroupThreads / kWarp);
    }
  }
  if (threadIdx.x < kQueue) {
    init_barrier(shared.piece_full(static_cast<int>(threadIdx.x)), 1);
    init_barrier(shared.piece_empty(static_cast<int>(threadIdx.x)), kReaders);
  }
  fence_proxy_async();
  wait_for_earlier();
  auto* costs = reinterpret_cast<LatentCost*>(memory + Layout::kCosts);
  const int all = sum_latent_costs(p, sequences, costs, reinterpret_cast<int*>(memory + Layout::kSums));
  __syncthreads();
  auto* queue = reinterpret_cast<LatentPiece*>(memory + Layout::kPieces);
  Pieces<value_panels> pieces(queue, shared);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == kCopying) {
    fewer_registers<kCopyRegisters>();
    if (threadIdx.x < kWarp) {
      copy_keys<value_panels>(p, map, pieces, shared);
    } else if (threadIdx.x < 2 * kWarp) {
      plan_pieces<value_panels>(partials, LatentStretch<Params>(p, costs, sequences, all), queue, shared);
    }
  } else if (group == kScoring) {
    more_registers<kScoreRegisters>();
    Scorer<T, value_panels, Params> scorer(p, partials, shared);
    for (const LatentPiece* piece = pieces.next(); piece != nullptr; pieces.done(), piece = pieces.next()) {
      scorer.score(*piece);
    }
  } else {
    more_registers<kMixRegisters>();
    ValueMixer<T, value_panels> mixer(p, partials, shared);
    for (const LatentPiece* piece = pieces.next(); piece != nullptr; pieces.done(), piece = pieces.next()) {
      mixer.mix(*piece);
    }
  }
#endif
}

constexpr int kAddingWarps = 4, kAddedColumns = kWarp * 4;  // columns of a warp
constexpr int kManyPieces = 16;                             // from this many pieces on, the warps of a block share them

// Merges the pieces of units. One block column per boundary between blocks; all boundaries inside a unit share its
// rows. A warp has kAddedColumns columns of a row. If there are many pieces, the warps of a block have every fourth
// piece and the same columns.
template <class Params>
__global__ void __launch_bounds__(kAddingWarps* kWarp)
    add_pieces(const __grid_constant__ Params p, const __grid_constant__ LatentPartials partials) {
  __shared__ float weights[kMostLatentBlocks];
  __shared__ float4 shares[kAddingWarps][kWarp];
  wait_for_earlier();
  const int boundary = static_cast<int>(blockIdx.x) + 1, warp = static_cast<int>(threadIdx.x) / kWarp;
  const LatentCut cut = partials.cuts[boundary];
  if (cut.sequence < 0) return;
  const LatentSequence s(p, cut.sequence);
  const int pieces = cut.last_block - cut.first_block + 1, rows = min(kLatentRows, s.rows * p.group - cut.first_row);
  const int own = (boundary - cut.first_block - 1) * static_cast<int>(gridDim.y) + static_cast<int>(blockIdx.y);
  const int sharing = (pieces - 1) * static_cast<int>(gridDim.y);
  const bool many = pieces >= kManyPieces;
  const int parts = many ? (p.value_dim + kAddedColumns - 1) / kAddedColumns : 1;  // parts of a row, taken one at a
                                                                                   // time
  const auto slot = [&](int piece, int row) {
    return int64_t{2 * (cut.first_block + piece) + (piece == 0 ? 1 : 0)} * kLatentRows + row;
  };
  for (int item = own; item < rows * parts; item += sharing) {
    const int row = item / parts;
    const PackedRow packed = packed_row(p, 0, cut.first_row + row, s.rows, s.kv_len);
    const float sink = p.sinks != nullptr ? p.sinks[packed.head] * kLog2E : -INFINITY;
    ChunkSum known[kMostLatentBlocks / kWarp];
    float top = sink, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostLatentBlocks / kWarp; ++i) {
      const int piece = i * kWarp + lane();
      known[i] = {-INFINITY, 0.0f};
      if (piece < pieces) {
        const float2 loaded = __ldcg(reinterpret_cast<const float2*>(partials.sums + slot(piece, row)));
        known[i] = {loaded.x, loaded.y};
      }
      top = fmaxf(top, known[i].top);
    }
    top = warp_max(top);
    if (kOfPart<Params> && top == -INFINITY) top = 0.0f;  // no key was seen
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMostLatentBlocks / kWarp; ++i) {
      const float weight = exp2_fast(known[i].top - top);
      sum = fmaf(weight, known[i].sum, sum);
      if (warp == 0) weights[i * kWarp + lane()] = weight;
    }
    sum = warp_sum(sum) + (p.sinks != nullptr ? exp2_fast(sink - top) : 0.0f);
    if constexpr (kOfPart<Params>) {
      if (threadIdx.x == 0) put_log_sum(p, s.first_token + packed.token, packed.head, top, sum);
      if (sum == 0.0f) sum = 1.0f;  // all values are zero then
    }
    __syncthreads();
    for (int part = 0; part < (many ? 1 : p.value_dim); part += kAddingWarps * kAddedColumns) {
      const int column = part + (many ? item % parts : warp) * kAddedColumns + lane() * 4;
      float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
      if (column < p.value_dim) {
#pragma unroll 8
        for (int piece = many ? warp : 0; piece < pieces; piece += many ? kAddingWarps : 1) {
          const float w = weights[piece];
          if (w == 0.0f) continue;  // the slot may not have been written
          const float4 v =
              __ldcg(reinterpret_cast<const float4*>(partials.values + slot(piece, row) * p.value_dim + column));
          value.x = fmaf(w, v.x, value.x), value.y = fmaf(w, v.y, value.y);
          value.z = fmaf(w, v.z, value.z), value.w = fmaf(w, v.w, value.w);
        }
      }
      if (many) {
        shares[warp][lane()] = value;
        __syncthreads();
        if (warp > 0) continue;
#pragma unroll
        for (int w = 1; w < kAddingWarps; ++w) {
          const float4 v = shares[w][lane()];
          value.x += v.x, value.y += v.y, value.z += v.z, value.w += v.w;
        }
      }
      if (column >= p.value_dim) continue;
      const int64_t out = (s.first_token + packed.token) * p.out_stride + int64_t{packed.head} * p.value_dim + column;
      put_results(p, out, {value.x / sum, value.y / sum});
      put_results(p, out + 2, {value.z / sum, value.w / sum});
    }
  }
}

LatentMap latent_map(const AttentionParams& p) {
  int rows = kLatentKeys;
  while (p.block_size % rows != 0) rows /= 2;
  const auto bytes = static_cast<cuuint64_t>(p.head_dim) * 2;
  return {tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, p.k, {bytes, static_cast<cuuint64_t>(p.vectors)}, {bytes},
                        {128, static_cast<cuuint32_t>(rows)}, CU_TENSOR_MAP_SWIZZLE_128B),
          rows};
}

LatentPartials latent_partials(const Launch& l, const AttentionParams& p) {
  const int64_t rows = int64_t{2} * l.sm_count * kLatentRows;
  auto* values = reinterpret_cast<float*>(l.workspace);
  auto* sums = reinterpret_cast<ChunkSum*>(values + rows * p.value_dim);
  auto* cuts = reinterpret_cast<LatentCut*>(sums + rows);
  CHECK(reinterpret_cast<std::byte*>(cuts + l.sm_count) <= l.workspace + l.workspace_bytes,
        "latent attention: a workspace of {} bytes is too small", l.workspace_bytes);
  return {values, sums, cuts};
}

template <class T, int value_panels, class Params>
void launch_latent(const Launch& l, const Params& p, int tokens, int sequences) {
  constexpr int kBytes = LatentLayout<value_panels>::kBytes;
  static SharedMemoryLimit limit;
  limit.raise(l.device, attend<T, value_panels, Params>, kBytes);
  const LatentMap map = latent_map(p);
  const LatentPartials partials = latent_partials(l, p);
  const auto blocks = static_cast<unsigned>(l.sm_count);
  const auto rows = static_cast<unsigned>(std::min<int64_t>(kLatentRows, int64_t{tokens} * p.group));
  for (int first = 0; first < sequences; first += kLatentSequences) {
    Params own = p;
    own.query_start += first, own.kv_len += first, own.block_table += int64_t{first} * p.block_table_stride;
    launch_pdl(l, "latent attention", attend<T, value_panels, Params>, dim3(blocks), kThreads, kBytes, own, map,
               partials, std::min(sequences - first, kLatentSequences));
    if (blocks == 1) continue;
    launch_pdl(l, "latent attention: merge", add_pieces<Params>, dim3(blocks - 1, rows), kAddingWarps * kWarp, 0, own,
               partials);
  }
}

template <class T>
void launch_by_shape(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  const auto tokens = static_cast<int>(args.q.rows()), sequences = at.sequences;
  if (args.log_sums.data != nullptr) return launch_latent<T, 8>(l, part_params(args, at), tokens, sequences);
  const AttentionParams p = attention_params(args, at);
  if (p.value_dim <= 4 * kPanel && p.head_dim <= 5 * kPanel) return launch_latent<T, 4>(l, p, tokens, sequences);
  launch_latent<T, 8>(l, p, tokens, sequences);
}

}  // namespace

bool attention_latent(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  const Tensor& k = args.k_cache;
  if (l.compute_capability != 90 || l.sm_count > kMostLatentBlocks) return false;
  if (args.v_cache.data != nullptr || k.shape[1] != 1 || k.shape[2] % 8 != 0) return false;
  if (k.dtype != &kBFloat16 && k.dtype != &kFloat16) return false;
  const AttentionParams p = attention_params(args, at);
  if (p.head_dim > 9 * kPanel || p.value_dim > 8 * kPanel || p.head_dim % 8 != 0 || p.value_dim % 8 != 0) return false;
  if (reinterpret_cast<uintptr_t>(p.k) % 16 != 0 || p.vectors > INT32_MAX) return false;
  const bool queries = p.q_type == RowType::kFloat ? reinterpret_cast<uintptr_t>(p.q) % 8 == 0
                                                   : reinterpret_cast<uintptr_t>(p.q) % 4 == 0;
  const bool results = p.out_type == RowType::kFloat ? reinterpret_cast<uintptr_t>(p.out) % 8 == 0
                                                     : reinterpret_cast<uintptr_t>(p.out) % 4 == 0;
  if (!queries || !results || p.q_stride % 2 != 0 || p.out_stride % 2 != 0) return false;
  if (args.q.rows() == 0) return true;
  if (k.dtype == &kBFloat16) {
    launch_by_shape<__nv_bfloat16>(l, args, at);
  } else {
    launch_by_shape<__half>(l, args, at);
  }
  return true;
}
#else
bool attention_latent(const Launch&, const ops::AttentionArgs&, const AttentionIndices&) { return false; }
#endif

}  // namespace sluice::cuda
