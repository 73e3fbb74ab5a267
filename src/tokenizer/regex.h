// Regular expressions of tokenizer.json, which are written for Oniguruma (Ruby's syntax), on PCRE2 with its JIT.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/pieces.h"

namespace sluice::tokenizer {

// Immutable; any number of threads may match at once.
class Regex {
 public:
  // Throws std::invalid_argument with PCRE2's message when the pattern cannot be compiled.
  explicit Regex(std::string_view oniguruma_pattern);

  // Successive matches in a text of valid UTF-8, as Oniguruma's scan gives them: an empty match right behind the
  // previous match is skipped. The text must outlive it.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    // Throws Error(kInvalidRequest) when the text makes the pattern take too many steps.
    std::optional<Span> next();

   private:
    std::optional<Span> match(size_t from);
    std::optional<Span> match_with_more_stack(size_t from, int error);

    const Regex& regex_;
    std::string_view text_;
    std::shared_ptr<void> match_data_;
    std::shared_ptr<void> jit_stack_;  // made when the 32 KiB of the machine stack do not do
    size_t position_ = 0;
    std::optional<size_t> last_end_;
  };

 private:
  std::shared_ptr<const void> code_;
  std::shared_ptr<void> match_context_;
  bool jit_ = false;
};

}  // namespace sluice::tokenizer
