// Samples tokens. Rows that are not cut, and all that teams leave: one block of 1024 threads per row. For few
// such rows, several blocks make the first pass, each over a part of the row, and the last one to finish goes on. Bound
// by the rate of one SM, which takes 21 us for 128 k logits.
//
// The first pass finds the largest logit and, if no token is filtered out, samples. Top-k and top-p take two more
// passes: a histogram of bins below the maximum, and a list of the tokens down to the bin where the kept ones end. The
// listed tokens are ranked in shared memory. If there is no room for them, the last kept token is found in histograms
// of ever fewer bits of the tokens' order, and a pass of its own samples the row. Min-p alone
// also takes such a pass. Top-n-sigma takes a pass before the others, for the standard deviation.
// For log-probabilities a row takes three passes before its edits, and one after them that counts the logits above the
// sampled token's.
//
// Rows that are cut go to teams first (sample_team.cu).
#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/cuda/device/sample_chain.cuh"
#include "kernels/cuda/sample_rows.h"

namespace sluice::cuda {
namespace {

using ops::LogitEdit;
using ops::SampledRow;
using ops::TopLogit;

// Rows are split only up to kMostBlocks blocks, into at most kMostParts parts of at least four logits per thread.
constexpr int64_t kMostBlocks = 128, kMostParts = 16, kLeastOfPart = int64_t{4} * kThreads;
static_assert(kMostParts <= 32);

// Lists at least `count` of the largest raw logits, in whole bins. s.listed is the number of them. Returns the sum of
// exp(logit - max).
__device__ float list_top(Shared& s, int count, const Row& row, float max, TopLogit* to) {
  clear_bins(s);
  float total = 0;
  each_logit(row.logits, row.vocab, [&](int, const float(&four)[4]) {
    for (const float logit : four) {
      if (logit == -INFINITY) continue;
      total += expf(logit - max);
      if (count > 0) atomicAdd(&s.bins[ops::logit_bin(max, logit)], Sum{1});
    }
  });
  total = sum_of_warp(total);
  if (threadIdx.x % 32 == 0) s.raw_sums[threadIdx.x / 32] = total;
  __syncthreads();
  total = 0;
  for (const float sum : s.raw_sums) total += sum;
  if (count == 0) return total;
  find_last_bin(s, 0, [&](Sum all) { return min(static_cast<Sum>(count), all); });
  const int last = s.last_bin;
  each_logit(row.logits, row.vocab, [&](int block, const float(&four)[4]) {
    for (int i = 0; i < 4; ++i) {
      if (four[i] == -INFINITY || ops::logit_bin(max, four[i]) > last) continue;
      const int at = atomicAdd(&s.listed, 1);
      if (at < ops::kMostTop) to[at] = {block * 4 + i, four[i]};
    }
  });
  __syncthreads();
  return total;
}

__device__ float noisy(const SampleRow& request, float logit, uint32_t bits) {
  return ops::sample_score(request.scale, logit, bits);
}
// At least the noise of these bits. The noise is -ln(-ln u), which is at most -ln(1 - u).
__device__ float most_noise(uint32_t bits) {
  const float rest = __uint_as_float(~bits >> 9 | 0x4b000000u) - 0x1.fffffep22f;  // (1 - u) * 2^23
  constexpr float kLn2 = 0.693147181f, kMargin = 1e-3f;
  return fmaf(-kLn2, __log2f(rest), 23.0f * kLn2 + kMargin);
}

struct Chosen {
  Best max, sampled;
};

// Finds the largest logit of the row or the part and, if `sampling`, the sampled token. Noise is computed only for
// tokens that may beat the best score that a thread of the block has found. Records whether raw logits are bad or
// alive.
__device__ Chosen choose(Shared& s, const SampleRow& request, const Row& row, bool sampling, RowPart part = {}) {
  Best max{-INFINITY, INT32_MAX}, best{-INFINITY, INT32_MAX};
  bool bad = false, alive = false;
  each_logit(
      row.logits, row.vocab,
      [&](int block, float(&four)[4]) {
        for (const float logit : four) {
          bad |= !(logit < INFINITY);
          alive |= logit > -INFINITY;
        }
        row.hide(block, four);
        const std::array<uint32_t, 4> bits =
            sampling ? ops::sample_bits(request, static_cast<uint32_t>(block)) : std::array<uint32_t, 4>{};
        for (int i = 0; i < 4; ++i) {  // ids ascend
          if (four[i] > max.value) max = {four[i], block * 4 + i};
        }
        if (!sampling) return;
        const float beaten = from_ordered(*static_cast<volatile int*>(&s.best_score));
        for (int i = 0; i < 4; ++i) {
          if (four[i] == -INFINITY || fmaf(request.scale, four[i], most_noise(bits[i])) < beaten) continue;
          best.take(noisy(request, four[i], bits[i]), block * 4 + i);
        }
        if (best.value > beaten) atomicMax(&s.best_score, ordered(best.value));
      },
      part);
  if (bad) s.bad = 1;
  if (alive) s.alive = 1;
  max = best_of_block(s.max, max);
  return {max, sampling ? best_of_block(s.sampled, best) : max};
}

struct alignas(8) PartOfRow {
  Chosen chosen;
  int bad, alive;
};

// Merges the parts of a row. Called by every block that has a part; returns true in the last one, whose result is then
// that of the whole row. `arrivals` is zero before and after.
__device__ bool merge_parts(Shared& s, Chosen& chosen, RowPart part, PartOfRow* parts, int32_t* arrivals) {
  if (threadIdx.x == 0) {
    parts[part.index] = {chosen, s.bad, s.alive};
    int before = 0;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
    s.before = before;
    if (before + 1 == part.count) *arrivals = 0;
  }
  __syncthreads();
  if (s.before + 1 != part.count) return false;
  PartOfRow own{{{-INFINITY, INT32_MAX}, {-INFINITY, INT32_MAX}}, 0, 0};  // one part per lane, the same in every warp
  if (const int lane = static_cast<int>(threadIdx.x) % 32; lane < part.count) {
    constexpr int kWords = sizeof(PartOfRow) / sizeof(uint2);
    const auto* from = reinterpret_cast<const uint2*>(parts + lane);
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<uint2*>(&own)[i] = __ldcg(from + i);
  }
  chosen = {best_of_warp(own.chosen.max), best_of_warp(own.chosen.sampled)};
  const int bad = __any_sync(~0u, own.bad), alive = __any_sync(~0u, own.alive);
  __syncthreads();
  if (threadIdx.x == 0) s.bad = bad, s.alive = alive;
  __syncthreads();
  return true;
}

__device__ void apply_edits(Shared& s, const SampleRow& request, const Row& row, float* logits, LogitEdit* edits) {
  for (int i = threadIdx.x; i < request.edits; i += kThreads) {
    LogitEdit& edit = edits[i];
    const float raw = logits[edit.id];
    edit.raw = raw;
    if (!(raw < INFINITY)) s.bad = 1;
    if (raw > -INFINITY) s.alive = 1;
    float logit = edited(request, edit, raw);
    if (!(logit < INFINITY)) {
      if (row.allows(edit.id)) s.spoiled = 1;
      logit = -INFINITY;
    }
    logits[edit.id] = logit;
  }
  __syncthreads();
}

// Which tokens of a row are kept for sampling; see ops::SampleRow.
struct Kept {
  const SampleRow& request;
  const Row& row;
  float max;
  float least_logit = -INFINITY;  // what top-n-sigma keeps

  __device__ float weight(float logit) const { return ops::sample_weight(request.scale * (logit - max)); }
  __device__ Sum units(float logit) const { return __float2ull_rn(weight(logit) * ops::kSampleWeightUnits); }
  __device__ Sum enough(Sum total) const { return static_cast<Sum>(ceil(request.mass * static_cast<double>(total))); }

  // Calls f(logit, id) for the tokens of the thread's share.
  template <class F>
  __device__ void each(F&& f) const {
    each_logit(row.logits, row.vocab, [&](int block, float(&four)[4]) {
      row.hide(block, four);
      for (int i = 0; i < 4; ++i) {
        if (four[i] != -INFINITY && four[i] >= least_logit) f(four[i], block * 4 + i);
      }
    });
  }
};

// Returns the least logit that top-n-sigma keeps.
__device__ float sigma_cutoff(Shared& s, const Kept& all) {
  __syncthreads();
  if (threadIdx.x < 3) s.sums[threadIdx.x] = 0;
  __syncthreads();
  Sum tokens = 0, sum = 0, squares = 0;
  all.each([&](float logit, int) {
    const int64_t units = ops::logit_units(logit);
    ++tokens, sum += static_cast<Sum>(units), squares += static_cast<Sum>(units * units);
  });
  tokens = sum_of_warp(tokens), sum = sum_of_warp(sum), squares = sum_of_warp(squares);
  if (threadIdx.x % 32 == 0) atomicAdd(&s.sums[0], tokens), atomicAdd(&s.sums[1], sum), atomicAdd(&s.sums[2], squares);
  __syncthreads();
  const ops::LogitSums sums{s.sums[0], static_cast<int64_t>(s.sums[1]), s.sums[2]};
  __syncthreads();
  return ops::sigma_cutoff(all.max, all.request.sigmas, sums);
}

// The last key of the shortest prefix, in key order, whose amounts add up to `enough`. ~0: all together are too little.
template <class F>
__device__ Sum find_cut(Shared& s, const Kept& kept, F&& amount, Sum enough) {
  constexpr int kBits = 11;
  static_assert(1 << kBits == ops::kLogitBins);
  Sum prefix = 0, before = 0;  // the key's highest bits; the sum of the amounts of keys below them
  for (int high = 64; high > 0;) {
    const int low = max(high - kBits, 0);
    clear_bins(s);
    kept.each([&](float logit, int id) {
      const Sum key = ops::order_key(logit, id);
      if (high < 64 && key >> high != prefix) return;
      add_in_halves(s.bins[key >> low & ((1u << (high - low)) - 1)], amount(logit));
    });
    find_last_bin(s, before, [&](Sum) { return enough; });
    if (s.last_bin == ops::kLogitBins) return ~Sum{0};
    prefix = prefix << (high - low) | static_cast<Sum>(s.last_bin);
    before = s.in_earlier_bins;
    high = low;
  }
  return prefix;
}

// Samples among the tokens up to a key, in a pass of its own.
__device__ int sample_up_to(Shared& s, const Kept& kept, Sum cut) {
  Best best{-INFINITY, INT32_MAX};
  kept.each([&](float logit, int id) {
    if (ops::order_key(logit, id) > cut || (kept.request.least > 0 && kept.weight(logit) < kept.request.least)) return;
    const std::array<uint32_t, 4> bits = ops::sample_bits(kept.request, static_cast<uint32_t>(id) / 4);
    best.take(noisy(kept.request, logit, bits[id % 4]), id);
  });
  return best_of_block(s.sampled, best).id;
}

// Samples among the listed tokens, which include all kept ones. Each thread has one of them.
__device__ int sample_listed(Shared& s, const Kept& kept) {
  const SampleRow& request = kept.request;
  const int listed = s.listed;
  bool keep = static_cast<int>(threadIdx.x) < listed;
  const Sum key = keep ? s.keys[threadIdx.x] : 0, weight = keep ? s.weights[threadIdx.x] : 0;
  Sum before = 0;
  if (keep) {
    int rank = 0;
    for (int i = 0; i < listed; ++i) {
      const bool earlier = s.keys[i] < key;
      rank += earlier ? 1 : 0;
      before += earlier ? s.weights[i] : 0;
    }
    keep = request.count == 0 || rank < request.count;
  }
  if (request.count > 0) {
    if (threadIdx.x == 0) s.total = 0;
    __syncthreads();
    if (keep) atomicAdd(&s.total, weight);
    __syncthreads();
  }
  Best best{-INFINITY, INT32_MAX};
  if (keep && (request.mass >= 1 || before < kept.enough(s.total))) {
    const float logit = ops::logit_of(key);
    const auto id = static_cast<int>(key & 0xffffffffu);
    if (kept.weight(logit) >= request.least) {
      const std::array<uint32_t, 4> bits = ops::sample_bits(request, static_cast<uint32_t>(id) / 4);
      best.take(noisy(request, logit, bits[id % 4]), id);
    }
  }
  return best_of_block(s.sampled, best).id;
}

__device__ int sample_kept(Shared& s, Kept kept) {
  const SampleRow& request = kept.request;
  const bool counts = request.count > 0, nucleus = request.mass < 1;
  if (request.sigmas > 0) kept.least_logit = sigma_cutoff(s, kept);
  if (!counts && !nucleus) return sample_up_to(s, kept, ~Sum{0});
  if (request.count <= kListed) {
    clear_bins(s);
    kept.each([&](float logit, int) {
      const Sum amount = counts ? 1 : kept.units(logit);
      if (amount != 0) add_in_halves(s.bins[ops::logit_bin(kept.max, logit)], amount);
    });
    find_last_bin(s, 0,
                  [&](Sum total) { return counts ? min(static_cast<Sum>(request.count), total) : kept.enough(total); });
    const int last = s.last_bin;
    kept.each([&](float logit, int id) {
      if (ops::logit_bin(kept.max, logit) > last) return;
      const int at = atomicAdd(&s.listed, 1);
      if (at < kListed) s.keys[at] = ops::order_key(logit, id), s.weights[at] = kept.units(logit);
    });
    __syncthreads();
    if (s.listed <= kListed) return sample_listed(s, kept);
  }
  Sum cut = ~Sum{0};
  if (counts)
    cut = find_cut(
        s, kept, [](float) { return Sum{1}; }, static_cast<Sum>(request.count));
  if (nucleus) {
    if (threadIdx.x == 0) s.total = 0;
    __syncthreads();
    Sum mine = 0;
    kept.each([&](float logit, int id) { mine += ops::order_key(logit, id) <= cut ? kept.units(logit) : 0; });
    atomicAdd(&s.total, mine);
    __syncthreads();
    const Sum enough = kept.enough(s.total);
    cut = min(cut, find_cut(
                       s, kept, [&](float logit) { return kept.units(logit); }, enough));
  }
  return sample_up_to(s, kept, cut);
}

struct Pointers : SamplePointers {
  PartOfRow* parts;   // [samples, parts]
  int32_t* arrivals;  // [samples]
};

// Collects what log-probabilities need of the raw row.
__device__ void report_row(Shared& s, const SampleRow& request, const Row& raw, SampledRow& sampled, TopLogit* top) {
  sampled.raw_max = choose(s, request, raw, false).max.value;
  if (s.bad != 0 || s.alive == 0) return;
  sampled.raw_total = list_top(s, request.report, raw, sampled.raw_max, top);
  if (request.report > 0) sampled.top = s.listed <= ops::kMostTop ? s.listed : -1;
}

// Collects what log-probabilities need of the sampled token.
__device__ void report_token(Shared& s, const Row& raw, SampledRow& sampled) {
  if (threadIdx.x == 0) s.before = 0;
  __syncthreads();
  const float own = raw.logits[sampled.token];
  int before = 0;
  each_logit(raw.logits, raw.vocab, [&](int block, const float(&four)[4]) {
    for (int i = 0; i < 4; ++i) before += four[i] > own || (four[i] == own && block * 4 + i < sampled.token) ? 1 : 0;
  });
  before = __reduce_add_sync(~0u, before);
  if (threadIdx.x % 32 == 0) atomicAdd(&s.before, before);
  __syncthreads();
  sampled.token_logit = own;
  sampled.before = s.before;
}

// Grid: (samples, parts). Rows with a chain of samplers have a kernel of their own.
template <bool kChain>
__global__ void __launch_bounds__(kThreads) sample_rows(Pointers p, const __grid_constant__ GivenRows given) {
  __shared__ Shared s;
  wait_for_earlier();
  const SampleRow request = p.rows != nullptr ? p.rows[blockIdx.x] : given.rows[blockIdx.x];
  if ((request.steps > 0) != kChain) return;
  if (p.left != nullptr && p.left[blockIdx.x] == 0) return;
  const bool in_parts = gridDim.y > 1 && request.edits == 0 && request.report < 0 && request.target < 0;
  if (!in_parts && blockIdx.y > 0) return;
  float* logits = p.logits + request.row * p.stride;
  const int64_t words = (int64_t{p.vocab} + 31) / 32, lists = int64_t{blockIdx.x} * ops::kMostTop;
  const Row raw{logits, nullptr, p.vocab},
      row{logits, request.mask < 0 ? nullptr : p.masks + request.mask * words, p.vocab};
  LogitEdit* edits = p.edits + request.first_edit;
  if (threadIdx.x == 0) s.bad = s.alive = s.spoiled = 0, s.best_score = ordered(-INFINITY);
  __syncthreads();
  SampledRow sampled;
  if (request.report >= 0) report_row(s, request, raw, sampled, p.top + lists);
  if (request.target >= 0) {
    if (s.bad == 0 && s.alive != 0) sampled.token = request.target;
  } else {
    apply_edits(s, request, row, logits, edits);
    const bool cut = kChain || (request.scale > 0 && ops::filters(request));
    const RowPart part = in_parts ? RowPart{static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y)} : RowPart{};
    Chosen chosen = choose(s, request, row, request.scale > 0 && !cut, part);
    if (in_parts && !merge_parts(s, chosen, part, p.parts + blockIdx.x * gridDim.y, p.arrivals + blockIdx.x)) {
      return;
    }
    const float max = chosen.max.value;
    if (s.bad == 0 && s.alive != 0) {
      if (s.spoiled != 0 || max == -INFINITY) {
        sampled.token = SampledRow::kNoneLeft;
      } else {
        if constexpr (kChain) {
          BlockTokens tokens(s, row, chosen.max);
          const SampledRow after = ops::run_chain(request, p.steps + request.first_step, tokens);
          sampled.token = after.token, sampled.probability = after.probability;
        } else {
          sampled.token = cut ? sample_kept(s, {request, row, max}) : chosen.sampled.id;
        }
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < request.edits; i += kThreads) logits[edits[i].id] = edits[i].raw;
    __syncthreads();
  }
  if (request.report >= 0 && sampled.token >= 0) report_token(s, raw, sampled);
  if (threadIdx.x == 0) {
    p.sampled[blockIdx.x] = sampled;
    if (p.for_host != nullptr) p.for_host[blockIdx.x] = sampled;
  }
}

__global__ void feed_sampled_rows(int32_t* tokens, const SampledRow* sampled, const int32_t* from, int rows) {
  wait_for_earlier();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows && from[row] >= 0) tokens[row] = max(sampled[from[row]].token, 0);
}

// Which kernels sample the rows of a launch. Those of blocks also sample what teams leave.
struct Work {
  bool teams = false, blocks = false, block_chains = false;
};
Work divide(std::span<const SampleRow> rows) {
  Work work;
  for (const SampleRow& row : rows) {
    work.teams |= for_teams(row);
    work.block_chains |= row.steps > 0;
    work.blocks |= row.steps == 0;
  }
  return work;
}

}  // namespace

void sample(const Launch& l, const ops::SampleArgs& args) {
  const auto samples = static_cast<unsigned>(args.rows.bytes() / sizeof(SampleRow));
  const std::span asked(args.rows.as<const SampleRow>(), samples);
  GivenRows given;
  constexpr size_t kPartsBytes = kMostBlocks * sizeof(PartOfRow);
  static_assert(kPartsBytes % alignof(SampleRow) == 0);
  const size_t left_bytes = samples * sizeof(int32_t), row_bytes = samples <= kGiven ? 0 : args.rows.bytes();
  CHECK(kPartsBytes + row_bytes + left_bytes <= l.workspace_bytes, "sample: the workspace is too small for {} samples",
        samples);
  std::byte *rows = l.workspace + kPartsBytes, *left = rows + row_bytes;
  if (samples <= kGiven) {
    std::memcpy(given.rows, asked.data(), asked.size_bytes());
  } else {
    copy_from_host(l, rows, asked.data(), row_bytes);
  }
  const Work work = divide(asked);
  const Pointers pointers{{.logits = args.logits.f32(),
                           .stride = args.logits.row_stride,
                           .vocab = static_cast<int>(args.logits.shape[1]),
                           .rows = samples <= kGiven ? nullptr : reinterpret_cast<const SampleRow*>(rows),
                           .edits = args.edits.as<LogitEdit>(),
                           .masks = args.masks.as<const uint32_t>(),
                           .steps = args.steps.as<const ops::SamplerStep>(),
                           .sampled = args.sampled.as<SampledRow>(),
                           .for_host = args.for_host.as<SampledRow>(),
                           .top = args.top.as<TopLogit>(),
                           .left = work.teams ? reinterpret_cast<int32_t*>(left) : nullptr},
                          reinterpret_cast<PartOfRow*>(l.workspace),
                          l.arrivals};
  if (work.teams) sample_by_teams(l, pointers, given, samples);
  const int64_t parts = std::min({kMostParts, kMostBlocks / samples, args.logits.shape[1] / kLeastOfPart});
  if (work.blocks) {
    launch_pdl(l, "sample", sample_rows<false>, dim3(samples, static_cast<unsigned>(std::max<int64_t>(parts, 1))),
               kThreads, 0, pointers, given);
  }
  if (work.block_chains) launch_pdl(l, "sample_chain", sample_rows<true>, dim3(samples), kThreads, 0, pointers, given);
}

void feed_sampled(const Launch& l, const ops::FeedSampledArgs& args, const int32_t* from) {
  const auto rows = static_cast<unsigned>(args.from.size());
  launch_pdl(l, "feed_sampled", feed_sampled_rows, dim3((rows + 255) / 256), 256, 0, args.tokens.as<int32_t>(),
             args.sampled.as<const SampledRow>(), from, static_cast<int>(rows));
}

}  // namespace sluice::cuda
