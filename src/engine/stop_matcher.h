// Finds stop strings in text that arrives in pieces. O(1) amortised per byte and stop string (Knuth, Morris, Pratt);
// text that may be the beginning of a stop string is held back until it is decided.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class StopMatcher {
 public:
  // Empty strings never match. With `include`, the stop string itself stays in the text.
  StopMatcher(std::vector<std::string> stops, bool include);

  // The text that is safe to show after `piece`. Once matched(), further text is dropped. With `armed` false the piece
  // passes through and no match can begin in it (min_tokens).
  std::string push(std::string_view piece, bool armed = true);
  // What was held back when the text ended without a match.
  std::string finish();
  bool matched() const { return match_ >= 0; }
  const std::string& match() const { return patterns_[match_].text; }

 private:
  struct Pattern {
    std::string text;
    std::vector<int> fallback;  // longest proper border of each prefix
    int state = 0;              // bytes of the text matched so far
  };
  void advance(Pattern& p, char byte) const;

  std::vector<Pattern> patterns_;
  bool include_;
  std::string held_;
  int match_ = -1;
};

}  // namespace sluice
