// The chain of samplers that a row may go through before a token is sampled. Each sampler is one function below, which
// runs on every device.
//
// A device gives the functions a class `Tokens`. It holds the tokens that are left, and has these members:
//   first()               the key of the first token in order
//   shape                 how logits become distances from the first one
//   sums(f)               calls f(token, Sums&) for every token, and adds up; f is one of those below
//   last(accept)          the largest key of the tokens for which accept(token) holds; 0 if there is none
//   keep(accept)          keeps the tokens for which accept(token) holds. There is at least one, and they follow
//                         each other in order.
//   keep_prefix(f, least) keeps the shortest prefix in order whose amounts f(token) add up to at least `least`, or
//                         all tokens if they do not
//   cut(rank, f, least)   the same for another order, that of rank(token), the bits of a float of at least 0: returns
//                         the rank of the last token of the prefix, or ~0 if the amounts do not add up
//   ranked(count, f)      calls f(rank, ranks, token, Sums&) for the first `count` tokens, or all if there are fewer,
//                         where rank is 0 .. ranks - 1; adds up
//   reshape()             must be called after `shape` has changed
//   sample(row, f)        samples a token, where the exponent of a token's weight is f(token); returns its key
// Sums are of integers, so that they do not depend on the order in which a device adds.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/sample.h"

namespace sluice::ops {

#ifdef __CUDACC__
#define SLUICE_SAMPLER __device__ inline
#else
#define SLUICE_SAMPLER inline
#endif

enum class SamplerKind : int32_t {
  kTemperature,  // a: 1 / temperature; b: range; c: exponent
  kTopNSigma,    // b: standard deviations
  kTopK,         // count: tokens
  kTopP,         // a: share of the probability
  kMinP,         // b: weight, relative to the first token
  kTypicalP,     // a: share of the probability
  kTopA,         // b: multiple of the square of the largest probability
  kEpsilon,      // b: probability
  kEta,          // b: probability
  kXtc,          // b: probability; c: threshold
  kSmoothing,    // b: factor; c: curve
  kMirostat1,    // b: most bits of surprise; count: tokens of the vocabulary
  kMirostat2,    // b: most bits of surprise
  kAdaptiveP,    // b: probability; the last sampler of a chain
};

// One sampler of a row's chain: plain data that the device reads. SamplerKind says what the numbers are.
struct SamplerStep {
  SamplerKind kind = SamplerKind::kTemperature;
  int32_t count = 0;
  double a = 0.0;
  float b = 0.0f, c = 0.0f;
};

// Maps tokens to integers in their order: higher logits first, among equal logits the lower id.
SLUICE_SAMPLE_MATH uint64_t order_key(float logit, int32_t id) {
  const uint32_t bits = bits_of(logit == 0.0f ? 0.0f : logit);  // -0 is 0
  return uint64_t{(bits >> 31) != 0 ? bits : 0x7fffffffu - bits} << 32 | static_cast<uint32_t>(id);
}
SLUICE_SAMPLE_MATH float logit_of(uint64_t key) {
  const auto bits = static_cast<uint32_t>(key >> 32);
  return float_of((bits >> 31) != 0 ? bits : 0x7fffffffu - bits);
}
SLUICE_SAMPLE_MATH int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

// Returns x, which is at least 0, in units of 1 / kSampleWeightUnits.
SLUICE_SAMPLE_MATH uint64_t sample_units(float x) {
#ifdef __CUDA_ARCH__
  return __float2ull_rn(x * kSampleWeightUnits);
#else
  return static_cast<uint64_t>(__builtin_llrint(static_cast<double>(x) * static_cast<double>(kSampleWeightUnits)));
#endif
}

inline constexpr float kFarDistance = -1e9f;  // the furthest; keeps powers finite, and the weight is 0 long before

// The distance of a logit from the largest one, times a factor: that of LogitShape after one add(linear).
SLUICE_SAMPLE_MATH float straight_distance(float max, float logit, float linear) {
  return times(logit - max < kFarDistance ? kFarDistance : logit - max, linear);
}

// Maps a logit to its distance from the first token that is left, which is 0 or less: the exponent of its weight.
// Temperatures and the like are parts of the map. Each takes the distance d from a base to d * (linear + square * d +
// cube * d * d).
class LogitShape {
 public:
  SLUICE_SAMPLE_MATH explicit LogitShape(float max) { parts_[0].base = max; }

  SLUICE_SAMPLE_MATH float of(float logit) const { return value(logit) - top_; }
  // Further distances are those of a change that keeps 0 and the order.
  SLUICE_SAMPLE_MATH void add(float linear, float square = 0.0f, float cube = 0.0f) {
    for (int i = 1; i < kMostParts; ++i) {  // indices that compilers know keep the parts in registers
      if (i == count_) parts_[i] = {.base = top_, .linear = linear, .square = square, .cube = cube};
    }
    ++count_;
    top_ = 0.0f;
  }
  // Whether distances are in proportion to those of logits.
  SLUICE_SAMPLE_MATH bool straight() const {
    bool all = true;
    for (const Part& part : parts_) all &= part.square == 0.0f && part.cube == 0.0f;
    return all;
  }
  // Distances are now from this logit.
  SLUICE_SAMPLE_MATH void start_at(float logit) { top_ = value(logit); }

 private:
  struct Part {
    float base = 0.0f, linear = 1.0f, square = 0.0f, cube = 0.0f;
  };
  static constexpr int kMostParts = 4;

  SLUICE_SAMPLE_MATH float value(float logit) const {
    float d = logit;
    for (int i = 0; i < kMostParts; ++i) {
      if (i >= count_) break;
      const Part& p = parts_[i];
      d = d - p.base < kFarDistance ? kFarDistance : d - p.base;
      const bool straight = p.square == 0.0f && p.cube == 0.0f;
      d = times(d, straight ? p.linear : fused(fused(p.cube, d, p.square), d, p.linear));
    }
    return d;
  }

  Part parts_[kMostParts];
  int count_ = 1;
  float top_ = 0.0f;
};

// A token that is left.
struct SampleToken {
  uint64_t key = 0;
  float distance = 0.0f;  // of LogitShape
  float weight = 0.0f;    // exp(distance)

  SLUICE_SAMPLE_MATH uint64_t units() const { return sample_units(weight); }
};

struct Sums {
  uint64_t a = 0, b = 0, c = 0;
};

// What samplers add up: the weights of tokens.
struct AddUnits {
  SLUICE_SAMPLE_MATH void operator()(const SampleToken& token, Sums& sums) const { sums.a += token.units(); }
};
// Weights, weights times the distances from the first token, and tokens.
struct AddMoments {
  SLUICE_SAMPLE_MATH void operator()(const SampleToken& token, Sums& sums) const {
    sums.a += token.units(), sums.b += sample_units(times(token.weight, -token.distance)), ++sums.c;
  }
};
// Tokens, and what `LogitSums` has of their logits, or of their distances if those are not in proportion to logits.
struct AddLogits {
  bool distances = false;

  SLUICE_SAMPLE_MATH float of(const SampleToken& token) const {
    return distances ? token.distance : logit_of(token.key);
  }
  SLUICE_SAMPLE_MATH void operator()(const SampleToken& token, Sums& sums) const {
    const int64_t units = logit_units(of(token));
    ++sums.a, sums.b += static_cast<uint64_t>(units), sums.c += static_cast<uint64_t>(units * units);
  }
};
SLUICE_SAMPLE_MATH float sigma_cutoff(float max, float n, const Sums& logits) {
  return sigma_cutoff(max, n, {.tokens = logits.a, .sum = static_cast<int64_t>(logits.b), .squares = logits.c});
}

template <class Tokens>
SLUICE_SAMPLER uint64_t total_units(Tokens& tokens) {
  return tokens.sums(AddUnits()).a;
}

// The samplers.

template <class Tokens>
SLUICE_SAMPLER void scale(Tokens& tokens, float factor) {
  tokens.shape.add(factor);
  tokens.reshape();
}

// Tang et al. 2024, arXiv:2411.07641. Temperatures do not change what it keeps.
template <class Tokens>
SLUICE_SAMPLER void top_n_sigma(Tokens& tokens, float n) {
  const AddLogits add{.distances = !tokens.shape.straight()};
  const float top = add.distances ? 0.0f : logit_of(tokens.first());
  const float least = sigma_cutoff(top, n, tokens.sums(add));
  tokens.keep([=](const SampleToken& token) { return add.of(token) >= least; });
}

template <class Tokens>
SLUICE_SAMPLER void top_k(Tokens& tokens, int32_t count) {
  tokens.keep_prefix([](const SampleToken&) { return uint64_t{1}; }, static_cast<uint64_t>(count));
}

// Holtzman et al. 2020, arXiv:1904.09751
template <class Tokens>
SLUICE_SAMPLER void top_p(Tokens& tokens, double mass) {
  const auto least = static_cast<uint64_t>(ceil(mass * static_cast<double>(total_units(tokens))));
  tokens.keep_prefix([](const SampleToken& token) { return token.units(); }, least);
}

template <class Tokens>
SLUICE_SAMPLER void min_p(Tokens& tokens, float least) {
  tokens.keep([=](const SampleToken& token) { return token.weight >= least; });
}

// What a row of tokens has in total: of weights, and of weights times the distances from the first one.
struct Moments {
  uint64_t weight = 0, energy = 0;

  // The mean distance, which is at most 0, as a positive number.
  SLUICE_SAMPLE_MATH float mean() const { return static_cast<float>(energy) / static_cast<float>(weight); }
  // Nats of the distribution.
  SLUICE_SAMPLE_MATH float entropy() const {
    return sample_log(static_cast<float>(weight) / kSampleWeightUnits) + mean();
  }
};
template <class Tokens>
SLUICE_SAMPLER Moments moments(Tokens& tokens) {
  const Sums sums = tokens.sums(AddMoments());
  return {.weight = sums.a, .energy = sums.b};
}

// Meister et al. 2022, arXiv:2202.00666, as transformers and llama.cpp have it: the tokens whose information differs
// least from the entropy. The difference is that of the distances, as both contain the logarithm of the sum of weights.
template <class Tokens>
SLUICE_SAMPLER void typical_p(Tokens& tokens, double mass) {
  const Moments all = moments(tokens);
  const float mean = all.mean();
  const auto rank = [=](const SampleToken& token) { return uint64_t{bits_of(fabsf(-token.distance - mean))}; };
  const auto least = static_cast<uint64_t>(ceil(mass * static_cast<double>(all.weight)));
  const uint64_t last = tokens.cut(
      rank, [](const SampleToken& token) { return token.units(); }, least);
  tokens.keep([=](const SampleToken& token) { return rank(token) <= last; });
}

// BlinkDL's, as text-generation-webui has it. Of the first token, whose weight is 1, the probability is 1 / total.
template <class Tokens>
SLUICE_SAMPLER void top_a(Tokens& tokens, float multiple) {
  const float total = static_cast<float>(total_units(tokens)) / kSampleWeightUnits;
  const float least = multiple / total;
  tokens.keep([=](const SampleToken& token) { return token.weight >= least; });
}

// Keeps tokens of at least this probability, and the first one.
template <class Tokens>
SLUICE_SAMPLER void least_probability(Tokens& tokens, float probability, uint64_t total) {
  const float least = times(probability, static_cast<float>(total) / kSampleWeightUnits);
  const uint64_t first = tokens.first();
  tokens.keep([=](const SampleToken& token) { return token.weight >= least || token.key == first; });
}

// Hewitt et al. 2022, arXiv:2210.15191, as transformers has it.
template <class Tokens>
SLUICE_SAMPLER void epsilon_cutoff(Tokens& tokens, float epsilon) {
  least_probability(tokens, epsilon, total_units(tokens));
}

// The same authors' cut-off, which is lower where the entropy is high.
template <class Tokens>
SLUICE_SAMPLER void eta_cutoff(Tokens& tokens, float epsilon) {
  const Moments all = moments(tokens);
  const float by_entropy = times(sqrtf(epsilon), sample_weight(-all.entropy()));
  least_probability(tokens, epsilon < by_entropy ? epsilon : by_entropy, all.weight);
}

// p-e-w's, as llama.cpp has it: with some probability, all tokens from a threshold on but the last of them go. The
// last word of the counter separates its random number from those of tokens.
template <class Tokens>
SLUICE_SAMPLER void xtc(const SampleRow& row, Tokens& tokens, float probability, float threshold) {
  const auto bits = philox4x32({row.position, row.choice, 0, 3}, {row.key[0], row.key[1]});
  if (threshold > 0.5f || open_uniform(bits[0]) >= probability) return;
  const float least = times(threshold, static_cast<float>(total_units(tokens)) / kSampleWeightUnits);
  const uint64_t last = tokens.last([=](const SampleToken& token) { return token.weight >= least; });
  if (last > tokens.first()) tokens.keep([=](const SampleToken& token) { return token.key >= last; });
}

// kalomaze's, as llama.cpp has it. Low entropy gives a low temperature.
template <class Tokens>
SLUICE_SAMPLER void dynamic_temperature(Tokens& tokens, float temperature, float range, float exponent) {
  const Sums sums = tokens.sums(AddMoments());
  if (sums.c < 2) return;
  const float share = Moments{.weight = sums.a, .energy = sums.b}.entropy() / sample_log(static_cast<float>(sums.c));
  const bool inside = share > 0x1p-100f && share < 1.0f;
  const float power = inside                              ? sample_weight(times(exponent, sample_log(share)))
                      : share >= 1.0f || exponent == 0.0f ? 1.0f
                                                          : 0.0f;
  const float least = temperature > range ? temperature - range : 0.0f;
  const float chosen = fused(temperature + range - least, power, least);
  if (chosen < 1e-5f) {
    top_k(tokens, 1);
  } else {
    scale(tokens, 1.0f / chosen);
  }
}

// kalomaze's, as text-generation-webui has it: distances become -k d^2 + s d^3.
template <class Tokens>
SLUICE_SAMPLER void smoothing(Tokens& tokens, float factor, float curve) {
  tokens.shape.add(0.0f, -times(factor, (3.0f - curve) * 0.5f), times(factor, (curve - 1.0f) * 0.5f));
  tokens.reshape();
}

inline constexpr float kLn2 = 0.693147181f;

// Basu et al. 2020, arXiv:2007.14966, as llama.cpp has it: estimates the exponent of a Zipf distribution from the 100
// most likely tokens, and keeps as many tokens as such a distribution has below the surprise.
template <class Tokens>
SLUICE_SAMPLER void mirostat_1(Tokens& tokens, float surprise, float vocabulary) {
  constexpr int kMostRanks = 100;
  constexpr float kFixed = 0x1p30f;  // sums of reals as integers
  const auto slope = [](int rank) { return sample_log(static_cast<float>(rank + 2) / static_cast<float>(rank + 1)); };
  // Sums slope(i) * (d(i) - d(i + 1)) over the ranks i, by parts.
  const Sums sums = tokens.ranked(kMostRanks, [&](int rank, int ranks, const SampleToken& token, Sums& all) {
    const float d = token.distance > -1000.0f ? token.distance : -1000.0f;
    const float here = rank + 1 < ranks ? slope(rank) : 0.0f, before = rank > 0 ? slope(rank - 1) : 0.0f;
    all.a += static_cast<uint64_t>(static_cast<int64_t>(rintf(times(times(here - before, d), kFixed))));
    all.b += static_cast<uint64_t>(rintf(times(times(here, here), kFixed)));
  });
  if (sums.b == 0) return;  // there is one token
  const float s = static_cast<float>(static_cast<int64_t>(sums.a)) / static_cast<float>(sums.b);
  if (!(s > 1e-6f)) return;  // all are equally likely
  const float epsilon = s - 1.0f;
  // k = (epsilon * 2^surprise / (1 - vocabulary^-epsilon))^(1 / s), by logarithms
  const float log_tokens = sample_log(vocabulary > 2.0f ? vocabulary : 2.0f);
  const float power = times(fabsf(epsilon), log_tokens);
  // |1 - e^-power| / |epsilon|, by its series where the difference would lose digits
  const float series = times(log_tokens, fused(power, fused(power, 1.0f / 6.0f, -0.5f), 1.0f));
  const float ratio = power < 0.01f ? series : (1.0f - sample_weight(-power)) / fabsf(epsilon);
  const float log_k = (times(surprise, kLn2) - sample_log(ratio) - (epsilon < 0 ? power : 0.0f)) / s;
  if (log_k > 20.0f) return;
  const float k = log_k > 0.0f ? 1.0f / sample_weight(-log_k) : 1.0f;
  top_k(tokens, static_cast<int32_t>(k));
}

// The second version of the same authors, as llama.cpp has it: keeps the tokens of at most this surprise.
template <class Tokens>
SLUICE_SAMPLER void mirostat_2(Tokens& tokens, float surprise) {
  least_probability(tokens, sample_weight(-times(surprise > 0.0f ? surprise : 0.0f, kLn2)), total_units(tokens));
}

template <class Tokens>
SLUICE_SAMPLER void apply(const SamplerStep& step, const SampleRow& row, Tokens& tokens) {
  switch (step.kind) {
    case SamplerKind::kTemperature:
      if (step.b > 0) return dynamic_temperature(tokens, static_cast<float>(1.0 / step.a), step.b, step.c);
      return scale(tokens, static_cast<float>(step.a));
    case SamplerKind::kTopNSigma:
      return top_n_sigma(tokens, step.b);
    case SamplerKind::kTopK:
      return top_k(tokens, step.count);
    case SamplerKind::kTopP:
      return top_p(tokens, step.a);
    case SamplerKind::kMinP:
      return min_p(tokens, step.b);
    case SamplerKind::kTypicalP:
      return typical_p(tokens, step.a);
    case SamplerKind::kTopA:
      return top_a(tokens, step.b);
    case SamplerKind::kEpsilon:
      return epsilon_cutoff(tokens, step.b);
    case SamplerKind::kEta:
      return eta_cutoff(tokens, step.b);
    case SamplerKind::kXtc:
      return xtc(row, tokens, step.b, step.c);
    case SamplerKind::kSmoothing:
      return smoothing(tokens, step.b, step.c);
    case SamplerKind::kMirostat1:
      return mirostat_1(tokens, step.b, static_cast<float>(step.count));
    case SamplerKind::kMirostat2:
      return mirostat_2(tokens, step.b);
    case SamplerKind::kAdaptiveP:
      return;  // run_chain() samples by it
  }
}

// MrJackSpade's, as llama.cpp has it: tokens are more likely, the nearer their probability is to the target.
template <class Tokens>
SLUICE_SAMPLER uint64_t adaptive_p(const SampleRow& row, Tokens& tokens, float target) {
  const float total = static_cast<float>(total_units(tokens)) / kSampleWeightUnits;
  return tokens.sample(row, [=](const SampleToken& token) {
    const float far = fabsf(token.weight / total - target) / 0.3f;
    return 5.0f - times(times(10.0f, far), far) / (1.0f + far);
  });
}

// Samples a token among those that the chain of a row has left.
template <class Tokens>
SLUICE_SAMPLER SampledRow sample_left(const SampleRow& row, const SamplerStep* steps, Tokens& tokens) {
  const bool adaptive = row.steps > 0 && steps[row.steps - 1].kind == SamplerKind::kAdaptiveP;
  const uint64_t key = adaptive ? adaptive_p(row, tokens, steps[row.steps - 1].b)
                                : tokens.sample(row, [](const SampleToken& token) { return token.distance; });
  SampledRow sampled;
  sampled.token = id_of(key);
  if (row.wants_probability != 0) {
    const auto total = static_cast<float>(total_units(tokens));
    sampled.probability = sample_weight(tokens.shape.of(logit_of(key))) / (total / kSampleWeightUnits);
  }
  return sampled;
}

// Runs the chain of a row and samples a token.
template <class Tokens>
SLUICE_SAMPLER SampledRow run_chain(const SampleRow& row, const SamplerStep* steps, Tokens& tokens) {
  for (int32_t i = 0; i < row.steps; ++i) apply(steps[i], row, tokens);
  return sample_left(row, steps, tokens);
}

}  // namespace sluice::ops
