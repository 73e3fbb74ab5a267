// Samples tokens of many rows: one block of 256 threads per row, which reads the row for every sampler until few tokens
// are left. Bound by memory traffic: three blocks share an SM, so that some read while others work on their lists.
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/sample_stream.cuh"
#include "kernels/cuda/per_device.h"
#include "kernels/cuda/sample_rows.h"

namespace sluice::cuda {
namespace {

using ops::LogitEdit;
using ops::SampledRow;

// Edits the row in memory. Raw logits are kept in the edits.
__device__ uint32_t apply_edits(const SampleRow& request, const Row& row, float* logits, LogitEdit* edits) {
  uint32_t flags = 0;
  for (int i = static_cast<int>(threadIdx.x); i < request.edits; i += kTeamThreads) {
    LogitEdit& edit = edits[i];
    const float raw = logits[edit.id];
    edit.raw = raw;
    if (!(raw < INFINITY)) flags |= Found::kBad;
    if (raw > -INFINITY) flags |= Found::kAlive;
    float logit = edited(request, edit, raw);
    if (!(logit < INFINITY)) {
      if (row.allows(edit.id)) flags |= Found::kSpoiled;
      logit = -INFINITY;
    }
    logits[edit.id] = logit;
  }
  __syncthreads();
  return flags;
}

// Looks at the logits of this thread.
__device__ Found look(StreamedRow& own, uint32_t flags) {
  for (int group = 0; group < StreamedRow::kGroups; ++group) own.highest(group) = -INFINITY;
  Found found{.flags = flags};
  bool bad = false, alive = false;
  own.each_raw_four([&](int id, const float(&raw)[4]) {
    float logits[4] = {raw[0], raw[1], raw[2], raw[3]};
    bad |= !(raw[0] < INFINITY) | !(raw[1] < INFINITY) | !(raw[2] < INFINITY) | !(raw[3] < INFINITY);
    alive |= (raw[0] > -INFINITY) | (raw[1] > -INFINITY) | (raw[2] > -INFINITY) | (raw[3] > -INFINITY);
    own.row().hide(id / 4, logits);
    const float most = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
    float& highest = own.highest(id / StreamShared::kTile % StreamedRow::kGroups);
    if (most > highest) highest = most;
    if (most > found.first.value) {
      const int i = logits[0] == most ? 0 : logits[1] == most ? 1 : logits[2] == most ? 2 : 3;
      found.first = {most + 0.0f, id + i};
    }
  });
  for (int group = 0; group < StreamedRow::kGroups; ++group) {
    if (own.highest(group) > -INFINITY) found.lowest = fminf(found.lowest, own.highest(group));
  }
  found.flags |= (bad ? Found::kBad : 0) | (alive ? Found::kAlive : 0);
  return found;
}

// Grid: samples. Three blocks of an SM leave 80 registers to a thread.
__global__ void __launch_bounds__(kTeamThreads, 3)
    sample_by_stream(SamplePointers p, const __grid_constant__ GivenRows given) {
  extern __shared__ float4 room[];
  __shared__ SampleRow request;
  wait_for_earlier();
  const unsigned sample = blockIdx.x;
  if (threadIdx.x == 0) request = p.rows != nullptr ? p.rows[sample] : given.rows[sample];
  __syncthreads();
  float* logits = p.logits + request.row * p.stride;
  const ops::SamplerStep* steps = p.steps + request.first_step;
  const bool packed = reinterpret_cast<uintptr_t>(logits) % 16 == 0 && p.vocab % 4 == 0;
  if (!packed || !for_teams(request) || (request.steps > 0 && first_cut(request, steps) != FirstCut::kCount)) {
    if (threadIdx.x == 0) p.left[sample] = 1;
    return;
  }
  const Row row{logits, request.mask < 0 ? nullptr : p.masks + request.mask * ops::mask_words(p.vocab), p.vocab};
  LogitEdit* edits = p.edits + request.first_edit;
  StreamedRow own(*reinterpret_cast<StreamShared*>(room), row);
  const Found found = own.combine(look(own, apply_edits(request, row, logits, edits)), Found::Both());
  own.know(found.lowest);
  SampledRow sampled;
  sampled.token = found.error();
  bool left = false;
  if (sampled.token == 0) {
    RowTokens tokens(own, found.first);
    sampled = sample_tokens(tokens, request, steps);
    left = tokens.gave_up();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < request.edits; i += kTeamThreads) logits[edits[i].id] = edits[i].raw;
  if (threadIdx.x > 0) return;
  p.left[sample] = left ? 1 : 0;
  if (!left) p.put(sample, sampled);
}

}  // namespace

void sample_by_streams(const Launch& l, const SamplePointers& p, const GivenRows& given, unsigned samples) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, sample_by_stream, sizeof(StreamShared));
  launch_pdl(l, "sample by streams", sample_by_stream, dim3(samples), kTeamThreads, sizeof(StreamShared), p, given);
}

}  // namespace sluice::cuda
