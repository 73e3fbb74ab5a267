// The "pattern" of Split and Replace: {"String": literal} or {"Regex": expression}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/files/json_field.h"
#include "tokenizer/regex.h"

namespace sluice::tokenizer {

class Pattern {
 public:
  // Throws Error(kUnsupportedModel) when the regular expression cannot be compiled.
  explicit Pattern(const Field& field);

  // Calls f(begin, end) for each match, from left to right. See Regex::Matches for empty matches and errors.
  template <class F>
  void for_each_match(std::string_view text, const Threads& threads, F&& f) const {
    if (regex_) return regex_->for_each_match(text, threads, f);
    for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos; at += literal_.size()) {
      f(at, at + literal_.size());
    }
  }

  std::string replace(std::string_view text, std::string_view content) const;

  // Returns the literal if the pattern is a non-empty one, else null.
  const std::string* literal() const { return regex_ ? nullptr : &literal_; }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace sluice::tokenizer
