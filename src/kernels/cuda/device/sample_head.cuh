// The first tokens of a row, sorted, and sums over the whole row: what a row's samplers need until they have cut it to
// these tokens. After that they work on the list alone (device/sample_list.cuh).
//
// Where a sampler needs more, the tokens give up: all results are meaningless from then on, and the row must be sampled
// in another way (device/sample_chain.cuh).
#pragma once

#include "kernels/cuda/device/sample_pass.cuh"

namespace sluice::cuda {

// What the passes over a row have to find for its samplers. This is a guess, which HeadTokens checks.
struct RowPlan {
  bool serves = true;  // false: the samplers need more than HeadTokens have
  RowSums sums = RowSums::kNone;
  float sigmas = 0.0f;                      // of top-n-sigma, with kLogits
  bool kept_moments = false;                // whether moments of what top-n-sigma keeps are asked for
  int reshapes = 0;                         // how often distances change before moments are asked for
  float linear = 1.0f, next_linear = 1.0f;  // factors of distances then
  int count = 1000;                         // tokens of the list, which may be nearly twice as long

  __device__ void ask(int tokens) {
    constexpr int kMostAsked = 1200;
    count = tokens;
    serves &= tokens <= kMostAsked;
  }
};

__device__ inline RowPlan plan_filters(const SampleRow& row) {
  RowPlan plan{.reshapes = 1, .linear = row.scale};
  if (row.count > 0) plan.ask(row.count);
  const bool moments = row.count == 0 && row.mass < 1;
  if (row.sigmas > 0) {
    plan.sums = RowSums::kLogits, plan.sigmas = row.sigmas, plan.kept_moments = moments;
  } else if (moments) {
    plan.sums = RowSums::kMoments;
  }
  return plan;
}

__device__ __noinline__ inline RowPlan plan_chain(const SampleRow& row, const ops::SamplerStep* steps) {
  using enum ops::SamplerKind;
  RowPlan plan;
  const int end = row.steps;
  const auto kind = [&](int i) { return i < end ? steps[i].kind : kAdaptiveP; };
  const auto scales = [&](int i) { return kind(i) == kTemperature && !(steps[i].b > 0); };
  const auto by_list = [&](int i) { return kind(i) == kTopK || kind(i) == kMinP || kind(i) == kMirostat1; };
  int i = 0;
  if (scales(i)) plan.linear = static_cast<float>(steps[i++].a), plan.reshapes = 1;
  bool straight = true;
  for (; scales(i) || kind(i) == kSmoothing; ++i) straight = false;
  int next = i;  // the first sampler that cuts, or the one after top-n-sigma
  while (kind(next) == kTopNSigma || kind(next) == kTemperature || kind(next) == kSmoothing) ++next;
  if (kind(next) == kTopK) plan.ask(steps[next].count);
  if (by_list(i)) return plan;
  plan.serves &= straight && kind(i) != kAdaptiveP && kind(i) != kTypicalP;
  if (kind(i) == kTopNSigma) {
    plan.sums = RowSums::kLogits, plan.sigmas = steps[i++].b;
    if (scales(i)) plan.next_linear = static_cast<float>(steps[i++].a), ++plan.reshapes;
    while (scales(i) || kind(i) == kSmoothing) ++i;
    plan.kept_moments = !by_list(i) && kind(i) != kAdaptiveP;
  } else {
    plan.sums = RowSums::kMoments;
    plan.serves &= kind(i) != kTemperature || kind(next) != kAdaptiveP;  // a dynamic temperature cuts nothing
  }
  return plan;
}

class HeadTokens {
 public:
  // The list has all tokens of at least the logit `least`.
  __device__ HeadTokens(int count, const Found& found, float least, const RowPlan& plan, const RowTotals& row)
      : shape(found.max),
        plan_(plan),
        row_(row),
        least_(least),
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
      const Sum last = ops::order_key(row_.cut, 0);
      const bool known = plan_.sums == RowSums::kLogits && !kept_ && accept(token_of(last)) &&
                         !accept(token_of(last + (Sum{1} << 32)));
      gave_up_ |= !known;
      if (row_.cut < least_) {  // tokens behind the list stay too
        kept_ = true;
        return;
      }
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

  __device__ __noinline__ ops::SampleToken token_of(Sum key) const {
    const float distance = shape.of(ops::logit_of(key));
    return {key, distance, ops::sample_weight(distance)};
  }

  __device__ ops::Sums sums_of_row(ops::AddLogits add) {
    gave_up_ |= plan_.sums != RowSums::kLogits || kept_ || add.distances;
    return row_.logits;
  }
  __device__ ops::Sums sums_of_row(ops::AddMoments) {
    gave_up_ |= reshapes_ != plan_.reshapes || (kept_ ? !plan_.kept_moments : plan_.sums != RowSums::kMoments);
    return row_.moments;
  }
  __device__ ops::Sums sums_of_row(ops::AddUnits) { return sums_of_row(ops::AddMoments()); }

  SortedTokens list_;
  const RowPlan& plan_;
  const RowTotals& row_;
  float least_;
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
    const float least = ops::sigma_cutoff(max, request.sigmas, tokens.sums(ops::AddLogits()));
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
