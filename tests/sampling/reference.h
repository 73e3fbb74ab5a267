// The simplest implementation of the sampler: it sorts everything and computes in double. It is slow and easy to check.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "base/philox.h"
#include "batch/sample_task.h"

namespace sluice::reference {

struct History {
  std::vector<TokenId> prompt, output;
};

inline std::vector<double> process(std::span<const float> raw, const SampleTask& task, const History& history) {
  const SamplingParams& p = *task.params;
  std::vector<double> logits(raw.begin(), raw.end());
  for (const auto& [id, bias] : p.logit_bias) logits[id] += bias;
  if (!p.allowed_token_ids.empty()) {
    const std::set<TokenId> allowed(p.allowed_token_ids.begin(), p.allowed_token_ids.end());
    for (size_t i = 0; i < logits.size(); ++i) {
      if (!allowed.contains(static_cast<TokenId>(i))) logits[i] = -INFINITY;
    }
  }
  if (task.position < p.min_tokens) {
    for (const TokenId id : task.end_tokens) logits[id] = -INFINITY;
  }
  std::set<TokenId> seen(history.prompt.begin(), history.prompt.end());
  std::map<TokenId, int> counts;
  for (const TokenId id : history.output) {
    seen.insert(id);
    ++counts[id];
  }
  for (const TokenId id : seen) {
    logits[id] = logits[id] > 0 ? logits[id] / p.repetition_penalty : logits[id] * p.repetition_penalty;
  }
  for (const auto& [id, count] : counts) logits[id] -= p.frequency_penalty * count + p.presence_penalty;
  return logits;
}

inline std::vector<TokenId> sorted(const std::vector<double>& logits) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
  return order;
}

// Returns the least logit that top-n-sigma keeps (Tang et al. 2024, arXiv:2411.07641).
inline double sigma_cutoff(const std::vector<double>& logits, double n) {
  std::vector<double> open;
  std::ranges::copy_if(logits, std::back_inserter(open), [](double x) { return x > -INFINITY; });
  const auto count = static_cast<double>(open.size());
  const double mean = std::accumulate(open.begin(), open.end(), 0.0) / count;
  double squares = 0.0;
  for (const double x : open) squares += (x - mean) * (x - mean);
  return std::ranges::max(open) - n * std::sqrt(squares / count);
}

// Returns the probability of every token after top-n-sigma, temperature, top-k, top-p and min-p. Returns an empty list
// if rounding could decide whether a token is kept.
inline std::vector<double> distribution(std::vector<double> logits, const SamplingParams& p) {
  constexpr double kUnclear = 1e-5;
  if (p.top_n_sigma > 0.0) {
    const double least = sigma_cutoff(logits, p.top_n_sigma);
    for (double& logit : logits) {
      if (std::abs(logit - least) < 1e-3) return {};
      if (logit < least) logit = -INFINITY;
    }
  }
  const std::vector<TokenId> order = sorted(logits);
  std::vector<double> weights(logits.size(), 0.0);
  size_t kept = p.top_k > 0 ? std::min<size_t>(p.top_k, order.size()) : order.size();
  double total = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    total += weights[order[i]] = std::exp((logits[order[i]] - logits[order[0]]) / p.temperature);
  }
  if (p.top_p < 1.0) {
    double sum = 0.0;
    size_t i = 0;
    while (i < kept && sum < p.top_p * total) {
      sum += weights[order[i++]];
      if (std::abs(sum / total - p.top_p) < kUnclear) return {};
    }
    kept = i;
  }
  double rest = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    double& weight = weights[order[i]];
    if (i < kept && p.min_p > 0.0 && std::abs(weight - p.min_p) < kUnclear * p.min_p && weight != 1.0) return {};
    if (i >= kept || weight < p.min_p) weight = 0.0;
    rest += weight;
  }
  for (double& weight : weights) weight /= rest;
  return weights;
}

// Returns the token with the largest log-probability + Gumbel noise, or none if rounding could decide it. The noise of
// token i is -ln(-ln u), where u is word i % 4 of Philox's numbers for counter {position, choice, i / 4, 2}.
inline std::optional<TokenId> pick(const std::vector<double>& probabilities, const SampleTask& task) {
  double best = -INFINITY, second = -INFINITY;
  TokenId token = -1;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] <= 0.0) continue;
    const auto words = philox4x32(
        {static_cast<uint32_t>(task.position), static_cast<uint32_t>(task.choice), static_cast<uint32_t>(i / 4), 2},
        {static_cast<uint32_t>(task.seed), static_cast<uint32_t>(task.seed >> 32)});
    const double u = (static_cast<double>(words[i % 4] >> 9) + 0.5) * 0x1p-23;
    const double score = std::log(probabilities[i]) - std::log(-std::log(u));
    second = std::max(second, std::min(score, best));
    if (score > best) best = score, token = static_cast<TokenId>(i);
  }
  if (best - second < 1e-4) return std::nullopt;
  return token;
}

inline TokenLogprobs logprobs(std::span<const float> raw, TokenId token, int n) {
  const std::vector<double> logits(raw.begin(), raw.end());
  const std::vector<TokenId> order = sorted(logits);
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x - logits[order[0]]);
  const double log_sum = logits[order[0]] + std::log(sum);
  const auto entry = [&](size_t rank) {
    const TokenId id = order[rank];
    return TokenLogprob{
        .id = id, .logprob = static_cast<float>(logits[id] - log_sum), .rank = static_cast<int>(rank) + 1};
  };
  TokenLogprobs result;
  result.token = entry(std::ranges::find(order, token) - order.begin());
  for (int i = 0; i < n && i < static_cast<int>(order.size()); ++i) {
    if (logits[order[i]] > -INFINITY) result.top.push_back(entry(i));
  }
  return result;
}

}  // namespace sluice::reference
