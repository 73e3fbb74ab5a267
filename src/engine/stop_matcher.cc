// One automaton per stop string; there are few of them.
#include "engine/stop_matcher.h"

#include <algorithm>

namespace sluice {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : include_(include) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Pattern p{.text = std::move(text), .fallback = {}, .state = 0};
    p.fallback.assign(p.text.size(), 0);
    for (size_t i = 1; i < p.text.size(); ++i) {
      int k = p.fallback[i - 1];
      while (k > 0 && p.text[i] != p.text[k]) k = p.fallback[k - 1];
      p.fallback[i] = p.text[i] == p.text[k] ? k + 1 : 0;
    }
    patterns_.push_back(std::move(p));
  }
}

void StopMatcher::advance(Pattern& p, char byte) const {
  while (p.state > 0 && p.text[p.state] != byte) p.state = p.fallback[p.state - 1];
  if (p.text[p.state] == byte) ++p.state;
}

std::string StopMatcher::push(std::string_view piece, bool armed) {
  if (matched()) return {};
  if (patterns_.empty()) return std::string(piece);
  if (!armed) {
    std::string out = std::move(held_);
    held_.clear();
    for (Pattern& p : patterns_) p.state = 0;
    return out.append(piece);
  }
  for (const char byte : piece) {
    held_ += byte;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      advance(p, byte);
      // Of several that end here the longest begins first.
      if (p.state == static_cast<int>(p.text.size())) {
        if (match_ < 0 || p.text.size() > patterns_[match_].text.size()) match_ = static_cast<int>(i);
      }
    }
    if (matched()) {
      if (!include_) held_.resize(held_.size() - match().size());
      return std::move(held_);
    }
  }
  int undecided = 0;
  for (const Pattern& p : patterns_) undecided = std::max(undecided, p.state);
  std::string out = held_.substr(0, held_.size() - undecided);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() {
  if (matched()) return {};
  return std::move(held_);
}

}  // namespace sluice
