// Reads the text of a grammar, character by character, and names the places of errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::grammar {

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  // Throw GrammarError with line and column, both from 1; a column counts bytes.
  [[noreturn]] void fail_at(size_t at, const std::string& what) const;
  [[noreturn]] void fail(const std::string& what) const { fail_at(at_, what); }

 protected:
  bool more() const { return at_ < text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!text_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  void skip_line() {
    while (more() && peek() != '\n' && peek() != '\r') ++at_;
  }

  char32_t character();               // one character of UTF-8
  char32_t hex(int digits);           // a character by its number
  int number(int most, int if_none);  // decimal digits, if there are any

  static bool digit(char c) { return c >= '0' && c <= '9'; }
  static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace sluice::grammar
