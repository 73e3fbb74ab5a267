// Which tokens a sequence contains and how often, for the penalties. One update per token, whatever the length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sluice/sampling_parameters.h"

namespace sluice {

class PenaltyCounts {
 public:
  struct Entry {
    TokenId token = 0;
    int output = 0;  // occurrences in the output; 0: only in the prompt
    int all = 0;     // occurrences; 0: none any more
  };

  static bool needed(const SamplingParams& params) {
    return uses(params, "penalties") && any_parameter(params, SamplingParameter::Effect::kPenalty);
  }

  // Only the last `window` tokens count; below 0: all.
  explicit PenaltyCounts(int window = -1) : window_(window) {}

  void add_prompt(std::span<const TokenId> tokens) {
    if (window_ >= 0) tokens = tokens.last(std::min(tokens.size(), static_cast<size_t>(window_)));
    for (const TokenId token : tokens) ++entry(token).all;
  }
  void add_output(TokenId token) { ++entry(token).output, ++entry(token).all; }
  // Removes what a new last token of the text has pushed out of the window.
  void slide(std::span<const TokenId> text, int prompt_length) {
    if (window_ < 0 || text.size() <= static_cast<size_t>(window_)) return;
    const size_t left = text.size() - 1 - static_cast<size_t>(window_);
    Entry& gone = entry(text[left]);
    --gone.all;
    if (left >= static_cast<size_t>(prompt_length)) --gone.output;
  }

  const std::vector<Entry>& entries() const { return entries_; }  // distinct tokens, by first occurrence

 private:
  static constexpr int32_t kFree = -1;

  Entry& entry(TokenId token) {
    if (2 * (entries_.size() + 1) > places_.size()) grow();
    int32_t& place = place_of(token);
    if (place == kFree) {
      place = static_cast<int32_t>(entries_.size());
      entries_.push_back({.token = token});
    }
    return entries_[static_cast<size_t>(place)];
  }

  // Where the token's entry is noted, or would be.
  int32_t& place_of(TokenId token) {
    const size_t mask = places_.size() - 1;
    size_t at = (static_cast<uint32_t>(token) * 0x9e3779b1u >> 7) & mask;
    while (places_[at] != kFree && entries_[static_cast<size_t>(places_[at])].token != token) at = (at + 1) & mask;
    return places_[at];
  }

  void grow() {
    places_.assign(std::max<size_t>(64, 2 * places_.size()), kFree);
    for (size_t i = 0; i < entries_.size(); ++i) place_of(entries_[i].token) = static_cast<int32_t>(i);
  }

  int window_;
  std::vector<Entry> entries_;
  std::vector<int32_t>
      places_;  // a hash table of indices of entries_, open addressing; a power of two, at most half full
};

}  // namespace sluice
