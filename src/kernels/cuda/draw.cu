// Drawing tokens: a block per row. One pass over the row finds the largest logit and the draw; rows that ask for
// candidates get two more, a histogram of bins below the maximum and the listing of those down to the last bin. A row
// of 128 k logits stays in the L2 cache between its passes.
#include <cfloat>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

using ops::DrawCandidate;
using ops::DrawnRow;
using ops::DrawRow;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// The larger value, of equal ones the lower id.
struct Best {
  float value;
  int id;
  __device__ void take(float v, int i) {
    if (v > value || (v == value && i < id)) value = v, id = i;
  }
};

__device__ Best best_of_warp(Best b) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    b.take(__shfl_xor_sync(~0u, b.value, lane), __shfl_xor_sync(~0u, b.id, lane));
  }
  return b;
}

__device__ float sum_of_warp(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// f(logit, id) for every one of the thread's share of the row, four of a block of ids together.
template <class F>
__device__ void each_logit(const float* logits, int vocab, F f) {
  const bool packed = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  for (int block = threadIdx.x; block < (vocab + 3) / 4; block += kThreads) {
    float four[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (packed && block * 4 + 4 <= vocab) {
      *reinterpret_cast<float4*>(four) = *reinterpret_cast<const float4*>(logits + block * 4);
    } else {
      for (int i = 0; i < 4 && block * 4 + i < vocab; ++i) four[i] = logits[block * 4 + i];
    }
    f(block, four);
  }
}

__device__ int bin_of(float max, float logit) {
  return static_cast<int>(fminf((max - logit) * ops::kDrawBinsPerLogit, static_cast<float>(ops::kDrawBins - 1)));
}

struct Shared {
  Best max[kWarps], drawn[kWarps];
  float bins[ops::kDrawBins];
  float sums[kWarps];
  int bad, last_bin, listed;
};

// The last bin of the candidates: bins' counts or weights add up to enough there.
__device__ void find_last_bin(Shared& s, const DrawRow& row, float max, float total) {
  constexpr int kMine = ops::kDrawBins / kThreads;
  static_assert(ops::kDrawBins % kThreads == 0);
  const float enough = row.count > 0 ? static_cast<float>(row.count) : row.mass * total;
  float mine = 0;
  for (int i = 0; i < kMine; ++i) mine += s.bins[threadIdx.x * kMine + i];
  float before = mine;  // an inclusive prefix sum, then without its own part
#pragma unroll
  for (int lane = 1; lane < 32; lane *= 2) {
    const float other = __shfl_up_sync(~0u, before, lane);
    if (threadIdx.x % 32 >= lane) before += other;
  }
  if (threadIdx.x % 32 == 31) s.sums[threadIdx.x / 32] = before;
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(threadIdx.x) / 32; ++warp) before += s.sums[warp];
  before -= mine;
  for (int i = 0; i < kMine; ++i) {
    const float here = s.bins[threadIdx.x * kMine + i];
    // Several may be the first beyond by rounding: the smallest counts.
    if (before < enough && before + here >= enough) atomicMin(&s.last_bin, static_cast<int>(threadIdx.x) * kMine + i);
    before += here;
  }
  __syncthreads();
}

__device__ void list_candidates(Shared& s, const DrawRow& row, const float* logits, int vocab, float max,
                                DrawnRow& drawn, DrawCandidate* candidates) {
  for (int i = threadIdx.x; i < ops::kDrawBins; i += kThreads) s.bins[i] = 0;
  if (threadIdx.x == 0) s.listed = 0, s.last_bin = ops::kDrawBins - 1;
  __syncthreads();
  float total = 0;
  each_logit(logits, vocab, [&](int, const float(&four)[4]) {
    for (const float logit : four) {
      if (logit == -INFINITY) continue;
      const float weight = expf(row.scale * (logit - max));
      total += weight;
      atomicAdd(&s.bins[bin_of(max, logit)], row.count > 0 ? 1.0f : weight);
    }
  });
  total = sum_of_warp(total);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (const float sum : s.sums) total += sum;
  __syncthreads();
  if (row.below > 0) {
    if (threadIdx.x == 0) s.last_bin = bin_of(max, max - row.below);
    __syncthreads();
  } else {
    find_last_bin(s, row, max, total);
  }
  const int last = s.last_bin;
  each_logit(logits, vocab, [&](int block, const float(&four)[4]) {
    for (int i = 0; i < 4; ++i) {
      if (four[i] == -INFINITY || bin_of(max, four[i]) > last) continue;
      const int at = atomicAdd(&s.listed, 1);
      if (at < ops::kMostCandidates) candidates[at] = {block * 4 + i, four[i]};
    }
  });
  __syncthreads();
  drawn.total = total;
  drawn.listed = s.listed <= ops::kMostCandidates ? 1 : 0;
  drawn.candidates = drawn.listed != 0 ? s.listed : 0;
}

__global__ void __launch_bounds__(kThreads) draw_rows(const float* all, int64_t stride, int vocab, const DrawRow* rows,
                                                      DrawnRow* out, DrawCandidate* candidates) {
  __shared__ Shared s;
  const DrawRow row = rows[blockIdx.x];
  const float* logits = all + row.row * stride;
  if (threadIdx.x == 0) s.bad = 0;
  __syncthreads();
  Best max{-INFINITY, INT32_MAX}, best{-INFINITY, INT32_MAX};
  bool bad = false;
  each_logit(logits, vocab, [&](int block, const float(&four)[4]) {
    const bool drawing = row.scale > 0;
    const std::array<uint32_t, 4> bits =
        drawing ? ops::draw_bits(row, static_cast<uint32_t>(block)) : std::array<uint32_t, 4>{};
    for (int i = 0; i < 4; ++i) {
      const float logit = four[i];
      bad |= isnan(logit) || logit == INFINITY;
      max.take(logit, block * 4 + i);
      if (drawing && logit != -INFINITY) {
        best.take(row.scale * logit - logf(-logf(ops::open_uniform(bits[i]))), block * 4 + i);
      }
    }
  });
  max = best_of_warp(max), best = best_of_warp(best);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) s.max[warp] = max, s.drawn[warp] = best;
  if (bad) s.bad = 1;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    max.take(s.max[w].value, s.max[w].id);
    best.take(s.drawn[w].value, s.drawn[w].id);
  }
  DrawnRow drawn{.max = max.value};
  const bool usable = s.bad == 0 && max.value != -INFINITY;
  if (usable) {
    drawn.token = row.scale > 0 ? best.id : max.id;
    if (row.count > 0 || row.mass > 0 || row.below > 0) {
      list_candidates(s, row, logits, vocab, max.value, drawn, candidates + int64_t{blockIdx.x} * ops::kMostCandidates);
    }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = drawn;
}

__global__ void take_drawn_rows(int32_t* tokens, const DrawnRow* drawn, const int32_t* from, int rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows && from[row] >= 0) tokens[row] = max(drawn[from[row]].token, 0);
}

}  // namespace

void draw(const Launch& l, const ops::DrawArgs& args) {
  const auto draws = static_cast<unsigned>(args.rows.bytes() / sizeof(DrawRow));
  draw_rows<<<draws, kThreads, 0, l.stream>>>(args.logits.f32(), args.logits.row_stride,
                                              static_cast<int>(args.logits.shape[1]), args.rows.as<const DrawRow>(),
                                              args.drawn.as<DrawnRow>(), args.candidates.as<DrawCandidate>());
  check_launch("draw");
}

void take_drawn(const Launch& l, const ops::TakeDrawnArgs& args, const int32_t* from) {
  const auto rows = static_cast<unsigned>(args.from.size());
  take_drawn_rows<<<(rows + 255) / 256, 256, 0, l.stream>>>(args.tokens.as<int32_t>(), args.drawn.as<const DrawnRow>(),
                                                            from, static_cast<int>(rows));
  check_launch("take_drawn");
}

}  // namespace sluice::cuda
