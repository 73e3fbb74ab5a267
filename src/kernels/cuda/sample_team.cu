// Samples rows that are cut. A row has a team: one block of 256 threads, or a cluster of up to eight if rows are few.
// It reads the row for its largest logit, and the groups of tokens that may be needed again for a list. It samples from
// the list. Sums of weights over the row take a second pass. Bound by memory traffic and by what samplers do with the
// list: four blocks share an SM, so that 512 rows run at once.
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/sample_head.cuh"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/sample_rows.h"

namespace sluice::cuda {
namespace {

using ops::LogitEdit;
using ops::SampledRow;

// Calls f(edit, logit) for the edits of this thread.
template <class F>
__device__ void each_edit(const SampleRow& request, float* logits, LogitEdit* edits, F&& f) {
  const int step = static_cast<int>(gridDim.x) * kTeamThreads;
  for (int i = static_cast<int>(blockIdx.x * kTeamThreads + threadIdx.x); i < request.edits; i += step) {
    f(edits[i], logits[edits[i].id]);
  }
}

// Edits the row in memory. Raw logits are kept in the edits.
__device__ uint32_t apply_edits(const SampleRow& request, const Row& row, float* logits, LogitEdit* edits) {
  uint32_t flags = 0;
  each_edit(request, logits, edits, [&](LogitEdit& edit, float& logit) {
    edit.raw = logit;
    if (!(logit < INFINITY)) flags |= Found::kBad;
    if (logit > -INFINITY) flags |= Found::kAlive;
    logit = edited(request, edit, logit);
    if (!(logit < INFINITY)) {
      if (row.allows(edit.id)) flags |= Found::kSpoiled;
      logit = -INFINITY;
    }
  });
  if (request.edits > 0) sync_team();
  return flags;
}

// Adds up the moments that the plan asks for. The list will have all tokens of at least the logit `least`.
__device__ void add_moments(TeamRow& own, const RowPlan& plan, const Found& found, float least, bool gaps,
                            RowTotals& row) {
  Wanted wanted{.max = found.max, .linear = plan.linear, .next_linear = plan.next_linear, .gaps = gaps};
  if (plan.sums == RowSums::kMoments) {
    row.moments = own.moments<true>(wanted);
  } else if (plan.kept_moments && row.cut < least) {
    wanted.least = fmaxf(row.cut, -FLT_MAX);
    row.moments = own.moments<false>(wanted);
  }
}

// Grid: (blocks of a team, samples). Four blocks of an SM leave 64 registers to a thread.
__global__ void __launch_bounds__(kTeamThreads, 4)
    sample_by_team(SamplePointers p, const __grid_constant__ GivenRows given) {
  __shared__ SampleRow request;
  wait_for_earlier();
  const unsigned sample = blockIdx.y;
  if (threadIdx.x == 0) request = p.rows != nullptr ? p.rows[sample] : given.rows[sample];
  __syncthreads();
  const ops::SamplerStep* steps = p.steps + request.first_step;
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  const RowPlan plan = request.steps > 0 ? plan_chain(request, steps) : plan_filters(request);
  if (!for_teams(request) || !(plan.serves || p.vocab <= kMostSorted) || p.vocab > TeamRow::kMostVocab) {
    if (first) p.left[sample] = 1;
    return;
  }
  float* logits = p.logits + request.row * p.stride;
  LogitEdit* edits = p.edits + request.first_edit;
  const Row row{logits, request.mask < 0 ? nullptr : p.masks + request.mask * ops::mask_words(p.vocab), p.vocab};
  TeamRow own(row);
  const uint32_t flags = apply_edits(request, row, logits, edits);
  RowTotals totals;
  const bool adds = plan.sums != RowSums::kNone;
  Found found =
      adds ? own.look<true>(plan.count, flags, totals.logits) : own.look<false>(plan.count, flags, totals.logits);
  found = own.combine(found, Found::Both());
  SampledRow sampled;
  sampled.token = found.error();
  float least = -FLT_MAX;
  int count = 0;
  if (sampled.token == 0) {
    if (adds) {
      totals.logits = own.combine(totals.logits, Added());
      totals.cut = ops::sigma_cutoff(found.max, plan.sigmas, totals.logits);
    }
    if (p.vocab > kMostSorted) least = own.likely_prefix(found, plan.count);
    add_moments(own, plan, found, least, totals.logits.a < static_cast<Sum>(p.vocab), totals);
    own.list_from(least);
    count = own.gather();
  }
  each_edit(request, logits, edits, [](const LogitEdit& edit, float& logit) { logit = edit.raw; });
  sync_team();  // the first block has read what the others hold
  if (blockIdx.x > 0) return;
  bool left = false;
  if (sampled.token == 0) {
    HeadTokens tokens(count, found, least, plan, totals);
    sampled = sample_tokens(tokens, request, steps);
    left = tokens.gave_up();
  }
  if (!first) return;
  p.left[sample] = left ? 1 : 0;
  if (!left) p.put(sample, sampled);
}

}  // namespace

void sample_by_teams(const Launch& l, const SamplePointers& p, const GivenRows& given, unsigned samples) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, sample_by_team, sizeof(TeamShared));
  // Clusters do not fill four blocks of every SM. With twice the blocks, 128 rows took 115 us instead of 76.
  const unsigned most = 3 * static_cast<unsigned>(l.sm_count);
  unsigned blocks = 1;
  while (l.compute_capability >= 90 && blocks < kMostTeamBlocks && 2 * blocks * samples <= most) blocks *= 2;
  launch_clusters(
      l, "sample by teams", sample_by_team,
      {.blocks = dim3(blocks, samples), .cluster = dim3(blocks), .threads = kTeamThreads, .shared = sizeof(TeamShared)},
      p, given);
}

}  // namespace sluice::cuda
