// Selects the entries that each row attends to, in two kernels for as many rows at a time as the workspace has room for
// scores. The first one computes scores: on the tensor cores for 16-bit caches, with queries rounded to the type of the
// cache, else in fp32. The second one finds the highest scores of a row by their bits, eight at a time (radix select).
// A row's bits depend on its own data alone. Bound by arithmetic, and by reading the scores six times in one block.
#include <type_traits>

#include "kernels/cuda/device/entry_places.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/per_device.h"
#include "ops/entries.h"

namespace sluice::cuda {
namespace {

struct SelectParams {
  const float *q, *weights;
  int64_t q_stride, weights_stride;
  int heads, dim, top_k, first;
  const std::byte* entries;
  const float* scales;  // for int8 caches, one per entry
  EntryPlaces places;
  const int32_t *query_start, *kv_len, *block_table;
  int block_table_stride, sequences;
  int32_t* selected;
  float* scores;  // [rows of the launch, score_stride]
  int64_t score_stride;
  int first_row, rows;  // of the launch
};

// A row of the batch and what it sees.
struct EntryRow {
  const int32_t* blocks;
  int start, end;  // rows of its sequence
  int count;       // entries that are complete at its position

  __device__ EntryRow(const SelectParams& p, int row) {
    const int sequence = last_of(0, p.sequences - 1, [&](int s) { return p.query_start[s] <= row; });
    blocks = p.block_table + int64_t{sequence} * p.block_table_stride;
    start = p.query_start[sequence], end = p.query_start[sequence + 1];
    count = (p.kv_len[sequence] - end + row + 1) / p.places.rate;
  }
  __device__ bool chooses(const SelectParams& p) const { return count - p.first > p.top_k; }
  __device__ int64_t element(const SelectParams& p, int entry) const { return p.places.element(blocks, entry); }
};

constexpr int kThreads = 256;

// Scores in fp32, for caches of any type. A block has one row and some tiles of entries; a thread has an entry of a
// tile and kThreadHeads of kHeads heads at a time.
constexpr int kTile = 64, kHeads = 64, kParts = kThreads / kTile, kThreadHeads = kHeads / kParts;

size_t exact_shared(int64_t dim) {
  return static_cast<size_t>(kHeads * dim + kTile * (dim + 1) + kHeads + kParts * kTile) * sizeof(float);
}

template <class T>
__global__ void __launch_bounds__(kThreads) score_exactly(const __grid_constant__ SelectParams p) {
  extern __shared__ __align__(16) float memory[];
  float* q = memory;                            // [dim][kHeads]
  float* keys = q + kHeads * p.dim;             // [kTile][dim + 1]
  float* weights = keys + kTile * (p.dim + 1);  // [kHeads]
  float* sums = weights + kHeads;               // [kParts][kTile]
  const int row = p.first_row + static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const EntryRow own(p, row);
  if (!own.chooses(p)) return;
  const int key = thread % kTile, part = thread / kTile;
  float* to = p.scores + int64_t{blockIdx.y} * p.score_stride;
  const auto* entries = reinterpret_cast<const T*>(p.entries);
  const int first_tile = static_cast<int>(blockIdx.x) * kTile, step = static_cast<int>(gridDim.x) * kTile;
  for (int tile = first_tile; tile < own.count; tile += step) {
    __syncthreads();
    for (int i = thread; i < kTile * p.dim; i += kThreads) {
      const int entry = tile + i / p.dim, column = i % p.dim;
      keys[i / p.dim * (p.dim + 1) + column] =
          entry < own.count ? to_f32(entries[own.element(p, entry) + column]) : 0.0f;
    }
    float sum = 0.0f;
    for (int first = 0; first < p.heads; first += kHeads) {
      const bool loads = tile == first_tile || p.heads > kHeads;  // else all heads are there already
      __syncthreads();
      for (int i = thread; loads && i < kHeads * p.dim; i += kThreads) {
        const int head = i / p.dim, column = i % p.dim;
        q[column * kHeads + head] =
            first + head < p.heads ? p.q[row * p.q_stride + int64_t{first + head} * p.dim + column] : 0.0f;
      }
      if (loads && thread < kHeads) {
        weights[thread] = first + thread < p.heads ? p.weights[row * p.weights_stride + first + thread] : 0.0f;
      }
      __syncthreads();
      float dots[kThreadHeads];
#pragma unroll
      for (float& dot : dots) dot = 0.0f;
      for (int column = 0; column < p.dim; ++column) {
        const float k = keys[key * (p.dim + 1) + column];
        const float* from = q + column * kHeads + part * kThreadHeads;
#pragma unroll
        for (int h = 0; h < kThreadHeads; h += 4) {
          const float4 four = load_four(from + h);
          dots[h] = fmaf(k, four.x, dots[h]), dots[h + 1] = fmaf(k, four.y, dots[h + 1]);
          dots[h + 2] = fmaf(k, four.z, dots[h + 2]), dots[h + 3] = fmaf(k, four.w, dots[h + 3]);
        }
      }
#pragma unroll
      for (int h = 0; h < kThreadHeads; ++h) sum = fmaf(weights[part * kThreadHeads + h], fmaxf(dots[h], 0.0f), sum);
    }
    sums[part * kTile + key] = sum;
    __syncthreads();
    if (part > 0 || tile + key >= own.count) continue;
    for (int other = 1; other < kParts; ++other) sum += sums[other * kTile + key];
    if constexpr (std::is_same_v<T, int8_t>) sum *= p.scales[own.element(p, tile + key) / p.dim];
    to[tile + key] = sum;
  }
}

// Scores on the tensor cores. A block has up to kRows rows of a sequence and kTiles tiles of kTileKeys entries. A warp
// has kWarpKeys entries of a tile, whose vectors it keeps in registers, and takes 16 heads at a time.
constexpr int kRows = 2, kTileKeys = 128, kTiles = 8, kWarpKeys = 16, kMostSteps = 8, kPitch = 8;
constexpr int kWarps = kThreads / kWarp;
static_assert(kWarps * kWarpKeys == kTileKeys && kThreads == 2 * kTileKeys);

constexpr int padded_heads(int heads) { return (heads + 15) / 16 * 16; }

size_t tensor_shared(int heads, int dim) {
  const auto vectors = static_cast<size_t>(kRows * padded_heads(heads) + 2 * kTileKeys);
  return vectors * (dim + kPitch) * 2 + kRows * padded_heads(heads) * sizeof(float);
}

template <class T>
__global__ void __launch_bounds__(kThreads) score_on_tensor_cores(const __grid_constant__ SelectParams p) {
  extern __shared__ __align__(16) std::byte shared[];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int row = p.first_row + static_cast<int>(blockIdx.y), pitch = p.dim + kPitch, heads = padded_heads(p.heads);
  const EntryRow own(p, row);
  // Rows of a sequence are taken kRows at a time. A launch may begin between such rows.
  const int behind = (row - own.start) % kRows;
  if (behind != 0 && row != p.first_row) return;
  const int rows = min(kRows - behind, min(own.end, p.first_row + p.rows) - row);
  const EntryRow last(p, row + rows - 1);
  const int begin = static_cast<int>(blockIdx.x) * kTiles * kTileKeys;
  const int end = min(begin + kTiles * kTileKeys, last.count);
  if (begin >= end || !last.chooses(p)) return;

  auto* q = reinterpret_cast<T*>(shared);                                  // [kRows][heads][pitch]
  T* keys = q + kRows * heads * pitch;                                     // [2][kTileKeys][pitch]
  auto* weights = reinterpret_cast<float*>(keys + 2 * kTileKeys * pitch);  // [kRows][heads]
  const auto* entries = reinterpret_cast<const T*>(p.entries);
  const auto copy_tile = [&](int tile, int stage) {
    const int entry = tile + thread / 2, packs = p.dim / 8;
    const bool valid = entry < last.count;
    const T* from = entries + (valid ? own.element(p, entry) : 0);
    const uint32_t to = shared_address(keys + (stage * kTileKeys + thread / 2) * pitch);
    for (int pack = thread % 2; pack < packs; pack += 2) copy_async(to + pack * 16, from + pack * 8, valid);
    commit_copies();
  };
  copy_tile(begin, 0);
  for (int i = thread; i < kRows * heads * p.dim; i += kThreads) {
    const int r = i / (heads * p.dim), head = i / p.dim % heads, column = i % p.dim;
    const bool valid = r < rows && head < p.heads;
    q[(r * heads + head) * pitch + column] =
        from_f32<T>(valid ? p.q[(row + r) * p.q_stride + int64_t{head} * p.dim + column] : 0.0f);
  }
  for (int i = thread; i < kRows * heads; i += kThreads) {
    const int r = i / heads, head = i % heads;
    weights[i] = r < rows && head < p.heads ? p.weights[(row + r) * p.weights_stride + head] : 0.0f;
  }
  int stage = 0;
  for (int tile = begin; tile < end; tile += kTileKeys, stage ^= 1) {
    if (tile + kTileKeys < end) {
      copy_tile(tile + kTileKeys, stage ^ 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    uint32_t a[kMostSteps][4];
    const int key_row = warp * kWarpKeys + lane % 16;
    const uint32_t from = shared_address(keys + (stage * kTileKeys + key_row) * pitch + lane / 16 * 8);
#pragma unroll
    for (int step = 0; step < kMostSteps; ++step) {
      if (step * 16 < p.dim) ldmatrix4(a[step], from + step * 32);
    }
    for (int r = 0; r < rows; ++r) {
      float low = 0.0f, high = 0.0f;  // of entries lane / 4 and lane / 4 + 8
      for (int head = 0; head < heads; head += 16) {
        const uint32_t at =
            shared_address(q + (r * heads + head + lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
        float c[2][4] = {};
#pragma unroll
        for (int step = 0; step < kMostSteps; ++step) {
          if (step * 16 >= p.dim) continue;
          uint32_t b[4];
          ldmatrix4(b, at + step * 32);
          mma<T>(c[0], a[step][0], a[step][1], a[step][2], a[step][3], b[0], b[1]);
          mma<T>(c[1], a[step][0], a[step][1], a[step][2], a[step][3], b[2], b[3]);
        }
        const float* w = weights + r * heads + head + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          low = fmaf(w[half * 8], fmaxf(c[half][0], 0.0f), low);
          low = fmaf(w[half * 8 + 1], fmaxf(c[half][1], 0.0f), low);
          high = fmaf(w[half * 8], fmaxf(c[half][2], 0.0f), high);
          high = fmaf(w[half * 8 + 1], fmaxf(c[half][3], 0.0f), high);
        }
      }
      for (int lanes = 1; lanes < 4; lanes *= 2) {
        low += __shfl_xor_sync(kFullWarp, low, lanes), high += __shfl_xor_sync(kFullWarp, high, lanes);
      }
      const int entry = tile + warp * kWarpKeys + lane / 4;
      float* to = p.scores + (row + r - p.first_row) * p.score_stride;
      if (lane % 4 == 0 && entry < last.count) to[entry] = low;
      if (lane % 4 == 0 && entry + 8 < last.count) to[entry + 8] = high;
    }
    __syncthreads();
  }
}

// Maps scores to integers of the same order. NaN is the lowest score, and both zeros are equal.
__device__ inline uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(score == score ? score + 0.0f : -INFINITY);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / kWarp, kDigits = 256;

// The sum over the lanes before this one.
__device__ inline int sum_before(int x) { return sum_upto(x) - x; }

// One block per row.
__global__ void __launch_bounds__(kSelectThreads) select_rows(const __grid_constant__ SelectParams p) {
  __shared__ int counts[kDigits * kWarp];  // a counter for each lane, so that lanes do not wait for each other
  __shared__ int totals[kDigits], above[kSelectWarps], equal[kSelectWarps], found[2];
  const int row = p.first_row + static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp, lane = thread % kWarp;
  const EntryRow own(p, row);
  int32_t* to = p.selected + int64_t{row} * p.top_k;
  if (!own.chooses(p)) {
    for (int i = thread; i < p.top_k; i += kSelectThreads) to[i] = p.first + i < own.count ? p.first + i : -1;
    return;
  }
  const float* scores = p.scores + int64_t{blockIdx.x} * p.score_stride;
  uint32_t threshold = 0;  // the lowest score that is selected, digit by digit
  int left = p.top_k;      // how many are selected among those that begin with the digits so far
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = thread; i < kDigits * kWarp; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    constexpr int kAtOnce = 4;
    for (int i = p.first + thread; i < own.count; i += kAtOnce * kSelectThreads) {
      float score[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * kSelectThreads < own.count) score[j] = __ldcg(scores + i + j * kSelectThreads);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * kSelectThreads >= own.count) continue;
        const uint32_t bits = order_of(score[j]);
        if ((bits & known) == threshold) atomicAdd(counts + (bits >> shift & 255) * kWarp + lane, 1);
      }
    }
    __syncthreads();
    if (thread < kDigits) {
      int total = 0;
      for (int i = 0; i < kWarp; ++i) total += counts[thread * kWarp + (i + lane) % kWarp];
      totals[thread] = total;
    }
    __syncthreads();
    if (warp == 0) {  // a lane has eight digits, the first lane the highest
      int sum = 0;
      for (int i = 0; i < 8; ++i) sum += totals[kDigits - 1 - lane * 8 - i];
      int higher = sum_before(sum);
      if (higher < left && higher + sum >= left) {
        int digit = kDigits - 1 - lane * 8;
        for (; higher + totals[digit] < left; --digit) higher += totals[digit];
        found[0] = digit, found[1] = left - higher;
      }
    }
    __syncthreads();
    threshold |= static_cast<uint32_t>(found[0]) << shift, left = found[1];
  }
  // Each warp writes what it selects of a part of the entries, behind what the warps before it select.
  const int part = (own.count - p.first + kSelectThreads - 1) / kSelectThreads * kWarp;
  const int begin = p.first + warp * part, end = min(begin + part, own.count);
  int higher = 0, ties = 0;
  for (int i = begin + lane; i - lane < end; i += kWarp) {
    const uint32_t bits = i < end ? order_of(__ldcg(scores + i)) : 0;
    higher += __popc(__ballot_sync(kFullWarp, i < end && bits > threshold));
    ties += __popc(__ballot_sync(kFullWarp, i < end && bits == threshold));
  }
  if (lane == 0) above[warp] = higher, equal[warp] = ties;
  __syncthreads();
  if (warp == 0) {
    const int before_above = sum_before(above[lane]), before_equal = sum_before(equal[lane]);
    above[lane] = before_above, equal[lane] = before_equal;
  }
  __syncthreads();
  int ties_before = equal[warp], at = above[warp] + min(ties_before, left);
  for (int i = begin + lane; i - lane < end; i += kWarp) {
    const uint32_t bits = i < end ? order_of(__ldcg(scores + i)) : 0;
    const unsigned tied = __ballot_sync(kFullWarp, i < end && bits == threshold), lower = (1u << lane) - 1;
    const bool chosen =
        i < end && (bits > threshold || (bits == threshold && ties_before + __popc(tied & lower) < left));
    const unsigned all = __ballot_sync(kFullWarp, chosen);
    if (chosen) to[at + __popc(all & lower)] = i;
    at += __popc(all), ties_before += __popc(tied);
  }
}

SelectParams params_of(const Launch& l, const ops::SelectEntriesArgs& a) {
  const ops::EntryCache& e = a.entries;
  return {.q = a.q.f32(),
          .weights = a.weights.f32(),
          .q_stride = a.q.row_stride,
          .weights_stride = a.weights.row_stride,
          .heads = static_cast<int>(a.weights.shape[1]),
          .dim = static_cast<int>(e.dim),
          .top_k = static_cast<int>(a.selected.shape[1]),
          .first = a.first,
          .entries = e.cache.data,
          .scales = e.cache.scales,
          .places = EntryPlaces(e),
          .query_start = on_device(l, a.sequences.query_start),
          .kv_len = on_device(l, a.sequences.kv_len),
          .block_table = on_device(l, a.sequences.block_table),
          .block_table_stride = a.sequences.block_table_stride,
          .sequences = static_cast<int>(a.sequences.kv_len.size()),
          .selected = a.selected.as<int32_t>(),
          .scores = reinterpret_cast<float*>(l.workspace),
          .score_stride = 0,
          .first_row = 0,
          .rows = 0};
}

template <class T>
void score_in_fp32(const Launch& l, const SelectParams& p, int64_t most) {
  const size_t shared = exact_shared(p.dim);
  CHECK(shared <= static_cast<size_t>(shared_of_block(l)), "entries of {} elements need {} bytes of shared memory",
        p.dim, shared);
  static SharedMemoryLimit limit;
  limit.raise(l.device, score_exactly<T>, static_cast<size_t>(shared_of_block(l)));
  const int64_t blocks = std::min(pieces(most, kTile), std::max<int64_t>(1, pieces(int64_t{l.sm_count} * 8, p.rows)));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.rows));
  score_exactly<T><<<grid, kThreads, shared, l.stream>>>(p);
}

template <class T>
bool score_by_tensor_cores(const Launch& l, const SelectParams& p, int64_t most) {
  const size_t shared = tensor_shared(p.heads, p.dim);
  const bool packs = p.dim % 16 == 0 && p.places.aligned(8) && reinterpret_cast<uintptr_t>(p.entries) % 16 == 0;
  if (!packs || p.dim > kMostSteps * 16 || shared > static_cast<size_t>(shared_of_block(l))) return false;
  static SharedMemoryLimit limit;
  limit.raise(l.device, score_on_tensor_cores<T>, static_cast<size_t>(shared_of_block(l)));
  const dim3 grid(static_cast<unsigned>(pieces(most, kTiles * kTileKeys)), static_cast<unsigned>(p.rows));
  score_on_tensor_cores<T><<<grid, kThreads, shared, l.stream>>>(p);
  return true;
}

void score(const Launch& l, const SelectParams& p, DType type, int64_t most, Arithmetic arithmetic) {
  const bool tensor = arithmetic == Arithmetic::kTensor;
  if (tensor && type == &kBFloat16 && score_by_tensor_cores<__nv_bfloat16>(l, p, most)) return;
  if (tensor && type == &kFloat16 && score_by_tensor_cores<__half>(l, p, most)) return;
  if (type == &kFloat32) return score_in_fp32<float>(l, p, most);
  if (type == &kBFloat16) return score_in_fp32<__nv_bfloat16>(l, p, most);
  if (type == &kFloat16) return score_in_fp32<__half>(l, p, most);
  if (type == &kInt8) return score_in_fp32<int8_t>(l, p, most);
  if (type == &kFloat8E5M2) return score_in_fp32<__nv_fp8_e5m2>(l, p, most);
  CHECK(type == &kFloat8E4M3, "entries of {} are not supported", type->name);
  score_in_fp32<__nv_fp8_e4m3>(l, p, most);
}

}  // namespace

void select_entries(const Launch& l, const ops::SelectEntriesArgs& args, Arithmetic arithmetic) {
  constexpr int64_t kMostRows = 1 << 15;  // of a launch
  const int64_t tokens = args.weights.shape[0], most = ops::most_entries(args);
  SelectParams p = params_of(l, args);
  const bool chooses = most - p.first > p.top_k;
  p.score_stride = pieces(std::max<int64_t>(most, 1), 4) * 4;
  int64_t rows = std::min(kMostRows, static_cast<int64_t>(l.workspace_bytes) / (p.score_stride * 4));
  CHECK(rows > 0, "a workspace of {} bytes for {} scores", l.workspace_bytes, most);
  if (rows > kRows) rows = rows / kRows * kRows;
  for (int64_t first = 0; first < tokens; first += rows) {
    p.first_row = static_cast<int>(first), p.rows = static_cast<int>(std::min(rows, tokens - first));
    if (chooses) score(l, p, args.entries.cache.dtype, most, arithmetic);
    select_rows<<<static_cast<unsigned>(p.rows), kSelectThreads, 0, l.stream>>>(p);
  }
  check_launch("select_entries");
}

}  // namespace sluice::cuda
