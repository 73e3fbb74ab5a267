// What the scheduler asks of a sampler, and what it gets back: plain values that need neither ops nor logits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "batch/constraint.h"
#include "batch/penalty_counts.h"
#include "sluice/request.h"

namespace sluice {

// What a stateful sampler remembers of a sequence; only the sampler knows what the numbers are.
struct SamplerState {
  bool begun = false;
  float values[2] = {};
};

// One token to sample, or one known token to score.
struct SampleTask {
  int row = 0;          // row of the logits
  TokenId target = -1;  // >= 0: nothing is sampled; this token is scored (prompt log-probabilities)
  const SamplingParams* params = nullptr;
  const PenaltyCounts* counts = nullptr;  // null when the parameters have no penalty
  // Null when no parameter looks at the text so far. They are the prompt and the output before this token.
  const std::vector<TokenId>* tokens = nullptr;
  int prompt_length = 0;
  int given = 0;                          // leading ones of `tokens` that only stand for vectors
  const SamplerState* state = nullptr;    // null when no sampler is stateful
  std::span<const TokenId> end_tokens{};  // cannot be sampled while position < min_tokens
  // Null: none. It is asked when the task is sampled, with all tokens before this one. Where it leaves only the end,
  // the end may come before min_tokens, if the constraint decides it.
  const Constraint* constraint = nullptr;
  uint64_t seed = 0;
  int choice = 0;
  int position = 0;   // number of output tokens before this one
  int logprobs = -1;  // alternatives to report; 0: only the token's own; -1: nothing
  // > 0: so many of the likeliest tokens are listed in SampleResult::candidates, and nothing is sampled.
  int candidates = 0;
  bool plain = false;  // known to have no edits(): the parameters need not be checked again

  // The tokens that are text. The prompt's are `prompt_length - given`.
  std::span<const TokenId> text() const { return std::span(*tokens).subspan(static_cast<size_t>(given)); }
};

inline bool needs_state(const SamplingParams& params) {
  return any_parameter(params, [](const SamplingParameter& row) { return row.stateful; });
}
// Whether these parameters can change logits before a token is sampled (bias, masks, penalties).
inline bool edits(const SamplingParams& params) {
  return !params.logit_bias.empty() || !params.allowed_token_ids.empty() || params.min_tokens > 0 ||
         PenaltyCounts::needed(params) || needs_history(params);
}

// A token that may come next.
struct TokenCandidate {
  TokenLogprob token{};      // of the raw logits
  double probability = 0.0;  // after bias, masks and penalties
};

struct SampleResult {
  TokenId token = -1;
  TokenLogprobs logprobs;  // when asked for; of the raw logits, before bias, penalties and temperature
  std::vector<TokenCandidate> candidates{};  // the likeliest ones after bias, masks and penalties, in order
  std::string_view error;                    // not empty: there is no token; the text is one of the constants below
  SamplerState state{};                      // with SampleTask::state: what follows it
  bool bad_logits = false;  // the error is in the logits (NaN, infinite), not in the request (every token masked)
};

// Errors of results.
inline constexpr const char* kBadLogits = "the model's logits are not finite";
inline constexpr const char* kNotAllowed = "a token was sampled that the constraint does not allow";
inline constexpr const char* kAllMasked = "no token can be chosen: every one is masked or has no finite logit";

// The seed of a request that brings none. It depends on the engine's seed and the request's arrival number.
uint64_t derive_seed(uint64_t engine_seed, uint64_t arrival);

}  // namespace sluice
