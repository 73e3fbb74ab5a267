#include "grammar/text_reader.h"

#include <fmt/core.h>

#include <algorithm>

#include "grammar/limits.h"

namespace sluice::grammar {

void TextReader::fail_at(size_t at, const std::string& what) const {
  size_t line = 1, begin = 0;
  for (size_t i = 0; i < at && i < text_.size(); ++i) {
    if (text_[i] == '\n') ++line, begin = i + 1;
  }
  throw GrammarError(fmt::format("grammar, line {}, column {}: {}", line, at - begin + 1, what));
}

char32_t TextReader::character() {
  if (!more()) fail("the grammar ends too early");
  const auto lead = static_cast<uint8_t>(text_[at_++]);
  if (lead < 0x80) return lead;
  const int length = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  if (lead < 0xc2 || lead > 0xf4) fail("invalid UTF-8");
  char32_t c = lead & (0x3fu >> length);
  for (int i = 0; i < length; ++i) {
    if (!more() || (static_cast<uint8_t>(text_[at_]) & 0xc0) != 0x80) fail("invalid UTF-8");
    c = c << 6 | (static_cast<uint8_t>(text_[at_++]) & 0x3f);
  }
  const char32_t least = length == 3 ? 0x10000 : length == 2 ? 0x800 : 0x80;
  if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) fail("invalid UTF-8");
  return c;
}

char32_t TextReader::hex(int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const char c = peek();
    const auto lower = static_cast<char>(c | 0x20);
    if (!digit(c) && !(lower >= 'a' && lower <= 'f')) fail("expected a hexadecimal digit");
    value = value << 4 | static_cast<char32_t>(digit(c) ? c - '0' : lower - 'a' + 10);
  }
  if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) fail("this is no character");
  return value;
}

int TextReader::number(int most, int if_none) {
  if (!digit(peek())) return if_none;
  int64_t n = 0;
  for (; digit(peek()); ++at_) n = std::min<int64_t>(10 * n + (peek() - '0'), int64_t{most} + 1);
  if (n > most) fail(fmt::format("the number is above {}", most));
  return static_cast<int>(n);
}

}  // namespace sluice::grammar
