// Which tokens a sequence contains and how often, for the penalties. One update per token, whatever the length.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "sluice/request.h"

namespace sluice {

class PenaltyCounts {
 public:
  struct Entry {
    TokenId token = 0;
    int output = 0;  // occurrences in the output; 0: only in the prompt
  };

  static bool needed(const SamplingParams& params) {
    return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
  }

  void add_prompt(std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) entry(token);
  }
  void add_output(TokenId token) { ++entry(token).output; }

  const std::vector<Entry>& entries() const { return entries_; }  // distinct tokens, by first occurrence

 private:
  Entry& entry(TokenId token) {
    const auto [it, added] = index_.try_emplace(token, static_cast<int>(entries_.size()));
    if (added) entries_.push_back({.token = token});
    return entries_[it->second];
  }

  std::vector<Entry> entries_;
  std::unordered_map<TokenId, int> index_;  // token to its entry
};

}  // namespace sluice
