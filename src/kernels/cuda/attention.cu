// Paged attention on the tensor cores, for caches of 16 bits and heads of up to 256 dimensions in whole packs of 16
// bytes. Queries and softmax weights are rounded to the cache's type; scores and sums are fp32.
//
// Few rows per sequence (decode): bound by reading the cache once. The keys of a sequence are cut at multiples of
// kChunk; a block takes one chunk for all query heads of a kv head, each of its warps every fourth group of 16 keys
// through a ring of its own in shared memory. The chunks' results meet in a second launch, in the order of the keys.
// Where chunks begin depends on nothing but the position, so a row's bits do not depend on the batch.
//
// Many rows (prefill): bound by the tensor cores. A block takes 128 packed rows, a warp 16 of them; all of its warps
// read the same tiles of 64 keys. Rows sum in another order than in decode and have other bits.
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {
namespace {

constexpr int kTileRows = 16;  // packed rows of a warp
constexpr int kChunk = 256;    // keys of a block in decode
constexpr int kDecodeWarps = 4;
constexpr int kGroup = 16;  // keys of a warp at a time in decode
constexpr int kPrefillWarps = 8;
constexpr int kTileKeys = 64;        // keys of a block at a time in prefill
constexpr int kMostDecodeRows = 64;  // packed rows up to which keys are cut into chunks

// What one chunk gives a row: its largest score (in powers of two) and the sum of weights relative to it; the mixed
// values lie apart.
struct ChunkSum {
  float top, sum;
};

struct Partials {
  float* values;   // [rows, heads, chunks, value_dim]
  ChunkSum* sums;  // [rows, heads, chunks]
  int chunks;
};

// Copies the pack `pack` of vector `vector` to a row in shared memory, or zeros.
template <int dim>
__device__ void copy_pack(const SharedRows<dim>& to, int row, int pack, const std::byte* from, int64_t vector,
                          int64_t stride, bool valid) {
  copy_async(to.pack(row, pack), valid ? from + (vector * stride + pack * 8) * 2 : from, valid);
}

// Packs beyond the vectors' own are read by the tensor cores, too.
template <int dim>
__device__ void clear_beyond(uint4* rows, int count, int elements) {
  const SharedRows<dim> shared{0};
  const int own = elements / 8, beyond = SharedRows<dim>::kPacks - own;
  for (int i = threadIdx.x; i < count * beyond; i += blockDim.x) {
    rows[shared.pack(i / beyond, own + i % beyond) / 16] = {0, 0, 0, 0};
  }
}

template <int dim>
constexpr int decode_stages() {
  return dim <= 64 ? 4 : dim <= 128 ? 3 : 2;
}

template <int dim>
constexpr size_t decode_shared() {
  return size_t{kDecodeWarps} * decode_stages<dim>() * 2 * kGroup * dim * 2;
}

// A warp's ring of groups of keys and values.
template <class T, int dim>
class Ring {
 public:
  static constexpr int kStages = decode_stages<dim>();
  static constexpr int kStep = kDecodeWarps * kGroup;

  // The groups at first, first + kStep and so on; keys outside [begin, end) are zeros and not looked up.
  __device__ Ring(const AttentionParams& p, uint32_t base, int sequence, int kv_head, int first, int begin, int end)
      : p_(p),
        base_(base + threadIdx.x / 32 * kStages * 2 * kBytes),
        table_(p.block_table + int64_t{sequence} * p.block_table_stride),
        kv_head_(kv_head),
        begin_(begin),
        end_(end),
        next_(first),
        lane_(threadIdx.x % 32) {
    look_up();
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }

  __device__ SharedRows<dim> keys(int stage) const { return {base_ + stage * 2 * kBytes}; }
  __device__ SharedRows<dim> values(int stage) const { return {base_ + (stage * 2 + 1) * kBytes}; }

  // Starts to copy the next group of this warp; one group of copies, empty at the end.
  __device__ void fetch(int stage) {
    if (next_ < end_) {
      const int key_packs = p_.head_dim / 8, value_packs = p_.value_dim / 8;
      const int64_t vector = vector_;
      for (int i = lane_; i < kGroup * SharedRows<dim>::kPacks; i += 32) {
        const int row = i / SharedRows<dim>::kPacks, pack = i % SharedRows<dim>::kPacks;
        const int64_t at = __shfl_sync(0xffffffffu, vector, row);
        const bool valid = there(next_ + row);
        if (pack < key_packs) copy_pack<dim>(keys(stage), row, pack, p_.k, at, p_.head_dim, valid);
        if (pack < value_packs) copy_pack<dim>(values(stage), row, pack, p_.v, at, p_.value_stride, valid);
      }
      next_ += kStep;
      look_up();
    }
    commit_copies();
  }

 private:
  static constexpr uint32_t kBytes = kGroup * dim * 2;

  __device__ bool there(int key) const { return key >= begin_ && key < end_; }

  // Lane i finds key i of the next group, before it is needed.
  __device__ void look_up() {
    const int key = next_ + lane_ % kGroup;
    vector_ = there(key) ? vector_of(p_, table_, kv_head_, key) : 0;
  }

  const AttentionParams& p_;
  const uint32_t base_;
  const int32_t* table_;
  const int kv_head_, begin_, end_;
  int next_;
  const int lane_;
  int64_t vector_;
};

// The warps' tiles of one block become one, in the order of the warps; `shared` is free for it.
template <class T, int dim>
__device__ void merge_warps(const AttentionParams& p, const QueryTile<T, dim>& tile, float* shared, int64_t first_token,
                            int chunk, const Partials& to) {
  __shared__ ChunkSum sums[kDecodeWarps][kTileRows];
  __shared__ PackedRow rows[kTileRows];
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = tile.sum(h);
    if (threadIdx.x % 4 == 0) sums[warp][g + 8 * h] = {tile.top(h), sum};
    if (threadIdx.x % 4 == 0 && warp == 0) rows[g + 8 * h] = tile.packed(h);
  }
  tile.each_value(
      [&](int h, int column, float value) { shared[(warp * kTileRows + g + 8 * h) * dim + column] = value; });
  __syncthreads();
  for (int i = threadIdx.x; i < kTileRows * p.value_dim; i += blockDim.x) {
    const int r = i / p.value_dim, column = i % p.value_dim;
    if (rows[r].position < 0) continue;
    float top = -INFINITY;
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, sums[w][r].top);
    const float base = top == -INFINITY ? 0.0f : top;
    float value = 0.0f, sum = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float weight = exp2f(sums[w][r].top - base);
      value += shared[(w * kTileRows + r) * dim + column] * weight;
      sum += sums[w][r].sum * weight;
    }
    const int64_t at = ((first_token + rows[r].token) * p.heads + rows[r].head) * to.chunks + chunk;
    to.values[at * p.value_dim + column] = value;
    if (column == 0) to.sums[at] = {top, sum};
  }
}

// Blocks: (tiles of packed rows * kv heads, chunks, sequences).
template <class T, int dim>
__global__ void __launch_bounds__(kDecodeWarps * 32, 2)
    decode(const __grid_constant__ AttentionParams p, const __grid_constant__ Partials partials) {
  extern __shared__ __align__(128) uint4 ring_memory[];
  const int sequence = blockIdx.z, chunk = blockIdx.y, kv_head = blockIdx.x % p.kv_heads;
  const int first_row = blockIdx.x / p.kv_heads * kTileRows;
  const int first_token = p.query_start[sequence], rows = p.query_start[sequence + 1] - first_token;
  const int kv_len = p.kv_len[sequence];
  if (first_row >= rows * p.group) return;
  const int last_token = min(rows - 1, (first_row + kTileRows - 1) / p.group);
  const int visible = first_visible(p, kv_len - rows + first_row / p.group);
  const int begin = max(chunk * kChunk, visible / kGroup * kGroup);
  const int end = min((chunk + 1) * kChunk, last_visible(p, kv_len - rows + last_token, kv_len) + 1);
  if (begin >= end) return;
  using Stages = Ring<T, dim>;
  const int vectors = kDecodeWarps * Stages::kStages * 2 * kGroup;
  clear_beyond<dim>(ring_memory, vectors, min(p.head_dim, p.value_dim));
  __syncthreads();
  // Groups lie at fixed multiples of 64 keys plus the warp's place, wherever the window begins.
  const int warp = threadIdx.x / 32;
  const int origin = begin / Stages::kStep * Stages::kStep + warp * kGroup;
  const int first = origin < begin ? origin + Stages::kStep : origin;
  Stages ring(p, shared_address(ring_memory), sequence, kv_head, first, visible, end);
  QueryTile<T, dim> tile(p, sequence, kv_head, first_row, rows, kv_len);
  int stage = 0;
  for (int key = first; key < end; key += Stages::kStep) {
    wait_for_copies<Stages::kStages - 2>();
    __syncwarp();
    ring.fetch(stage == 0 ? Stages::kStages - 1 : stage - 1);
    tile.template attend<kGroup>(ring.keys(stage), ring.values(stage), 0, key);
    __syncwarp();
    stage = stage + 1 == Stages::kStages ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  merge_warps(p, tile, reinterpret_cast<float*>(ring_memory), first_token, chunk, partials);
}

// Adds up the chunks of a row and head. Blocks: (rows, heads).
__global__ void merge_chunks(const __grid_constant__ AttentionParams p, const __grid_constant__ Partials partials,
                             int sequences) {
  const int row = blockIdx.x, head = blockIdx.y;
  int sequence = 0;
  for (int low = 0, high = sequences; low < high;) {  // the last one that begins at or before the row
    const int middle = (low + high) / 2;
    if (p.query_start[middle] <= row) {
      sequence = middle, low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int kv_len = p.kv_len[sequence], position = kv_len - p.query_start[sequence + 1] + row;
  const int begin = first_visible(p, position) / kChunk, end = last_visible(p, position, kv_len) / kChunk + 1;
  const int64_t at = (int64_t{row} * p.heads + head) * partials.chunks;
  const float sink = p.sinks != nullptr ? p.sinks[head] * kLog2E : -INFINITY;
  float top = sink;
  for (int c = begin; c < end; ++c) top = fmaxf(top, partials.sums[at + c].top);
  float sum = p.sinks != nullptr ? exp2f(sink - top) : 0.0f;
  for (int c = begin; c < end; ++c) sum += partials.sums[at + c].sum * exp2f(partials.sums[at + c].top - top);
  for (int d = threadIdx.x; d < p.value_dim; d += blockDim.x) {
    float value = 0.0f;
    for (int c = begin; c < end; ++c) {
      value += partials.values[(at + c) * p.value_dim + d] * exp2f(partials.sums[at + c].top - top);
    }
    p.out[row * p.out_stride + int64_t{head} * p.value_dim + d] = value / sum;
  }
}

template <int dim>
constexpr size_t prefill_shared() {
  return size_t{2} * 2 * kTileKeys * dim * 2;
}

// All threads of the block copy keys [first, first + kTileKeys) of the sequence, zeros for those outside [begin, end);
// one group of copies.
template <int dim>
__device__ void fetch_tile(const AttentionParams& p, const int32_t* table, int kv_head, int first, int begin, int end,
                           const SharedRows<dim>& keys, const SharedRows<dim>& values) {
  constexpr int kPacks = SharedRows<dim>::kPacks;
  for (int i = threadIdx.x; i < kTileKeys * kPacks; i += blockDim.x) {
    const int row = i / kPacks, pack = i % kPacks, key = first + row;
    const bool valid = key >= begin && key < end;
    const int64_t vector = valid ? vector_of(p, table, kv_head, key) : 0;
    if (pack < p.head_dim / 8) copy_pack<dim>(keys, row, pack, p.k, vector, p.head_dim, valid);
    if (pack < p.value_dim / 8) copy_pack<dim>(values, row, pack, p.v, vector, p.value_stride, valid);
  }
  commit_copies();
}

// Blocks: (tiles of packed rows, kv heads, sequences), the tiles with the most keys first.
template <class T, int dim>
__global__ void __launch_bounds__(kPrefillWarps * 32, 1) prefill(const __grid_constant__ AttentionParams p) {
  extern __shared__ __align__(128) uint4 tiles[];
  constexpr int kBlockRows = kPrefillWarps * kTileRows;
  constexpr uint32_t kBytes = kTileKeys * dim * 2;
  const int sequence = blockIdx.z, kv_head = blockIdx.y;
  const int first_token = p.query_start[sequence], rows = p.query_start[sequence + 1] - first_token;
  const int kv_len = p.kv_len[sequence];
  const int block_row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
  if (block_row >= rows * p.group) return;
  clear_beyond<dim>(tiles, 4 * kTileKeys, min(p.head_dim, p.value_dim));
  __syncthreads();
  const int32_t* table = p.block_table + int64_t{sequence} * p.block_table_stride;
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
  fetch_tile<dim>(p, table, kv_head, first, begin, end, keys(0), values(0));
  QueryTile<T, dim> tile(p, sequence, kv_head, own_row, rows, kv_len);
  int stage = 0;
  for (int key = first; key < end; key += kTileKeys, stage ^= 1) {
    fetch_tile<dim>(p, table, kv_head, key + kTileKeys, begin, end, keys(stage ^ 1), values(stage ^ 1));
    wait_for_copies<1>();
    __syncthreads();
    if (key <= own_last && key + kTileKeys > own_first) {
      tile.template attend<kTileKeys>(keys(stage), values(stage), 0, key);
    }
    __syncthreads();
  }
  wait_for_copies<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const PackedRow row = tile.packed(h);
    float top = tile.top(h), sum = tile.sum(h), keep = 1.0f;
    if (row.position < 0) continue;
    if (p.sinks != nullptr) {
      const float sink = p.sinks[row.head] * kLog2E, highest = fmaxf(top, sink);
      keep = exp2f(top - highest);
      sum = sum * keep + exp2f(sink - highest);
    }
    float* out = p.out + int64_t{first_token + row.token} * p.out_stride + int64_t{row.head} * p.value_dim;
    tile.each_value([&](int half, int column, float value) {
      if (half == h && column < p.value_dim) out[column] = value * keep / sum;
    });
  }
}

template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
             "shared memory of attention");
}

int chunks_of(int64_t keys) { return static_cast<int>(pieces(keys, kChunk)); }

template <class T, int dim>
void run_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at, int64_t rows) {
  static const bool allowed = (allow_shared(decode<T, dim>, decode_shared<dim>()), true);
  static_cast<void>(allowed);
  const int chunks = chunks_of(at.most_keys);
  CHECK(attention_workspace(rows, p.heads, p.value_dim, at.most_keys) <= l.workspace_bytes,
        "workspace of {} for {} rows of {} keys", l.workspace_bytes, rows, at.most_keys);
  auto* values = reinterpret_cast<float*>(l.workspace);
  const Partials partials{.values = values,
                          .sums = reinterpret_cast<ChunkSum*>(values + rows * p.heads * chunks * p.value_dim),
                          .chunks = chunks};
  const auto row_tiles = pieces(int64_t{at.most_rows} * p.group, kTileRows);
  const dim3 grid(static_cast<unsigned>(row_tiles * p.kv_heads), static_cast<unsigned>(chunks),
                  static_cast<unsigned>(at.sequences));
  decode<T, dim><<<grid, kDecodeWarps * 32, decode_shared<dim>(), l.stream>>>(p, partials);
  check_launch("attention decode");
  const dim3 merged(static_cast<unsigned>(rows), static_cast<unsigned>(p.heads));
  merge_chunks<<<merged, dim <= 64 ? 64 : 128, 0, l.stream>>>(p, partials, at.sequences);
  check_launch("attention merge");
}

template <class T, int dim>
void run_prefill(const Launch& l, const AttentionParams& p, const AttentionIndices& at) {
  static const bool allowed = (allow_shared(prefill<T, dim>, prefill_shared<dim>()), true);
  static_cast<void>(allowed);
  const dim3 grid(static_cast<unsigned>(pieces(int64_t{at.most_rows} * p.group, kPrefillWarps * kTileRows)),
                  static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(at.sequences));
  prefill<T, dim><<<grid, kPrefillWarps * 32, prefill_shared<dim>(), l.stream>>>(p);
  check_launch("attention prefill");
}

template <class T>
void run(const Launch& l, const AttentionParams& p, const AttentionIndices& at, int64_t rows) {
  const int dim = std::max(p.head_dim, p.value_dim);
  const bool few = int64_t{at.most_rows} * p.group <= kMostDecodeRows;
  const auto by_dim = [&]<int kDim>() { few ? run_decode<T, kDim>(l, p, at, rows) : run_prefill<T, kDim>(l, p, at); };
  if (dim <= 64) return by_dim.template operator()<64>();
  if (dim <= 128) return by_dim.template operator()<128>();
  by_dim.template operator()<256>();
}

bool whole_packs(const Tensor& cache) {
  return cache.shape[3] % 8 == 0 && cache.shape[3] <= 256 && reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
}

}  // namespace

size_t attention_workspace(int64_t rows, int heads, int64_t value_dim, int64_t most_keys) {
  return static_cast<size_t>(rows * heads * chunks_of(most_keys)) * (value_dim * sizeof(float) + sizeof(ChunkSum));
}

bool attention_tensor(const Launch& l, const ops::AttentionArgs& args, const AttentionIndices& at) {
  const DType type = args.k_cache.dtype;
  if ((type != &kBFloat16 && type != &kFloat16) || !whole_packs(args.k_cache)) return false;
  const AttentionParams p = attention_params(args, at);
  if (p.value_dim % 8 != 0 || (args.v_cache.data != nullptr && !whole_packs(args.v_cache))) return false;
  if (args.q.rows() == 0) return true;
  if (type == &kBFloat16) {
    run<__nv_bfloat16>(l, p, at, args.q.rows());
  } else {
    run<__half>(l, p, at, args.q.rows());
  }
  return true;
}

}  // namespace sluice::cuda
