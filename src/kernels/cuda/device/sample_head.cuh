// The first tokens of a row, sorted, and sums over the whole row: what a row's samplers need until they have cut it to
// these tokens. After that they work on the list alone (device/sample_list.cuh).
//
// Where a sampler needs more, the tokens give up: all results are meaningless from then on, and the row must be sampled
// in another way (device/sample_chain.cuh).
#pragma once

#include "kernels/cuda/device/sample_pass.cuh"

namespace sluice::cuda {

// What one pass over a row has to find for its samplers. This is a guess, which HeadTokens checks.
struct RowPlan {
  bool serves = true;  // false: the samplers need more than HeadTokens have
  RowSums sums = RowSums::kNone;
  float sigmas = 0.0f;       // of top-n-sigma, with kDistances
  bool by_logit = false;     // as in Wanted
  int reshapes = 0;          // how often distances change before the samplers ask for the sums
  float linear = 1.0f;       // factor of distances then
  int kept_reshapes = 0;     // the same for the sums of what top-n-sigma keeps
  float next_linear = 1.0f;  // a second factor
  int count = 1000;          // tokens of the list, which may be nearly twice as long

  __device__ void ask(int tokens) {
    constexpr int kMostAsked = 1200;
    count = tokens;
    serves &= tokens <= kMostAsked;
  }
};

__device__ inline RowPlan plan_filters(const SampleRow& row) {
  RowPlan plan;
  if (row.count > 0) plan.ask(row.count);
  if (row.sigmas > 0) {
    plan.sums = RowSums::kDistances, plan.sigmas = row.sigmas, plan.by_logit = true;
    plan.next_linear = row.scale, plan.kept_reshapes = 1;
  } else if (row.count == 0 && row.mass < 1) {
    plan.sums = RowSums::kMoments, plan.linear = row.scale, plan.reshapes = 1;
  }
  return plan;
}

__device__ __noinline__ inline RowPlan plan_chain(const SampleRow& row, const ops::SamplerStep* steps) {
  using enum ops::SamplerKind;
  RowPlan plan;
  const int end = row.steps;
  const auto kind = [&](int i) { return i < end ? steps[i].kind : kAdaptiveP; };
  const auto scales = [&](int i) { return kind(i) == kTemperature && !(steps[i].b > 0); };
  int i = 0;
  if (scales(i)) plan.linear = static_cast<float>(steps[i++].a), plan.reshapes = 1;
  bool straight = true;
  for (; scales(i) || kind(i) == kSmoothing; ++i) straight = false;
  int next = i;  // the first sampler that cuts, or the one after top-n-sigma
  while (kind(next) == kTopNSigma || kind(next) == kTemperature || kind(next) == kSmoothing) ++next;
  if (kind(next) == kTopK) plan.ask(steps[next].count);
  if (kind(i) == kTopK || kind(i) == kMinP || kind(i) == kMirostat1) return plan;
  plan.serves &= straight && kind(i) != kAdaptiveP && kind(i) != kTypicalP;
  if (kind(i) == kTopNSigma) {
    plan.sums = RowSums::kDistances, plan.sigmas = steps[i].b;
    plan.kept_reshapes = plan.reshapes;
    if (scales(i + 1)) plan.next_linear = static_cast<float>(steps[i + 1].a), ++plan.kept_reshapes;
  } else {
    plan.sums = RowSums::kMoments;
    plan.serves &= kind(i) != kTemperature || kind(next) != kAdaptiveP;  // a dynamic temperature cuts nothing
  }
  return plan;
}

class HeadTokens {
 public:
  // The list has all tokens of at least the logit `least`.
  __device__ HeadTokens(int count, const Found& found, float least, const RowPlan& plan, const Collected& row)
      : shape(found.max),
        plan_(plan),
        row_(row),
        gave_up_(count > kMostSorted),
        complete_(least == -FLT_MAX && !gave_up_) {
    list_.take(gave_up_ ? 1 : count, LogitBins(found.max, fmaxf(least, found.lowest), kMostSorted), shape);
    first_ = list_.first();
  }

  ops::LogitShape shape;

  __device__ bool gave_up() const { return gave_up_; }
  __device__ Sum first() const { return first_; }
  __device__ void reshape() {
    list_.reshape(shape);
    ++reshapes_;
  }

  template <class F>
  __device__ __noinline__ ops::Sums sums(F f) {
    return complete_ ? list_.sums(f) : sums_of_row(f);
  }

  template <class Accept>
  __device__ __noinline__ Sum last(Accept accept) {
    gave_up_ |= !complete_ && accept(list_.last());
    return list_.last(accept);
  }

  template <class Accept>
  __device__ __noinline__ void keep(Accept accept) {
    if (!complete_ && accept(list_.last())) {
      const bool known =
          plan_.sums == RowSums::kDistances && !kept_ && accept(token_of(row_.above)) && !accept(token_of(row_.below));
      gave_up_ |= !known;
      kept_ = true;
      return;
    }
    complete_ = true;  // if the list's last token goes, those behind it do
    list_.keep(accept);
    if (list_.first() == first_) return;
    first_ = list_.first();
    shape.start_at(ops::logit_of(first_));
    list_.reshape(shape);
  }

  template <class F>
  __device__ __noinline__ void keep_prefix(F amount, Sum enough) {
    const bool reached = list_.keep_prefix(amount, enough);
    gave_up_ |= !complete_ && !reached;
    complete_ = true;
  }

  template <class Rank, class F>
  __device__ __noinline__ Sum cut(Rank rank, F amount, Sum enough) {
    gave_up_ |= !complete_;
    return list_.cut(rank, amount, enough);
  }

  template <class F>
  __device__ __noinline__ ops::Sums ranked(int count, F f) {
    gave_up_ |= !complete_ && list_.count() < count;
    return list_.ranked(count, f);
  }

  // `factor` is that of the exponent.
  template <class Exponent>
  __device__ __noinline__ Sum sample(const SampleRow& request, Exponent exponent, float factor = 1.0f) {
    gave_up_ |= !complete_;
    return list_.best(
        [&](const ops::SampleToken& token) { return score(request, factor, exponent(token), ops::id_of(token.key)); });
  }

 private:
  static __device__ __noinline__ float score(const SampleRow& request, float factor, float exponent, int id) {
    const std::array<uint32_t, 4> bits = ops::sample_bits(request, static_cast<uint32_t>(id) / 4);
    const int of_four = id % 4;
    const uint32_t own = of_four == 0 ? bits[0] : of_four == 1 ? bits[1] : of_four == 2 ? bits[2] : bits[3];
    return ops::sample_score(factor, exponent, own);
  }

  __device__ __noinline__ ops::SampleToken token_of(float logit) const {
    const float distance = shape.of(logit);
    return {ops::order_key(logit, 0), distance, ops::sample_weight(distance)};
  }

  __device__ ops::Sums sums_of_row(ops::AddDistances) {
    gave_up_ |= plan_.sums != RowSums::kDistances || kept_ || reshapes_ != plan_.reshapes;
    return row_.all;
  }
  __device__ ops::Sums sums_of_row(ops::AddMoments) {
    gave_up_ |=
        kept_ ? reshapes_ != plan_.kept_reshapes : plan_.sums != RowSums::kMoments || reshapes_ != plan_.reshapes;
    return kept_ ? row_.kept : row_.all;
  }
  __device__ ops::Sums sums_of_row(ops::AddUnits) { return sums_of_row(ops::AddMoments()); }

  SortedTokens list_;
  const RowPlan& plan_;
  const Collected& row_;
  Sum first_ = 0;
  int reshapes_ = 0;
  bool gave_up_, complete_;  // complete: no other tokens are left
  bool kept_ = false;        // top-n-sigma has kept the list, and tokens behind it
};

// Runs the filters of a row; see SampleRow.
template <class Tokens>
__device__ int sample_filtered(Tokens& tokens, const SampleRow& request) {
  using ops::SampleToken;
  if (request.sigmas > 0) {
    const float max = ops::logit_of(tokens.first());
    const float least = ops::sigma_cutoff(max, request.sigmas, tokens.sums(ops::AddDistances()));
    tokens.keep([=](const SampleToken& token) { return ops::logit_of(token.key) >= least; });
  }
  ops::scale(tokens, request.scale);
  if (request.count > 0) ops::top_k(tokens, request.count);
  if (request.mass < 1) ops::top_p(tokens, request.mass);
  if (request.least > 0) ops::min_p(tokens, request.least);
  return ops::id_of(tokens.sample(
      request, [](const SampleToken& token) { return ops::logit_of(token.key); }, request.scale));
}

// Samples a token by the filters or the chain of a row.
template <class Tokens>
__device__ ops::SampledRow sample_tokens(Tokens& tokens, const SampleRow& request, const ops::SamplerStep* steps) {
  if (request.steps > 0) return ops::run_chain(request, steps, tokens);
  ops::SampledRow sampled;
  sampled.token = sample_filtered(tokens, request);
  return sampled;
}

}  // namespace sluice::cuda
