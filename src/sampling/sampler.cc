// A task reads its row two to four times, at memory speed. The tasks are spread over the threads.
#include "sampling/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/philox.h"
#include "sampling/selection.h"

namespace sluice {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Returns whether a bias, a mask or a penalty changes the task's logits before sampling.
bool edits_logits(const SampleTask& task) {
  const SamplingParams& params = *task.params;
  return !params.logit_bias.empty() || !params.allowed_token_ids.empty() || task.counts != nullptr ||
         (task.position < params.min_tokens && !task.end_tokens.empty());
}

void apply_penalties(std::span<float> logits, const SamplingParams& params, const PenaltyCounts& counts) {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  for (const PenaltyCounts::Entry& entry : counts.entries()) {
    CHECK(entry.token >= 0 && entry.token < static_cast<TokenId>(logits.size()), "token {}", entry.token);
    float& logit = logits[entry.token];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (entry.output > 0) logit -= frequency * static_cast<float>(entry.output) + presence;
  }
}

// Applies logit bias, allowed tokens, min_tokens and penalties.
void edit_logits(std::span<const float> raw, const SampleTask& task, std::vector<float>& logits) {
  const SamplingParams& params = *task.params;
  const auto vocab = static_cast<TokenId>(raw.size());
  if (params.allowed_token_ids.empty()) {
    logits.assign(raw.begin(), raw.end());
  } else {
    logits.assign(raw.size(), kMasked);
    for (const TokenId id : params.allowed_token_ids) {
      CHECK(id >= 0 && id < vocab, "allowed_token_ids has {}", id);
      logits[id] = raw[id];
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    CHECK(id >= 0 && id < vocab, "logit_bias has {}", id);
    logits[id] += bias;
  }
  if (task.position < params.min_tokens) {
    for (const TokenId id : task.end_tokens) {
      if (id >= 0 && id < vocab) logits[id] = kMasked;
    }
  }
  if (task.counts) apply_penalties(logits, params, *task.counts);
}

// Samples from the whole row.
TokenId sample_from_row(std::span<const float> logits, float max, float scale, double u, std::vector<float>& weights,
                        std::vector<double>& chunk_sum) {
  const double total = weigh_row(logits, max, scale, weights, chunk_sum);
  double left = u * total;
  size_t chunk = 0;
  while (chunk + 1 < chunk_sum.size() && left >= chunk_sum[chunk]) left -= chunk_sum[chunk++];
  // Rounding may leave a remainder at the end. The sample is then the last token with a positive weight.
  const auto last_of = [&](size_t end) {
    while (end > 1 && weights[end - 1] == 0.0f) --end;
    return end - 1;
  };
  const size_t end = std::min(logits.size(), (chunk + 1) * kChunk);
  for (size_t i = chunk * kChunk; i < end; ++i) {
    left -= weights[i];
    if (left < 0.0) return static_cast<TokenId>(i);
  }
  return static_cast<TokenId>(last_of(end));
}

TokenId sample_from(const std::vector<Candidate>& candidates, double u) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  double left = u * total;
  TokenId last = candidates.front().id;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0.0f) continue;
    last = candidate.id;
    left -= candidate.weight;
    if (left < 0.0) break;
  }
  return last;
}

// Samples from candidates with weights. They must include the row's largest logit and all tokens that top-k, top-p and
// min-p keep of a row of `vocab` logits. `total` is the weight of the whole row; it is unused with top-k. Overwrites
// both vectors.
TokenId sample_candidate(std::vector<Candidate>& candidates, double total, int vocab, const SampleTask& task,
                         std::vector<Candidate>& scratch) {
  const SamplingParams& params = *task.params;
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (params.top_k > 0 && params.top_k < vocab) {
    const auto most = static_cast<size_t>(params.top_k);
    if (candidates.size() > most) {
      std::ranges::nth_element(candidates, candidates.begin() + params.top_k, before);
      candidates.resize(most);
    }
    total = 0.0;
    for (const Candidate& candidate : candidates) total += candidate.weight;
  }
  std::ranges::sort(candidates, by_id);
  if (params.top_p < 1.0) keep_nucleus(candidates, params.top_p * total, scratch);
  if (params.min_p > 0.0) {
    std::erase_if(candidates, [&](const Candidate& c) { return c.weight < static_cast<float>(params.min_p); });
  }
  return sample_from(candidates, uniform_sample(task.seed, task.choice, task.position));
}

}  // namespace

// Buffers of one thread.
struct Sampler::Scratch {
  std::vector<float> logits, weights, chunk_max;
  std::vector<double> chunk_sum;
  std::vector<Candidate> candidates, selected;
};

Sampler::Sampler(ThreadPool& threads) : threads_(threads), scratch_(threads.threads()) {}
Sampler::~Sampler() = default;

// Samples one token from softmax(logits / temperature), filtered by top-k, then top-p, then min-p.
TokenId Sampler::sample(std::span<const float> logits, float max, const SampleTask& task, Scratch& scratch) {
  const SamplingParams& params = *task.params;
  const auto scale = static_cast<float>(1.0 / params.temperature);
  const bool top_k = params.top_k > 0 && params.top_k < static_cast<int>(logits.size());
  const bool top_p = params.top_p < 1.0;
  std::vector<Candidate>& candidates = scratch.candidates;
  const auto own_weight = [&](const Candidate& c) { return relative_weight(c.logit, max, scale); };
  const auto row_weight = [&](const Candidate& c) { return scratch.weights[c.id]; };
  const auto sum_of = [&](auto&& weight) {
    double sum = 0.0;
    for (Candidate& candidate : candidates) sum += candidate.weight = weight(candidate);
    return sum;
  };
  // Gathers the tokens with a weight of at least exp(log_weight), and because of rounding a few with less.
  const auto gather_above = [&](double log_weight) {
    const double slack = 1e-5 * (1.0 - log_weight) / scale + 1e-6 * std::abs(max);
    gather(logits, scratch.chunk_max, static_cast<float>(max + log_weight / scale - slack), candidates);
  };

  if (!top_k && !top_p && params.min_p <= 0.0) {
    const double u = uniform_sample(task.seed, task.choice, task.position);
    return sample_from_row(logits, max, scale, u, scratch.weights, scratch.chunk_sum);
  }
  double total = 0.0;
  if (top_k) {
    gather_top(logits, scratch.chunk_max, params.top_k, candidates, scratch.selected);
    sum_of(own_weight);
  } else if (top_p) {
    total = weigh_row(logits, max, scale, scratch.weights, scratch.chunk_sum);
    // The nucleus is usually small, so try the most likely tokens before the whole row.
    for (const double log_weight : {-6.0, -12.0, -24.0, -1e30}) {
      gather_above(log_weight);
      if (sum_of(row_weight) >= params.top_p * total) break;
    }
  } else {
    gather_above(std::log(params.min_p));
    sum_of(own_weight);
  }
  return sample_candidate(candidates, total, static_cast<int>(logits.size()), task, scratch.selected);
}

TokenLogprobs Sampler::logprobs(std::span<const float> logits, float max, TokenId token, int n, Scratch& scratch) {
  const double log_sum = max + std::log(weigh_row(logits, max, 1.0f, scratch.weights, scratch.chunk_sum));
  const auto logprob = [&](TokenId id) { return static_cast<float>(logits[id] - log_sum); };
  TokenLogprobs result;
  result.token = {.id = token, .logprob = logprob(token), .rank = rank_before(logits, token) + 1};
  if (n <= 0) return result;
  gather_top(logits, scratch.chunk_max, n, scratch.candidates, scratch.selected);
  std::ranges::sort(scratch.candidates, before);
  int rank = 0;
  for (const Candidate& candidate : scratch.candidates) {
    result.top.push_back({.id = candidate.id, .logprob = logprob(candidate.id), .rank = ++rank});
  }
  return result;
}

SampleResult Sampler::run(const LogitsView& view, const SampleTask& task, Scratch& scratch) {
  CHECK(task.row >= 0 && task.row < view.rows, "row {} of {}", task.row, view.rows);
  const std::span<const float> raw = view.row(task.row);
  SampleResult result;
  RowScan scan = scan_row(raw, scratch.chunk_max);
  if (!scan.finite || scan.max == kMasked) {
    result.error = kBadLogits;
    result.bad_logits = true;
    return result;
  }
  if (task.target >= 0) {
    CHECK(task.target < view.vocab, "target {}", task.target);
    result.token = task.target;
    result.logprobs = logprobs(raw, scan.max, task.target, task.logprobs, scratch);
    return result;
  }
  const float raw_max = scan.max;
  std::span<const float> logits = raw;
  if (edits_logits(task)) {
    edit_logits(raw, task, scratch.logits);
    logits = scratch.logits;
    scan = scan_row(logits, scratch.chunk_max);
    if (!scan.finite || scan.max == kMasked) {
      result.error = kAllMasked;
      return result;
    }
  }
  const bool greedy = task.params->temperature < kGreedyBelow;
  result.token = greedy ? argmax(logits, scan, scratch.chunk_max) : sample(logits, scan.max, task, scratch);
  if (task.logprobs >= 0) {
    if (logits.data() != raw.data()) scan_row(raw, scratch.chunk_max);
    result.logprobs = logprobs(raw, raw_max, result.token, task.logprobs, scratch);
  }
  return result;
}

std::vector<SampleResult> Sampler::sample(const LogitsView& logits, std::span<const SampleTask> tasks) {
  std::vector<SampleResult> results(tasks.size());
  if (tasks.size() == 1) {
    results[0] = run(logits, tasks[0], scratch_[0]);
    return results;
  }
  std::atomic<size_t> next{0};
  threads_.run([&](int worker, int) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();) {
      results[i] = run(logits, tasks[i], scratch_[worker]);
    }
  });
  return results;
}

}  // namespace sluice
