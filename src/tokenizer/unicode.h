// UTF-8 and the character classes tokenizers need. Classes are those of Hugging Face's tokenizers, up to the version of
// Unicode: its libraries follow several (8 for BERT's punctuation, 16 for white space), utf8proc follows 15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::tokenizer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value;
  uint32_t length;  // bytes
};

// The code point that starts at text[at]; the text must be valid UTF-8 and `at` a boundary inside it.
inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu), 4};
}

// Calls f(code point) for each of a valid text.
template <class F>
void for_each_code_point(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    f(c.value);
    at += c.length;
  }
}

// Appends a scalar value (no surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t c);

// Length of the longest prefix that is valid UTF-8: text.size() when all of it is.
size_t valid_utf8_prefix(std::string_view text);

// Turns a stream of bytes into valid UTF-8: every maximal piece of an ill-formed sequence becomes one U+FFFD (Unicode's
// recommended practice, and Rust's from_utf8_lossy). What may still become a character is held back.
class LossyUtf8 {
 public:
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  std::string held_;  // at most 3 bytes between calls
};

bool is_whitespace(char32_t c);       // White_Space
bool is_numeric(char32_t c);          // N
bool is_punctuation(char32_t c);      // P, or ASCII punctuation
bool is_word(char32_t c);             // \w: alphabetic, mark, decimal digit, connector punctuation, join control
bool is_mark(char32_t c);             // M
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_other(char32_t c);            // Cc, Cf, Co: what BERT calls control characters
bool is_assigned(char32_t c);         // neither Cn, Co nor Cs

// Full lower case mapping without context.
void append_lowercase(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Time is n log n at worst, for runs of combining marks in the wrong order.
std::string normalize(std::string_view text, NormalForm form);

// [begin, end) of the first extended grapheme cluster of a non-empty text is [0, result).
size_t first_grapheme(std::string_view text);

}  // namespace sluice::tokenizer
