// UTF-8 and the character classes that tokenizers need. The classes are those of Hugging Face's tokenizers, except for
// the version of Unicode. Its libraries use several versions (8 for BERT's punctuation, 16 for white space); utf8proc
// uses 15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace sluice::tokenizer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value;
  uint32_t length;  // in bytes
};

// Returns the code point that starts at text[at]. The text must be valid UTF-8, and `at` a boundary inside it.
inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu), 4};
}

// Calls f(code point) for each character of a valid text.
template <class F>
void for_each_code_point(std::string_view text, F&& f) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    f(c.value);
    at += c.length;
  }
}

// Returns the length of the longest prefix that is valid UTF-8: text.size() when the whole text is.
size_t valid_utf8_prefix(std::string_view text);

// Converts a stream of bytes to valid UTF-8. Every maximal part of an ill-formed sequence becomes one U+FFFD (Unicode's
// recommended practice, and Rust's from_utf8_lossy). Bytes that may still become a character are held back.
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

// Appends the full lower-case mapping without context.
void append_lowercase(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Normalizes a text. The worst case is n log n, for runs of combining marks in the wrong order.
std::string normalize(std::string_view text, NormalForm form);

// Returns the length of the first extended grapheme cluster of a non-empty text.
size_t first_grapheme(std::string_view text);

}  // namespace sluice::tokenizer
