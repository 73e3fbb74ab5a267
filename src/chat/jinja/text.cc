// Python's str operations on UTF-8 text, using utf8proc's character data.
#include "chat/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace sluice::jinja::text {
namespace {

struct Range {
  char32_t first, last;
};
struct SpecialCase {
  char32_t code;
  char32_t upper[3], title[3];  // zero-terminated if shorter
};
#include "chat/jinja/unicode.inc"

template <size_t N>
bool contains(const Range (&ranges)[N], char32_t c) {
  const auto* range = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                       [](char32_t value, const Range& r) { return value < r.first; });
  return range != std::begin(ranges) && c <= range[-1].last;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

const SpecialCase* special_case(char32_t c) {
  const auto* row = std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), c,
                                     [](const SpecialCase& s, char32_t value) { return s.code < value; });
  return row != std::end(kSpecialCases) && row->code == c ? row : nullptr;
}

void append_all(std::string& out, const char32_t (&codes)[3]) {
  for (const char32_t c : codes) {
    if (c != 0) append(out, c);
  }
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  } else if (const SpecialCase* special = special_case(c)) {
    append_all(out, special->upper);
  } else {
    append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& out, char32_t c) {
  if (c < 0x80) {
    append_upper(out, c);
  } else if (const SpecialCase* special = special_case(c)) {
    append_all(out, special->title);
  } else {
    append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_cased(char32_t c) {
  const auto k = category(c);
  if (k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT) return true;
  return contains(kLowerBesideLl, c) || contains(kUpperBesideLu, c);
}

bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default: {
      constexpr char32_t kMidWord[] = {U'\'',  U'.',   U':',   0xB7,   0x387,  0x55F,  0x5F4,  0x2018, 0x2019,
                                       0x2024, 0x2027, 0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A};
      return std::find(std::begin(kMidWord), std::end(kMidWord), c) != std::end(kMidWord);
    }
  }
}

constexpr char32_t kSigma = 0x3A3;
constexpr size_t kSigmaReach = 64;  // how far to look for cased letters around a sigma; keeps lower() linear

// A capital sigma at the end of a word becomes a final sigma.
char32_t lower_sigma(std::string_view s, size_t begin, size_t end) {
  bool cased_before = false;
  for (size_t at = begin, n = 0; at > 0 && n < kSigmaReach; ++n) {
    const char32_t c = previous(s, at);
    if (is_case_ignorable(c)) continue;
    cased_before = is_cased(c);
    break;
  }
  if (!cased_before) return 0x3C3;
  for (size_t at = end, n = 0; at < s.size() && n < kSigmaReach; ++n) {
    const char32_t c = next(s, at);
    if (is_case_ignorable(c)) continue;
    return is_cased(c) ? 0x3C3 : 0x3C2;
  }
  return 0x3C2;
}

void append_lower(std::string& out, std::string_view s, size_t begin, size_t end, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (c == kSigma) {
    append(out, lower_sigma(s, begin, end));
  } else if (c == 0x130) {
    out += "i\u0307";
  } else {
    append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Strips code points for which `drop` returns true.
template <class Drop>
std::string_view strip_if(std::string_view s, Side side, Drop&& drop) {
  size_t begin = 0;
  size_t end = s.size();
  while ((side & kLeft) && begin < end) {
    size_t at = begin;
    if (!drop(next(s, at))) break;
    begin = at;
  }
  while ((side & kRight) && begin < end) {
    size_t at = end;
    if (!drop(previous(s, at))) break;
    end = at;
  }
  return s.substr(begin, end - begin);
}

// Finds non-overlapping occurrences from the end: Knuth-Morris-Pratt on the reversed texts.
class ReverseSearch {
 public:
  ReverseSearch(std::string_view s, std::string_view what) : s_(s), what_(what), at_(s.size()), border_(what.size()) {
    for (size_t i = 1, k = 0; i < what.size(); ++i) {
      while (k > 0 && letter(i) != letter(k)) k = border_[k - 1];
      k += letter(i) == letter(k);
      border_[i] = static_cast<uint32_t>(k);
    }
  }

  size_t next() {
    size_t matched = 0;
    while (at_ > 0) {
      const char c = s_[--at_];
      while (matched > 0 && c != letter(matched)) matched = border_[matched - 1];
      matched += c == letter(matched);
      if (matched == what_.size()) return at_;
    }
    return std::string_view::npos;
  }

 private:
  char letter(size_t i) const { return what_[what_.size() - 1 - i]; }

  const std::string_view s_, what_;
  size_t at_;
  std::vector<uint32_t> border_;  // for each prefix of the reversed `what`: length of its longest border
};

}  // namespace

bool is_valid(std::string_view s) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(s.data());
  for (size_t at = 0; at < s.size();) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t n = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(s.size() - at), &code);
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

char32_t next(std::string_view s, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  char32_t c = lead & (0x7F >> length);
  size_t i = at + 1;
  for (; i < at + length && i < s.size(); ++i) c = c << 6 | (byte(i) & 0x3F);
  at = i;
  return c;
}

char32_t previous(std::string_view s, size_t& end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(s[end]) & 0xC0) == 0x80);
  size_t at = end;
  return next(s, at);
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

size_t count(std::string_view s) {
  size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

size_t skip(std::string_view s, size_t at, size_t n) {
  while (n > 0 && at < s.size()) {
    ++at;
    while (at < s.size() && (static_cast<unsigned char>(s[at]) & 0xC0) == 0x80) ++at;
    --n;
  }
  return at;
}

std::string_view clip(std::string_view s) { return s.substr(0, skip(s.substr(0, 400), 0, 60)); }

bool is_space(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

// Unicode stores decimal digits in runs from zero to nine.
int digit_value(char32_t c) {
  char32_t first = c;
  while (is_decimal(first - 1)) --first;
  return static_cast<int>((c - first) % 10);
}

bool is_digit(char32_t c) { return is_decimal(c) || contains(kDigitsBesideDecimal, c); }

bool is_numeric(char32_t c) {
  const auto k = category(c);
  return (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO) || contains(kNumericLetters, c);
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }
bool is_word(char32_t c) { return c == '_' || is_alnum(c); }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL || contains(kLowerBesideLl, c); }
bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU || contains(kUpperBesideLu, c); }
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_identifier(std::string_view s) {
  if (s.empty()) return false;
  for (size_t at = 0; at < s.size();) {
    const bool first = at == 0;
    const char32_t c = next(s, at);
    if (c == '_' || is_alpha(c)) continue;
    const auto k = category(c);
    if (k == UTF8PROC_CATEGORY_NL) continue;
    const bool continues = k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ND ||
                           k == UTF8PROC_CATEGORY_PC;
    if (first || !continues) return false;
  }
  return true;
}

std::string upper(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) append_upper(out, next(s, at));
  return out;
}

std::string lower(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = next(s, at);
    append_lower(out, s, begin, at, c);
  }
  return out;
}

std::string title(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  bool inside = false;  // after a cased letter
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = next(s, at);
    inside ? append_lower(out, s, begin, at, c) : append_title(out, c);
    inside = is_cased(c);
  }
  return out;
}

std::string capitalize(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = next(s, at);
    begin == 0 ? append_title(out, c) : append_lower(out, s, begin, at, c);
  }
  return out;
}

std::string swapcase(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t c = next(s, at);
    if (is_upper(c)) {
      append_lower(out, s, begin, at, c);
    } else if (is_lower(c)) {
      append_upper(out, c);
    } else {
      append(out, c);
    }
  }
  return out;
}

std::string casefold(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const char32_t c = next(s, at);
    if (c < 0x80) {
      out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      continue;
    }
    utf8proc_int32_t folded[4];
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 4, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && i < 4; ++i) append(out, static_cast<char32_t>(folded[i]));
  }
  return out;
}

std::string_view strip(std::string_view s, Side side) { return strip_if(s, side, is_space); }

std::string_view strip(std::string_view s, std::string_view characters, Side side) {
  const bool ascii = std::all_of(characters.begin(), characters.end(), [](char c) { return c >= 0; });
  if (ascii) {
    return strip_if(s, side, [&](char32_t c) {
      return c < 0x80 && characters.find(static_cast<char>(c)) != std::string_view::npos;
    });
  }
  std::vector<char32_t> set;
  for (size_t at = 0; at < characters.size();) set.push_back(next(characters, at));
  std::sort(set.begin(), set.end());
  return strip_if(s, side, [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); });
}

std::vector<std::string_view> split(std::string_view s, int64_t maxsplit, size_t most) {
  std::vector<std::string_view> out;
  std::string_view rest = strip(s, kLeft);
  while (!rest.empty() && out.size() <= most) {
    if (maxsplit >= 0 && static_cast<int64_t>(out.size()) >= maxsplit) {
      out.push_back(rest);
      break;
    }
    size_t end = 0;
    for (size_t at = 0; at < rest.size(); end = at) {
      if (is_space(next(rest, at))) break;
    }
    out.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), kLeft);
  }
  return out;
}

std::vector<std::string_view> rsplit(std::string_view s, int64_t maxsplit, size_t most) {
  std::vector<std::string_view> out;
  std::string_view rest = strip(s, kRight);
  while (!rest.empty() && out.size() <= most) {
    if (maxsplit >= 0 && static_cast<int64_t>(out.size()) >= maxsplit) {
      out.push_back(rest);
      break;
    }
    size_t begin = rest.size();
    for (size_t at = rest.size(); at > 0; begin = at) {
      if (is_space(previous(rest, at))) break;
    }
    out.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), kRight);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split(std::string_view s, std::string_view separator, int64_t maxsplit, size_t most) {
  std::vector<std::string_view> out;
  while ((maxsplit < 0 || static_cast<int64_t>(out.size()) < maxsplit) && out.size() <= most) {
    const size_t at = find(s, separator);
    if (at == std::string_view::npos) break;
    out.push_back(s.substr(0, at));
    s.remove_prefix(at + separator.size());
  }
  out.push_back(s);
  return out;
}

std::vector<std::string_view> rsplit(std::string_view s, std::string_view separator, int64_t maxsplit, size_t most) {
  std::vector<std::string_view> out;
  ReverseSearch search(s, separator);
  while ((maxsplit < 0 || static_cast<int64_t>(out.size()) < maxsplit) && out.size() <= most) {
    const size_t at = search.next();
    if (at == std::string_view::npos) break;
    out.push_back(s.substr(at + separator.size()));
    s = s.substr(0, at);
  }
  out.push_back(s);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> splitlines(std::string_view s, bool keep_ends, size_t most) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t at = 0; at < s.size() && out.size() <= most;) {
    const size_t end = at;
    const char32_t c = next(s, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < s.size() && s[at] == '\n') ++at;
    out.push_back(s.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < s.size()) out.push_back(s.substr(begin));
  return out;
}

size_t find(std::string_view s, std::string_view what, size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (what.empty()) return from;
  const void* hit = memmem(s.data() + from, s.size() - from, what.data(), what.size());
  return hit ? static_cast<size_t>(static_cast<const char*>(hit) - s.data()) : std::string_view::npos;
}

size_t rfind(std::string_view s, std::string_view what) {
  return what.empty() ? s.size() : ReverseSearch(s, what).next();
}

size_t count_matches(std::string_view s, std::string_view old) {
  if (old.empty()) return count(s) + 1;
  size_t n = 0;
  for (size_t at = find(s, old); at != std::string_view::npos; at = find(s, old, at + old.size())) ++n;
  return n;
}

std::string replace(std::string_view s, std::string_view old, std::string_view with, int64_t limit) {
  std::string out;
  size_t from = 0;
  while (limit != 0) {
    if (old.empty()) {
      out += with;
      if (from == s.size()) return out;
      const size_t at = skip(s, from, 1);
      out += s.substr(from, at - from);
      from = at;
    } else {
      const size_t at = find(s, old, from);
      if (at == std::string_view::npos) break;
      out += s.substr(from, at - from);
      out += with;
      from = at + old.size();
    }
    if (limit > 0) --limit;
  }
  out += s.substr(from);
  return out;
}

}  // namespace sluice::jinja::text
