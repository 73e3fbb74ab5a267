// UTF-8 coding, and character properties and decompositions from utf8proc.
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace sluice::tokenizer {
namespace {

enum class Utf8 { kValid, kInvalid, kIncomplete };

struct Utf8Scan {
  Utf8 status;
  size_t length;  // length of the character, of the piece to replace, or of the available part
};

// Examines the first character of a non-empty text.
Utf8Scan scan_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {Utf8::kValid, 1};
  if (first < 0xC2 || first > 0xF4) return {Utf8::kInvalid, 1};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and values beyond U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8::kIncomplete, i};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {Utf8::kInvalid, i};
  }
  return {Utf8::kValid, length};
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool in(char32_t c, char32_t low, char32_t high) { return c >= low && c <= high; }

// Orders marks by combining class. utf8proc's own ordering swaps neighbors, which is quadratic on long runs.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + begin, text.begin() + end,
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if (word & 0x8080808080808080u) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const Utf8Scan scan = scan_utf8(text.substr(at));
    if (scan.status != Utf8::kValid) break;
    at += scan.length;
  }
  return at;
}

void LossyUtf8::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined += bytes;
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Utf8Scan scan = scan_utf8(bytes);
    if (scan.status == Utf8::kIncomplete) {
      held_ = bytes;
      return;
    }
    out += kReplacementCharacter;
    bytes.remove_prefix(scan.length);
  }
}

void LossyUtf8::finish(std::string& out) {
  if (!held_.empty()) out += kReplacementCharacter;
  held_.clear();
}

bool is_whitespace(char32_t c) {
  return c == ' ' || in(c, 0x09, 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 || in(c, 0x2000, 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return in(c, '0', '9');
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return in(c, '!', '/') || in(c, ':', '@') || in(c, '[', '`') || in(c, '{', '~');
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  if (c < 0x80) return in(c, 'a', 'z') || in(c, 'A', 'Z') || in(c, '0', '9') || c == '_';
  const auto k = category(c);
  if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) return true;  // L, M, Nd, Nl
  if (k == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
  // Alphabetic symbols: circled and squared letters.
  return in(c, 0x24B6, 0x24E9) || in(c, 0x1F130, 0x1F149) || in(c, 0x1F150, 0x1F169) || in(c, 0x1F170, 0x1F189);
}

bool is_mark(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_other(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool is_assigned(char32_t c) {
  const auto k = category(c);
  return k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_CO && k != UTF8PROC_CATEGORY_CS;
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the only letter with two lower-case characters
    out += "i\xCC\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
    return std::string(text);
  }
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatible ? UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) {
    utf8proc_int32_t parts[32];  // the longest decomposition has 18
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, options, nullptr);
    CHECK(n >= 0 && n <= 32, "decomposition of U+{:04X}: {}", static_cast<uint32_t>(c), n);
    points.insert(points.end(), parts, parts + n);
  });
  order_marks(points);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                            static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    CHECK(n >= 0, "composition: {}", n);
    points.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto c : points) append_utf8(out, static_cast<char32_t>(c));
  return out;
}

size_t first_grapheme(std::string_view text) {
  CodePoint c = code_point_at(text, 0);
  size_t at = c.length;
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    const CodePoint next = code_point_at(text, at);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state)) {
      break;
    }
    at += next.length;
    c = next;
  }
  return at;
}

}  // namespace sluice::tokenizer
