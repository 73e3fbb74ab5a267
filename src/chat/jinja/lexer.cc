// Splits template text into tokens: tags, whitespace control, comments, raw blocks, literals.
#include "chat/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "chat/jinja/text.h"
#include "sluice/error.h"

namespace sluice::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Converts line ends to
//  and drops one at the end of the template.
std::string normalize_lines(std::string_view source, bool drop_last) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (drop_last && !out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source, true)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    tokens_.push_back({TokenKind::kEnd, line_, ""});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { syntax_error(line_, message); }
  bool starts_with(std::string_view what, size_t at) const { return source_.compare(at, what.size(), what) == 0; }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t after = at;
      if (!text::is_space(text::next(source_, after))) break;
      at = after;
    }
    return at;
  }

  void move_to(size_t at) {
    line_ += static_cast<uint32_t>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(at_), source_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    line_starting_ = at > at_ ? source_[at - 1] == '\n' : line_starting_;
    at_ = at;
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Emits the text before a tag. The sign after the tag's brace and lstrip_blocks decide how it is stripped.
  void add_text(size_t end, char sign, bool lstrip) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = text::strip(text, text::kRight);
    } else if (sign != '+' && lstrip) {
      const size_t line_begin = text.rfind('\n') + 1;  // 0 if there is no newline
      if ((line_begin > 0 || line_starting_) && line_begin < text.size() &&
          text::strip(text.substr(line_begin)).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    move_to(end);
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : '\0';
  }

  // Matches the closing braces at `at` with their sign and the whitespace that they consume.
  std::optional<size_t> match_end(std::string_view close, size_t at, bool plus_and_trim) const {
    if (starts_with(close, at)) {
      at += close.size();
      return plus_and_trim && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
    }
    if (at >= source_.size() || !starts_with(close, at + 1)) return std::nullopt;
    if (source_[at] == '-') return skip_space(at + 1 + close.size());
    if (source_[at] == '+' && plus_and_trim) return at + 1 + close.size();
    return std::nullopt;
  }

  void root() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenKind::kText, source_.substr(at_));
        move_to(source_.size());
        return;
      }
      const char brace = source_[tag + 1];
      if (brace == '{' || brace == '%' || brace == '#') break;
      ++tag;
    }
    const char brace = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    add_text(tag, sign, brace != '{');
    const size_t inside = tag + 2 + (sign ? 1 : 0);
    if (brace == '#') {
      comment(inside);
    } else if (brace == '{') {
      add(TokenKind::kOutputBegin, "");
      code(inside, "}}", TokenKind::kOutputEnd);
    } else if (const auto body = match_raw(tag + 2)) {
      raw(*body);
    } else {
      add(TokenKind::kBlockBegin, "");
      code(inside, "%}", TokenKind::kBlockEnd);
    }
  }

  void comment(size_t at) {
    for (size_t close = source_.find("#}", at); close != std::string::npos; close = source_.find("#}", close + 1)) {
      const bool signed_close = close > at && (source_[close - 1] == '-' || source_[close - 1] == '+');
      move_to(*match_end("#}", signed_close ? close - 1 : close, true));
      return;
    }
    if (at < source_.size()) fail("missing end of comment tag");
    move_to(at);  // as in jinja2, the last tag of a template may stay open
  }

  // `at` is after "{%". If the tag is a raw tag, returns the end of "raw %}".
  std::optional<size_t> match_raw(size_t at) const {
    at = skip_space(at + (sign_at(at) ? 1 : 0));
    if (!starts_with("raw", at)) return std::nullopt;
    at = skip_space(at + 3);
    if (starts_with("-%}", at)) return skip_space(at + 3);
    if (starts_with("%}", at)) return at + 2;
    return std::nullopt;
  }

  void raw(size_t body) {
    move_to(body);
    for (size_t tag = source_.find("{%", body); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      const size_t word = skip_space(tag + 2 + (sign ? 1 : 0));
      if (!starts_with("endraw", word)) continue;
      const auto end = match_end("%}", skip_space(word + 6), true);
      if (!end) continue;
      add_text(tag, sign, true);
      move_to(*end);
      return;
    }
    if (body < source_.size()) fail("missing end of raw directive");
  }

  // Tokenizes the inside of a tag.
  void code(size_t at, std::string_view close, TokenKind end_kind) {
    move_to(at);
    std::vector<char> open;
    while (at_ < source_.size()) {
      if (open.empty()) {
        if (const auto end = match_end(close, at_, end_kind == TokenKind::kBlockEnd)) {
          add(end_kind, "");
          move_to(*end);
          return;
        }
      }
      const size_t after_space = skip_space(at_);
      if (after_space > at_) {
        move_to(after_space);
        continue;
      }
      const char c = source_[at_];
      if (is_digit(c)) {
        number();
      } else if (c == '_' || static_cast<unsigned char>(c) >= 0x80 || (c >= 'a' && c <= 'z') ||
                 (c >= 'A' && c <= 'Z')) {
        name();
      } else if (c == '\'' || c == '"') {
        string();
      } else {
        punctuation(open);
      }
    }
  }

  // Scans digits with single underscores between them, from `at`; returns their end.
  template <class IsDigit>
  size_t digits(size_t at, IsDigit&& accepts) const {
    size_t end = at;
    while (at < source_.size()) {
      if (accepts(source_[at])) {
        end = ++at;
      } else if (source_[at] == '_' && end == at && at + 1 < source_.size() && accepts(source_[at + 1])) {
        ++at;
      } else {
        break;
      }
    }
    return end;
  }

  std::optional<size_t> float_end() const {
    if (at_ > 0 && source_[at_ - 1] == '.') return std::nullopt;
    size_t end = digits(at_, is_digit);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits(end + 1, is_digit);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) return digits(exponent, is_digit);
    }
    return is_float ? std::optional(end) : std::nullopt;
  }

  std::string without_underscores(size_t begin, size_t end) const {
    std::string out = source_.substr(begin, end - begin);
    std::erase(out, '_');
    return out;
  }

  void number() {
    if (const auto end = float_end()) {
      add(TokenKind::kFloat, without_underscores(at_, *end));
      move_to(*end);
      return;
    }
    int base = 10;
    size_t end = 0;
    if (source_[at_] == '0') {
      const char letter = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : '\0';
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const auto in_base = [&](char c) {
        const int value = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
        return value < base;
      };
      end = base == 10 ? digits(at_, [](char c) { return c == '0'; }) : digits(at_ + 2, in_base);
      if (base != 10 && end == at_ + 2) {  // "0x" without digits is the number 0, then a name
        base = 10;
        end = at_ + 1;
      }
    } else {
      end = digits(at_, is_digit);
    }
    const std::string text = without_underscores(at_ + (base == 10 ? 0 : 2), end);
    int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (parsed.ec != std::errc()) fail(fmt::format("the integer {} is too large", text::clip(text)));
    add(TokenKind::kInteger, std::to_string(value));
    move_to(end);
  }

  // True for characters that may follow a letter in an identifier, such as marks.
  bool continues_identifier(size_t begin, size_t end) const {
    return text::is_identifier(fmt::format("a{}", std::string_view(source_).substr(begin, end - begin)));
  }

  void name() {
    size_t end = at_;
    while (end < source_.size()) {
      size_t after = end;
      const char32_t c = text::next(source_, after);
      if (c < 0x80 ? !text::is_word(c) : !text::is_word(c) && !continues_identifier(end, after)) {
        break;
      }
      end = after;
    }
    const std::string name = source_.substr(at_, end - at_);
    if (name.empty()) {
      size_t after = at_;
      text::next(source_, after);
      fail(fmt::format("unexpected character '{}'", source_.substr(at_, after - at_)));
    }
    if (!text::is_identifier(name)) fail("invalid character in identifier");
    add(TokenKind::kName, name);
    move_to(end);
  }

  void string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(fmt::format("unexpected character '{}'", quote));
    add(TokenKind::kString, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  void punctuation(std::vector<char>& open) {
    constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kSingles = "+-/*%~[](){}><=.:|,;";
    const std::string_view rest = std::string_view(source_).substr(at_);
    for (const std::string_view pair : kPairs) {
      if (rest.starts_with(pair)) {
        add(TokenKind::kOperator, std::string(pair));
        move_to(at_ + 2);
        return;
      }
    }
    const char c = rest[0];
    if (kSingles.find(c) == std::string_view::npos) fail(fmt::format("unexpected character '{}'", c));
    if (c == '(' || c == '[' || c == '{') {
      open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    move_to(at_ + 1);
  }

  // Resolves the escapes of a Python string literal as jinja2 does.
  std::string unescape(std::string_view s) const {
    std::string out;
    out.reserve(s.size());
    for (size_t at = 0; at < s.size();) {
      if (s[at] != '\\') {
        out += s[at++];
        continue;
      }
      ++at;  // the lexer ensured that a character follows
      const char c = s[at];
      constexpr std::string_view kLetters = "\\'\"abfnrtv";
      constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
        out += kMeanings[i];
        ++at;
      } else if (c == '\n') {
        ++at;
      } else if (c >= '0' && c <= '7') {
        append_code(out, number_in(s, at, 3, 8, false));
      } else if (c == 'x' || c == 'u' || c == 'U') {
        ++at;
        append_code(out, number_in(s, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true));
      } else if (c == 'N') {
        fail("\\N{...} escapes are not supported");
      } else if (static_cast<unsigned char>(c) < 0x80) {
        out += '\\';
        out += c;
        ++at;
      } else {  // jinja2 escapes other characters before it reads escapes, so the backslash swallows theirs
        const auto code = static_cast<uint32_t>(text::next(s, at));
        out += code < 0x100     ? fmt::format("\\x{:02x}", code)
               : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                : fmt::format("\\U{:08x}", code);
      }
    }
    return out;
  }

  uint32_t number_in(std::string_view s, size_t& at, size_t width, int base, bool exact) const {
    const size_t n = std::min(width, s.size() - at);
    uint32_t code = 0;
    const auto parsed = std::from_chars(s.data() + at, s.data() + at + n, code, base);
    const auto read = static_cast<size_t>(parsed.ptr - (s.data() + at));
    if (read == 0 || (exact && read != width)) fail("truncated escape in a string");
    at += read;
    return code;
  }

  void append_code(std::string& out, uint32_t code) const {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("a string escape is not a valid character");
    text::append(out, code);
  }

  const std::string source_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void syntax_error(uint32_t line, const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("chat template, line {}: {}", line, message));
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace sluice::jinja
