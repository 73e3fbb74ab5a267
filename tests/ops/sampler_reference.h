// The samplers of a chain in double precision: everything is sorted, and written as its inventor states it. Slow, and
// easy to check.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/sample_chain.h"

namespace sluice::ops::reference {

struct DoubleToken {
  int id = 0;
  double logit = 0.0;
};
using DoubleTokens = std::vector<DoubleToken>;  // by logit, the largest first

inline std::vector<double> probabilities(const DoubleTokens& tokens) {
  std::vector<double> p;
  for (const DoubleToken& token : tokens) p.push_back(std::exp(token.logit - tokens[0].logit));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

inline double entropy(const std::vector<double>& p) {
  double sum = 0.0;
  for (const double x : p) sum -= x > 0 ? x * std::log(x) : 0.0;
  return sum;
}

// Keeps the tokens whose index is accepted, in order.
template <class Accept>
DoubleTokens filtered(const DoubleTokens& tokens, Accept accept) {
  DoubleTokens kept;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (accept(i)) kept.push_back(tokens[i]);
  }
  return kept;
}

inline DoubleTokens top_n_sigma(const DoubleTokens& tokens, double n) {
  double mean = 0.0, variance = 0.0;
  for (const DoubleToken& token : tokens) mean += token.logit / static_cast<double>(tokens.size());
  for (const DoubleToken& token : tokens)
    variance += std::pow(token.logit - mean, 2) / static_cast<double>(tokens.size());
  const double least = tokens[0].logit - n * std::sqrt(variance);
  return filtered(tokens, [&](size_t i) { return tokens[i].logit >= least; });
}

inline DoubleTokens top_p(const DoubleTokens& tokens, double mass) {
  const std::vector<double> p = probabilities(tokens);
  double before = 0.0;
  return filtered(tokens, [&](size_t i) { return std::exchange(before, before + p[i]) < mass; });
}

inline DoubleTokens typical_p(const DoubleTokens& tokens, double mass) {
  const std::vector<double> p = probabilities(tokens);
  const double h = entropy(p);
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return std::abs(-std::log(p[i]) - h); });
  std::vector<bool> kept(tokens.size());
  double sum = 0.0;
  for (const size_t i : order) {
    kept[i] = true;
    sum += p[i];
    if (sum >= mass) break;
  }
  return filtered(tokens, [&](size_t i) { return kept[i]; });
}

inline DoubleTokens mirostat_1(const DoubleTokens& tokens, double surprise, double vocabulary) {
  const std::vector<double> p = probabilities(tokens);
  double products = 0.0, squares = 0.0;
  for (size_t i = 0; i < 99 && i + 1 < p.size(); ++i) {
    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    products += t * std::log(p[i] / p[i + 1]), squares += t * t;
  }
  const double s = products / squares, epsilon = s - 1;
  const double k = std::pow(epsilon * std::pow(2, surprise) / (1 - std::pow(vocabulary, -epsilon)), 1 / s);
  return filtered(tokens, [&](size_t i) { return static_cast<double>(i) < std::max(std::floor(k), 1.0); });
}

inline DoubleTokens heated(DoubleTokens tokens, double temperature) {
  for (DoubleToken& token : tokens) token.logit /= temperature;
  return tokens;
}

// What one sampler leaves, other than XTC.
inline DoubleTokens after(const DoubleTokens& tokens, const SamplerStep& step) {
  const std::vector<double> p = probabilities(tokens);
  const double b = step.b, c = step.c;
  switch (step.kind) {
    case SamplerKind::kTemperature: {
      if (step.b == 0) return heated(tokens, 1 / step.a);
      const double low = std::max(0.0, 1 / step.a - b), high = 1 / step.a + b;
      const double share = entropy(p) / std::log(static_cast<double>(p.size()));
      return heated(tokens, low + (high - low) * std::pow(share, c));
    }
    case SamplerKind::kTopNSigma:
      return top_n_sigma(tokens, b);
    case SamplerKind::kTopK:
      return filtered(tokens, [&](size_t i) { return i < static_cast<size_t>(step.count); });
    case SamplerKind::kTopP:
      return top_p(tokens, step.a);
    case SamplerKind::kMinP:
      return filtered(tokens, [&](size_t i) { return p[i] >= b * p[0]; });
    case SamplerKind::kTypicalP:
      return typical_p(tokens, step.a);
    case SamplerKind::kTopA:
      return filtered(tokens, [&](size_t i) { return p[i] >= b * p[0] * p[0]; });
    case SamplerKind::kEpsilon:
      return filtered(tokens, [&](size_t i) { return i == 0 || p[i] >= b; });
    case SamplerKind::kEta: {
      const double least = std::min(b, std::sqrt(b) * std::exp(-entropy(p)));
      return filtered(tokens, [&](size_t i) { return i == 0 || p[i] >= least; });
    }
    case SamplerKind::kSmoothing: {
      DoubleTokens changed = tokens;
      for (DoubleToken& token : changed) {
        const double d = token.logit - tokens[0].logit;
        token.logit = -(3 - c) / 2 * b * d * d + (c - 1) / 2 * b * d * d * d + tokens[0].logit;
      }
      return changed;
    }
    case SamplerKind::kMirostat1:
      return mirostat_1(tokens, b, step.count);
    case SamplerKind::kMirostat2:
      return filtered(tokens, [&](size_t i) { return i == 0 || -std::log2(p[i]) <= b; });
    case SamplerKind::kXtc:
    case SamplerKind::kAdaptiveP:
      break;
  }
  return tokens;
}

// Adds the probabilities of what a chain samples, times `share`, to those of `all`, by id.
inline void add_distribution(const DoubleTokens& tokens, std::span<const SamplerStep> chain, double share,
                             std::vector<double>& all) {
  const std::vector<double> p = probabilities(tokens);
  if (chain.empty()) {
    for (size_t i = 0; i < p.size(); ++i) all[static_cast<size_t>(tokens[i].id)] += share * p[i];
    return;
  }
  const SamplerStep& step = chain[0];
  if (step.kind == SamplerKind::kXtc) {
    const auto likely = static_cast<size_t>(std::ranges::count_if(p, [&](double x) { return x >= step.c; }));
    const double chance = step.c <= 0.5f && likely >= 2 ? static_cast<double>(step.b) : 0.0;
    add_distribution(filtered(tokens, [&](size_t i) { return i + 1 >= likely; }), chain.subspan(1), share * chance,
                     all);
    return add_distribution(tokens, chain.subspan(1), share * (1 - chance), all);
  }
  if (step.kind == SamplerKind::kAdaptiveP) {
    DoubleTokens changed = tokens;
    for (size_t i = 0; i < p.size(); ++i) {
      const double far = std::abs(p[i] - static_cast<double>(step.b)) / 0.3;
      changed[i].logit = 5 - 10 * far * far / (1 + far);
    }
    return add_distribution(changed, chain.subspan(1), share, all);
  }
  add_distribution(after(tokens, step), chain.subspan(1), share, all);
}

// Returns the probability with which each token of a row is sampled after a chain.
inline std::vector<double> distribution(std::span<const float> logits, std::span<const SamplerStep> chain) {
  DoubleTokens tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -INFINITY) tokens.push_back({static_cast<int>(i), static_cast<double>(logits[i])});
  }
  std::ranges::stable_sort(tokens, std::greater<>(), &DoubleToken::logit);
  std::vector<double> all(logits.size());
  add_distribution(tokens, chain, 1.0, all);
  return all;
}

}  // namespace sluice::ops::reference
