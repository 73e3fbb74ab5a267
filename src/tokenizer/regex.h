// Regular expressions of tokenizer.json, which are written for Oniguruma (Ruby's syntax), executed by PCRE2 with its
// JIT.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

// Immutable. Any number of threads may match at the same time.
class Regex {
 public:
  // Throws std::invalid_argument with PCRE2's message when the pattern cannot be compiled.
  explicit Regex(std::string_view oniguruma_pattern);

  // Successive matches in a text of valid UTF-8, as Oniguruma's scan returns them: an empty match directly after the
  // previous match is skipped. The text must outlive the object.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    // Continues after a match that ended at `end`. Nothing else about earlier matches matters.
    Matches(const Regex& regex, std::string_view text, size_t end);
    // Starts the search at `from`, the first byte of a character.
    static Matches starting_at(const Regex& regex, std::string_view text, size_t from);
    // Throws Error(kInvalidRequest) when the pattern takes too many steps on this text.
    std::optional<Span> next();

   private:
    std::optional<Span> match(size_t from);
    std::optional<Span> match_with_more_stack(size_t from, int error);

    const Regex& regex_;
    std::string_view text_;
    std::shared_ptr<void> match_data_;
    std::shared_ptr<void> jit_stack_;  // created when the 32 KiB of the machine stack are not enough
    size_t position_ = 0;
    std::optional<size_t> last_end_;
  };

  // Calls f(begin, end) for each match, from left to right. For long texts, several threads search.
  template <class F>
  void for_each_match(std::string_view text, const Threads& threads, F&& f) const {
    if (threads.for_text(text.size()) > 1) {
      for (const Span found : matches(text, threads)) f(found.begin, found.end);
      return;
    }
    Matches matches(*this, text);
    while (const auto found = matches.next()) f(found->begin, found->end);
  }

 private:
  std::vector<Span> matches(std::string_view text, const Threads& threads) const;
  std::vector<Span> matches_between(std::string_view text, size_t from, size_t to) const;

  std::shared_ptr<const void> code_;
  std::shared_ptr<void> match_context_;
  bool jit_ = false;
};

}  // namespace sluice::tokenizer
