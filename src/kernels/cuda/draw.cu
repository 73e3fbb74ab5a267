// Drawing tokens: a block per row. One pass over the row finds the largest logit and the draw; rows that ask for
// candidates get two more, a histogram of bins below the maximum and the listing of those down to the last bin. A row
// whose log-probabilities are asked for gets three of these before its edits, and one after them that counts the logits
// above its token's. A row of 128 k logits stays in the L2 cache between its passes.
// 256 rows of 151936 logits on an H200: 64 us for the largest, 92 with a thousand edits a row, 156 for a draw, 340 with
// twenty log-probabilities, 364 with a nucleus.
#include <cfloat>

#include "kernels/cuda/launch.h"
#include "ops/draw.h"

namespace sluice::cuda {
namespace {

using ops::DrawCandidate;
using ops::DrawEdit;
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

// f(block, logits) for every block of four ids of the thread's share of the row.
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

// A row as it is drawn from: tokens that the mask forbids, if there is one, are at -infinity.
struct Row {
  const float* logits;
  const uint32_t* mask;
  int vocab;

  __device__ bool allows(int id) const { return mask == nullptr || (mask[id / 32] >> (id % 32) & 1) != 0; }
  __device__ void hide(int block, float (&four)[4]) const {
    if (mask == nullptr) return;
    const uint32_t allowed = mask[block / 8] >> (block % 8 * 4);
    for (int i = 0; i < 4; ++i) {
      if ((allowed >> i & 1) == 0) four[i] = -INFINITY;
    }
  }
};

// What is asked of a row's tokens, see ops::DrawRow.
struct Wanted {
  float scale;
  int count;
  float mass, below;
};

__device__ int bin_of(float max, float logit) {
  return static_cast<int>(fminf((max - logit) * ops::kDrawBinsPerLogit, static_cast<float>(ops::kDrawBins - 1)));
}

struct Shared {
  Best max[kWarps], drawn[kWarps];
  float bins[ops::kDrawBins];
  float sums[kWarps];
  int bad, alive, spoiled;  // raw logits that are no numbers, or any at all; edited ones that are no numbers
  int last_bin, listed, before;
};

// The last bin of the candidates: bins' counts or weights add up to enough there.
__device__ void find_last_bin(Shared& s, const Wanted& wanted, float total) {
  constexpr int kMine = ops::kDrawBins / kThreads;
  static_assert(ops::kDrawBins % kThreads == 0);
  const float enough = wanted.count > 0 ? static_cast<float>(wanted.count) : wanted.mass * total;
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

// Lists the tokens that are wanted, where there is a list; s.listed says how many there are. Returns the row's weight.
__device__ float list(Shared& s, const Wanted& wanted, const Row& row, float max, DrawCandidate* to) {
  for (int i = threadIdx.x; i < ops::kDrawBins; i += kThreads) s.bins[i] = 0;
  if (threadIdx.x == 0) s.listed = 0, s.last_bin = ops::kDrawBins - 1;
  __syncthreads();
  float total = 0;
  each_logit(row.logits, row.vocab, [&](int block, float(&four)[4]) {
    row.hide(block, four);
    for (const float logit : four) {
      if (logit == -INFINITY) continue;
      const float weight = expf(wanted.scale * (logit - max));
      total += weight;
      atomicAdd(&s.bins[bin_of(max, logit)], wanted.count > 0 ? 1.0f : weight);
    }
  });
  total = sum_of_warp(total);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (const float sum : s.sums) total += sum;
  __syncthreads();
  if (wanted.below > 0) {
    if (threadIdx.x == 0) s.last_bin = bin_of(max, max - wanted.below);
    __syncthreads();
  } else {
    find_last_bin(s, wanted, total);
  }
  const int last = s.last_bin;
  each_logit(row.logits, row.vocab, [&](int block, float(&four)[4]) {
    row.hide(block, four);
    for (int i = 0; i < 4; ++i) {
      if (four[i] == -INFINITY || bin_of(max, four[i]) > last) continue;
      const int at = atomicAdd(&s.listed, 1);
      if (to != nullptr && at < ops::kMostCandidates) to[at] = {block * 4 + i, four[i]};
    }
  });
  __syncthreads();
  return total;
}

struct Chosen {
  Best max, drawn;
};

// The largest logit, and the draw where the row's scale asks for one. Notes what raw logits are like.
__device__ Chosen choose(Shared& s, const DrawRow& asked, const Row& row, bool drawing) {
  Best max{-INFINITY, INT32_MAX}, best{-INFINITY, INT32_MAX};
  bool bad = false, alive = false;
  each_logit(row.logits, row.vocab, [&](int block, float(&four)[4]) {
    for (const float logit : four) {
      bad |= !(logit < INFINITY);
      alive |= logit > -INFINITY;
    }
    row.hide(block, four);
    const std::array<uint32_t, 4> bits =
        drawing ? ops::draw_bits(asked, static_cast<uint32_t>(block)) : std::array<uint32_t, 4>{};
    for (int i = 0; i < 4; ++i) {
      const float logit = four[i];
      max.take(logit, block * 4 + i);
      if (drawing && logit != -INFINITY) {
        best.take(asked.scale * logit - logf(-logf(ops::open_uniform(bits[i]))), block * 4 + i);
      }
    }
  });
  max = best_of_warp(max), best = best_of_warp(best);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) s.max[warp] = max, s.drawn[warp] = best;
  if (bad) s.bad = 1;
  if (alive) s.alive = 1;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    max.take(s.max[w].value, s.max[w].id);
    best.take(s.drawn[w].value, s.drawn[w].id);
  }
  __syncthreads();
  return {max, best};
}

// ops::DrawEdit's formula, each operation rounded by itself as on the host.
__device__ float edited(const DrawRow& row, const DrawEdit& edit, float logit) {
  logit = __fadd_rn(logit, edit.bias);
  if (edit.output < 0) return logit;
  logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
  if (edit.output == 0) return logit;
  return __fsub_rn(logit, __fadd_rn(__fmul_rn(row.frequency, static_cast<float>(edit.output)), row.presence));
}

__device__ void apply_edits(Shared& s, const DrawRow& asked, const Row& row, float* logits, DrawEdit* edits) {
  for (int i = threadIdx.x; i < asked.edits; i += kThreads) {
    DrawEdit& edit = edits[i];
    const float raw = logits[edit.id];
    edit.raw = raw;
    if (!(raw < INFINITY)) s.bad = 1;
    if (raw > -INFINITY) s.alive = 1;
    float logit = edited(asked, edit, raw);
    if (!(logit < INFINITY)) {
      if (row.allows(edit.id)) s.spoiled = 1;
      logit = -INFINITY;
    }
    logits[edit.id] = logit;
  }
  __syncthreads();
}

struct Pointers {
  float* logits;
  int64_t stride;
  int vocab;
  const DrawRow* rows;
  DrawEdit* edits;
  const uint32_t* masks;
  DrawnRow* drawn;
  DrawCandidate *candidates, *top;
};

// The raw row's part of what log-probabilities need.
__device__ void report_row(Shared& s, const DrawRow& asked, const Row& raw, DrawnRow& drawn, DrawCandidate* top) {
  drawn.raw_max = choose(s, asked, raw, false).max.value;
  if (s.bad != 0 || s.alive == 0) return;
  const Wanted largest{.scale = 1.0f, .count = max(asked.report, 1), .mass = 0, .below = 0};
  drawn.raw_total = list(s, largest, raw, drawn.raw_max, asked.report > 0 ? top : nullptr);
  drawn.top = asked.report == 0 ? 0 : s.listed <= ops::kMostCandidates ? s.listed : -1;
}

// And the token's.
__device__ void report_token(Shared& s, const Row& raw, DrawnRow& drawn) {
  if (threadIdx.x == 0) s.before = 0;
  __syncthreads();
  const float own = raw.logits[drawn.token];
  int before = 0;
  each_logit(raw.logits, raw.vocab, [&](int block, const float(&four)[4]) {
    for (int i = 0; i < 4; ++i) before += four[i] > own || (four[i] == own && block * 4 + i < drawn.token) ? 1 : 0;
  });
  before = __reduce_add_sync(~0u, before);
  if (threadIdx.x % 32 == 0) atomicAdd(&s.before, before);
  __syncthreads();
  drawn.token_logit = own;
  drawn.before = s.before;
}

__global__ void __launch_bounds__(kThreads) draw_rows(Pointers p) {
  __shared__ Shared s;
  const DrawRow asked = p.rows[blockIdx.x];
  float* logits = p.logits + asked.row * p.stride;
  const int64_t words = (int64_t{p.vocab} + 31) / 32, lists = int64_t{blockIdx.x} * ops::kMostCandidates;
  const Row raw{logits, nullptr, p.vocab},
      row{logits, asked.mask < 0 ? nullptr : p.masks + asked.mask * words, p.vocab};
  DrawEdit* edits = p.edits + asked.first_edit;
  if (threadIdx.x == 0) s.bad = s.alive = s.spoiled = 0;
  __syncthreads();
  DrawnRow drawn;
  if (asked.report >= 0) report_row(s, asked, raw, drawn, p.top + lists);
  if (asked.target >= 0) {
    if (s.bad == 0 && s.alive != 0) drawn.token = asked.target;
  } else {
    apply_edits(s, asked, row, logits, edits);
    const Chosen chosen = choose(s, asked, row, asked.scale > 0);
    drawn.max = chosen.max.value;
    if (s.bad == 0 && s.alive != 0) {
      const bool none = s.spoiled != 0 || drawn.max == -INFINITY;
      drawn.token = none ? DrawnRow::kNoneLeft : asked.scale > 0 ? chosen.drawn.id : chosen.max.id;
      if (!none && (asked.count > 0 || asked.mass > 0 || asked.below > 0)) {
        const Wanted wanted{.scale = asked.scale, .count = asked.count, .mass = asked.mass, .below = asked.below};
        drawn.total = list(s, wanted, row, drawn.max, p.candidates + lists);
        drawn.listed = s.listed <= ops::kMostCandidates ? 1 : 0;
        drawn.candidates = drawn.listed != 0 ? s.listed : 0;
      }
    }
    for (int i = threadIdx.x; i < asked.edits; i += kThreads) logits[edits[i].id] = edits[i].raw;
    __syncthreads();
  }
  if (asked.report >= 0 && drawn.token >= 0) report_token(s, raw, drawn);
  if (threadIdx.x == 0) p.drawn[blockIdx.x] = drawn;
}

__global__ void take_drawn_rows(int32_t* tokens, const DrawnRow* drawn, const int32_t* from, int rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows && from[row] >= 0) tokens[row] = max(drawn[from[row]].token, 0);
}

}  // namespace

void draw(const Launch& l, const ops::DrawArgs& args) {
  const auto draws = static_cast<unsigned>(args.rows.bytes() / sizeof(DrawRow));
  const Pointers pointers{.logits = args.logits.f32(),
                          .stride = args.logits.row_stride,
                          .vocab = static_cast<int>(args.logits.shape[1]),
                          .rows = args.rows.as<const DrawRow>(),
                          .edits = args.edits.as<DrawEdit>(),
                          .masks = args.masks.as<const uint32_t>(),
                          .drawn = args.drawn.as<DrawnRow>(),
                          .candidates = args.candidates.as<DrawCandidate>(),
                          .top = args.top.as<DrawCandidate>()};
  draw_rows<<<draws, kThreads, 0, l.stream>>>(pointers);
  check_launch("draw");
}

void take_drawn(const Launch& l, const ops::TakeDrawnArgs& args, const int32_t* from) {
  const auto rows = static_cast<unsigned>(args.from.size());
  take_drawn_rows<<<(rows + 255) / 256, 256, 0, l.stream>>>(args.tokens.as<int32_t>(), args.drawn.as<const DrawnRow>(),
                                                            from, static_cast<int>(rows));
  check_launch("take_drawn");
}

}  // namespace sluice::cuda
