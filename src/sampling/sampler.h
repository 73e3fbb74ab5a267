// From logits to tokens: logit bias, masks, penalties, temperature, top-k, top-p, min-p, one draw, and
// log-probabilities.
//
// A draw depends on the request alone: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3") keyed by the seed, its counter made of choice and position. Nothing sorts the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "sampling/penalty_counts.h"
#include "sampling/selection.h"
#include "sluice/request.h"

namespace sluice {

// fp32 logits, row after row.
struct LogitsView {
  const float* data = nullptr;
  int rows = 0;
  int vocab = 0;
  int64_t stride = 0;  // floats from row to row

  std::span<const float> row(int i) const { return {data + i * stride, static_cast<size_t>(vocab)}; }
};

// One token to draw, or one known token to score.
struct SampleTask {
  int row = 0;          // of the logits
  TokenId target = -1;  // >= 0: nothing is drawn, this token is scored (prompt log-probabilities)
  const SamplingParams* params = nullptr;
  const PenaltyCounts* counts = nullptr;  // null when the parameters have no penalty
  std::span<const TokenId> end_tokens{};  // cannot be drawn while position < min_tokens
  uint64_t seed = 0;
  int choice = 0;
  int position = 0;    // output tokens before this one
  int logprobs = -1;   // alternatives to report; 0: only the token's own; -1: nothing
  bool plain = false;  // known to have no edits(): the parameters need not be asked again
};

// May anything of these parameters change logits before a draw: bias, masks, penalties?
inline bool edits(const SamplingParams& params) {
  return !params.logit_bias.empty() || !params.allowed_token_ids.empty() || params.min_tokens > 0 ||
         PenaltyCounts::needed(params);
}

struct SampleResult {
  TokenId token = -1;
  TokenLogprobs logprobs;   // when asked for; of the raw logits, before bias, penalties and temperature
  std::string_view error;   // not empty: no token, and why; one of those below
  bool bad_logits = false;  // the error is in the logits (NaN, infinite), not in the request (every token masked)
};

// Errors of results.
inline constexpr const char* kBadLogits = "the model's logits are not finite";
inline constexpr const char* kAllMasked = "no token can be chosen: every one is masked or has no finite logit";

class Sampler {
 public:
  // Temperatures below this one are greedy.
  static constexpr double kGreedyBelow = 1e-5;

  explicit Sampler(ThreadPool& threads);
  ~Sampler();

  // One result per task, in their order; the same whatever the other tasks are and however many threads there are.
  // Greedy ties go to the lowest id. Among equal logits at the edge of top-k and top-p lower ids are kept. A fault
  // stays within its task. Token ids of the parameters must be below logits.vocab.
  std::vector<SampleResult> sample(const LogitsView& logits, std::span<const SampleTask> tasks);

 private:
  struct Scratch;

  SampleResult run(const LogitsView& logits, const SampleTask& task, Scratch& scratch);
  TokenId sample(std::span<const float> logits, float max, const SampleTask& task, Scratch& scratch);
  TokenLogprobs logprobs(std::span<const float> logits, float max, TokenId token, int n, Scratch& scratch);

  ThreadPool& threads_;
  std::vector<Scratch> scratch_;  // one per thread
};

// Seed of a request that brings none: depends on the engine's seed and the request's arrival number.
uint64_t derive_seed(uint64_t engine_seed, uint64_t arrival);

}  // namespace sluice
