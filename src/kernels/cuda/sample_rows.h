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
// Whether clusters or streams ("teams") may sample a row: one that is cut.
constexpr bool for_teams(const ops::SampleRow& row) {
  constexpr float kLeastScale = 1e-6f;  // distances of 1e9, where ops::LogitShape ends, have no weight
  const bool reads_raw = row.report >= 0 || row.target >= 0;
  return !reads_raw && cuts(row) && (row.steps > 0 || row.scale >= kLeastScale);
}
#ifdef __CUDACC__
// What a row's samplers do first: keep a number of tokens, order all tokens by a rank of their own, or neither.
enum class FirstCut { kCount, kRank, kOther };
__device__ inline FirstCut first_cut(const ops::SampleRow& row, const ops::SamplerStep* steps) {
  using enum ops::SamplerKind;
  for (int32_t i = 0; i < row.steps; ++i) {
    if (steps[i].kind == kTopK) return FirstCut::kCount;
    if (steps[i].kind == kTypicalP || steps[i].kind == kMirostat1) return FirstCut::kRank;
  }
  return FirstCut::kOther;
}
#endif

// Both sample rows, and tell in SamplePointers::left which ones they did not. Those include rows whose samplers keep
// thousands of tokens.
//
// sample_cluster.cu: for few rows. They leave those with FirstCut::kRank.
bool clusters_hold(const Launch&, int vocab);  // whether the device has clusters that hold rows of this many tokens
void sample_by_clusters(const Launch&, const SamplePointers&, const GivenRows&, unsigned samples);
// sample_stream.cu: for many rows. Of those with a chain they take those with FirstCut::kCount; others are slower.
void sample_by_streams(const Launch&, const SamplePointers&, const GivenRows&, unsigned samples);

}  // namespace sluice::cuda
