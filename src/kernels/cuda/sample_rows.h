// What the kernels that sample rows are given, and which of them samples a row.
#pragma once

#include "kernels/cuda/launch.h"
#include "ops/sample_chain.h"

namespace sluice::cuda {

// The parameters of a few rows, as a kernel argument. When eight blocks read theirs from host memory, sampling took 15
// us instead of 7.
inline constexpr unsigned kGiven = 8;
struct GivenRows {
  ops::SampleRow rows[kGiven];
};

struct SamplePointers {
  float* logits;
  int64_t stride;
  int vocab;
  const ops::SampleRow* rows;  // null: GivenRows has them
  ops::LogitEdit* edits;
  const uint32_t* masks;
  const ops::SamplerStep* steps;
  ops::SampledRow* sampled;
  ops::SampledRow* for_host;  // may be null
  ops::TopLogit* top;
  int32_t* left;  // [samples] 1: a team did not sample this row; null: there are no teams

#ifdef __CUDACC__
  __device__ void put(unsigned sample, const ops::SampledRow& result) const {
    sampled[sample] = result;
    if (for_host != nullptr) for_host[sample] = result;
  }
#endif
};

// Whether a row goes through samplers that cut.
constexpr bool cuts(const ops::SampleRow& row) { return row.steps > 0 || (row.scale > 0 && ops::filters(row)); }
// Whether teams may sample a row: one that is cut.
constexpr bool for_teams(const ops::SampleRow& row) {
  constexpr float kLeastScale = 1e-6f;  // distances of 1e9, where ops::LogitShape ends, have no weight
  const bool reads_raw = row.report >= 0 || row.target >= 0;
  return !reads_raw && cuts(row) && (row.steps > 0 || row.scale >= kLeastScale);
}

// sample_team.cu: samples rows, and tells in SamplePointers::left which ones it did not. Those include rows whose
// samplers keep thousands of tokens.
void sample_by_teams(const Launch&, const SamplePointers&, const GivenRows&, unsigned samples);

}  // namespace sluice::cuda
