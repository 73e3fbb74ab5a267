// A language over token ids for scheduler tests. A hash of the tokens so far decides what may come next: one forced
// token, some tokens, all of them, or nothing, as the text has ended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "batch/constraint.h"
#include "batch/sample_task.h"

namespace sluice {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15 + b + 0x632BE59BD9B4E019;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

class FakeConstraint final : public Constraint {
 public:
  FakeConstraint(uint64_t salt, int vocab) : state_(mix(salt, 0)), vocab_(vocab) {}

  std::unique_ptr<Constraint> copy() const override { return std::make_unique<FakeConstraint>(*this); }
  bool ended() const override { return state_ % 40 == 0; }
  bool accept(TokenId token) override {
    if (!allows(token)) return false;
    state_ = mix(state_, static_cast<uint64_t>(token));
    return true;
  }
  void fill_mask(std::span<uint32_t> words) const override {
    std::ranges::fill(words, 0);
    for (TokenId token = 0; token < vocab_; ++token) {
      if (allows(token)) words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    }
  }
  void forced(std::span<const TokenId>, int most, std::vector<TokenId>& next) const override {
    FakeConstraint after = *this;
    for (; most > 0 && after.forces() && !after.ended(); --most) {
      next.push_back(after.some_token());
      after.accept(next.back());
    }
  }

 private:
  bool forces() const { return state_ / 64 % 2 == 0; }
  TokenId some_token() const { return static_cast<TokenId>(state_ / 256 % static_cast<uint64_t>(vocab_)); }
  bool allows(TokenId token) const {
    if (token == some_token()) return true;
    return !forces() && (state_ / 128 % 2 == 0 || mix(state_, static_cast<uint64_t>(token)) % 3 == 0);
  }

  uint64_t state_;
  int vocab_;
};

// The tokens that a sampler may choose for the task, in order of their ids.
inline std::vector<TokenId> allowed_tokens(const SampleTask& task, int vocab) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab) + 31) / 32, ~0u);
  if (task.constraint != nullptr) task.constraint->fill_mask(mask);
  const bool holds_end =
      task.position < task.params->min_tokens || (task.constraint != nullptr && task.params->ignore_eos);
  std::vector<TokenId> all, without_ends;
  for (TokenId token = 0; token < vocab; ++token) {
    if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) == 0) continue;
    all.push_back(token);
    if (std::ranges::find(task.end_tokens, token) == task.end_tokens.end()) without_ends.push_back(token);
  }
  return holds_end && !without_ends.empty() ? without_ends : all;
}

}  // namespace sluice
