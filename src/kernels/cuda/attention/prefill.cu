// Paged prefill attention (many rows per sequence) by mma.sync, for every compute capability and dimension. Bound by
// the tensor cores. A block takes 128 packed rows; each of its 8 warps has 16 of them. All warps read the same tiles of
// 64 keys. Queries and softmax weights are rounded to the cache's type; scores and sums are fp32.
// Measured on one H200: 8192 causal rows, 32 heads of 128 over 8 in bf16, take 2192 us.
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/prefill_tile.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {
namespace {

constexpr int kTileRows = 16;  // packed rows of a warp
constexpr int kWarps = 8;
constexpr int kTileKeys = 64;  // keys of a block at a time; each warp copies a group of eight
static_assert(kTileKeys == kWarps * 8);

template <int dim>
constexpr size_t shared_bytes() {
  return size_t{2} * 2 * kTileKeys * dim * 2;
}

// Sixteen rows: queries as tensor-core operands, softmax state, mixed values. With g = l / 4 and t = l % 4, lane l of a
// warp has scores of rows g and g + 8.
template <class T, int dim, class Params>
class QueryTile {
 public:
  __device__ QueryTile(const Params& p, int sequence, int kv_head, int first_row, int rows, int kv_len)
      : p_(p),
        kv_len_(kv_len),
        rows_(packed_row(p, kv_head, first_row + g(), rows, kv_len),
              packed_row(p, kv_head, first_row + g() + 8, rows, kv_len)),
        last_row_(p.query_start[sequence + 1] - kv_len) {
    const bool pairs = pairs_of_queries(p);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t first = token(h) * p.q_stride + int64_t{rows_.head[h]} * p.head_dim;
      with_queries(p, [&](const auto* q) {
#pragma unroll
        for (int i = 0; i < dim / 8; ++i) {
          const int at = i * 8 + 2 * t();
          const bool there = rows_.position[h] >= 0 && at < p.head_dim;
          const float2 values = there ? query_pair(q + first + at, pairs) : float2{0.0f, 0.0f};
          query_[i / 2][h + i % 2 * 2] = pack2<T>(values.x, values.y);
        }
      });
    }
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mixed_[i][j] = 0.0f;
    }
  }

  // Attends to keys and values from `first_key` of the sequence on, which lie in the kTileKeys rows of k and v.
  __device__ void attend(const SharedRows<dim>& k, const SharedRows<dim>& v, int first_key) {
    float scores[kTileKeys / 2] = {}, keep[2];
    multiply_keys(scores, k);
    soften(p_, rows_, scores, first_key, kv_len_, keep);
    if (__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < dim / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mixed_[i][j] *= keep[j / 2];
      }
    }
    uint32_t weights[kTileKeys / 16][4];
    pack<T>(weights, scores);
    mix(weights, v);
  }

  __device__ void write() const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float factor = result_factor(p_, rows_, h);
      if constexpr (kOfPart<Params>) put_log_sum(p_, rows_, h, token(h));
      if (rows_.position[h] < 0) continue;
      const int64_t out = token(h) * p_.out_stride + int64_t{rows_.head[h]} * p_.value_dim;
#pragma unroll
      for (int i = 0; i < dim / 8; ++i) {
        const int column = i * 8 + 2 * t();
        if (column >= p_.value_dim) continue;
        put_result(p_, out + column, mixed_[i][2 * h] * factor);
        put_result(p_, out + column + 1, mixed_[i][2 * h + 1] * factor);
      }
    }
  }

 private:
  __device__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int t() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ int64_t token(int h) const { return last_row_ + rows_.position[h]; }  // index in the batch

  __device__ void multiply_keys(float (&scores)[kTileKeys / 2], const SharedRows<dim>& k) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kTileKeys / 16; ++i) {
        uint32_t b[4];
        ldmatrix4(b, k.pack(i * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        const uint32_t(&a)[4] = query_[step];
        mma<T>(scores + 8 * i, a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<T>(scores + 8 * i + 4, a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  __device__ void mix(const uint32_t (&weights)[kTileKeys / 16][4], const SharedRows<dim>& v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i) {
      const uint32_t(&a)[4] = weights[i];
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) {
        uint32_t b[4];
        ldmatrix4_transposed(b, v.pack(i * 16 + lane % 16, d * 2 + lane / 16));
        mma<T>(mixed_[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<T>(mixed_[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  const Params& p_;
  const int kv_len_;
  SoftmaxRows rows_;
  const int last_row_;  // the row of the batch where position 0 would be
  uint32_t query_[dim / 16][4];
  float mixed_[dim / 8][4];
};

// The warps' copies of tiles of keys and values, a group of eight per warp, with zeros for keys outside [begin, end).
template <int dim>
class TileCopies {
 public:
  __device__ TileCopies(const AttentionParams& p, int sequence, int kv_head, int begin, int end)
      : p_(p),
        keys_(p.k, p.head_dim, p.head_dim),
        values_(p.v, p.value_stride, p.value_dim),
        table_(p.block_table + int64_t{sequence} * p.block_table_stride),
        kv_head_(kv_head),
        begin_(begin),
        end_(end),
        own_(static_cast<int>(threadIdx.x) / 32 * 8) {}

  // Called one tile ahead of its copies.
  __device__ void look_up(int first_key) { place_.look_up(p_, table_, first_key + own_, begin_, end_); }
  // Starts the copies of a tile as one group.
  __device__ void start(int first_key, const SharedRows<dim>& keys, const SharedRows<dim>& values) const {
    using Lane = CopyLane<dim>;
    const int vector = place_.vector(p_, kv_head_), row = own_ + Lane::key();
    copy_groups<dim, 1, dim * 2>(keys.pack(row, Lane::pack()), keys_, vector, first_key + own_, begin_, end_);
    copy_groups<dim, 1, dim * 2>(values.pack(row, Lane::pack()), values_, vector, first_key + own_, begin_, end_);
    commit_copies();
  }

 private:
  const AttentionParams& p_;
  const CopyLane<dim> keys_, values_;
  const int32_t* table_;
  const int kv_head_, begin_, end_, own_;
  GroupPlace place_;
};

// Grid: tiles (prefill_tile).
template <class T, int dim, class Params>
__global__ void __launch_bounds__(kWarps * 32, 1) prefill(const __grid_constant__ Params p, int sequences) {
  extern __shared__ __align__(128) uint4 tiles[];
  constexpr int kBlockRows = kWarps * kTileRows;
  constexpr uint32_t kBytes = kTileKeys * dim * 2;
  const auto [sequence, kv_head, block_row] = prefill_tile(p, sequences, tiles);
  if (sequence < 0) return;
  __syncthreads();
  const int first_token = p.query_start[sequence], rows = p.query_start[sequence + 1] - first_token;
  const int kv_len = p.kv_len[sequence];
  clear_beyond<dim>(tiles, 4 * kTileKeys, min(p.head_dim, p.value_dim), static_cast<int>(blockDim.x));
  __syncthreads();
  const uint32_t base = shared_address(tiles);
  const auto keys = [&](int stage) { return SharedRows<dim>{base + stage * 2 * kBytes}; };
  const auto values = [&](int stage) { return SharedRows<dim>{base + (stage * 2 + 1) * kBytes}; };
  const int last_token = min(rows - 1, (block_row + kBlockRows - 1) / p.group);
  const int end = last_visible(p, kv_len - rows + last_token, kv_len) + 1;
  const int begin = first_visible(p, kv_len - rows + block_row / p.group), first = begin / kTileKeys * kTileKeys;
  const int own_row = block_row + static_cast<int>(threadIdx.x) / 32 * kTileRows;
  const int own_last_token = min(rows - 1, (own_row + kTileRows - 1) / p.group);
  const int own_last = own_row < rows * p.group ? last_visible(p, kv_len - rows + own_last_token, kv_len) : -1;
  const int own_first = first_visible(p, kv_len - rows + own_row / p.group);
  TileCopies<dim> copies(p, sequence, kv_head, begin, end);
  copies.look_up(first);
  copies.start(first, keys(0), values(0));
  copies.look_up(first + kTileKeys);
  QueryTile<T, dim, Params> tile(p, sequence, kv_head, own_row, rows, kv_len);
  int stage = 0;
  for (int key = first; key < end; key += kTileKeys, stage ^= 1) {
    copies.start(key + kTileKeys, keys(stage ^ 1), values(stage ^ 1));
    copies.look_up(key + 2 * kTileKeys);
    wait_for_copies<1>();
    __syncthreads();
    if (key <= own_last && key + kTileKeys > own_first) tile.attend(keys(stage), values(stage), key);
    __syncthreads();
  }
  wait_for_copies<0>();
  tile.write();
}

template <class T, int dim, class Params>
void launch_prefill(const Launch& l, const Params& p, const AttentionIndices& at) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, prefill<T, dim, Params>, shared_bytes<dim>());
  static_assert(kWarps * kTileRows == kPrefillTileRows && kWarps <= kMostPrefillWarps);
  const auto blocks = static_cast<unsigned>(at.prefill_tiles * p.kv_heads);
  prefill<T, dim, Params><<<blocks, kWarps * 32, shared_bytes<dim>(), l.stream>>>(p, at.sequences);
  check_launch("attention prefill");
}

}  // namespace

template <class T>
void attention_prefill(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  const int dim = std::max(p.head_dim, p.value_dim);
  if (dim <= 64) return launch_prefill<T, 64>(l, p, at);
  if (dim <= 128) return launch_prefill<T, 128>(l, p, at);
  launch_prefill<T, 256>(l, p, at);
}

template void attention_prefill<__nv_bfloat16>(const Launch&, const AttentionParams&, const AttentionIndices&);
template void attention_prefill<__half>(const Launch&, const AttentionParams&, const AttentionIndices&);

void attention_prefill_part(const Launch& l, const PartParams& p, const AttentionIndices& at) {
  launch_prefill<__nv_bfloat16, kMostPrefillDim>(l, p, at);
}

}  // namespace sluice::cuda
