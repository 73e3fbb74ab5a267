// Filters that lay out text: indent, truncate, wordwrap, tojson.
#include <fmt/core.h>

#include <algorithm>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

size_t most_pieces(const Runtime& rt) { return rt.heap.available() / sizeof(std::string_view); }

Value indent(Runtime& rt, const Value& value, const Args& args) {
  const std::string_view s = expect_text(rt, value, "the indented value");
  std::string indention(4, ' ');
  if (args.find(0)) {
    if (args[0].is(Kind::kString)) {
      indention = args[0].text();
    } else {
      const int64_t width = std::max<int64_t>(0, expect_int(rt, args[0], "width"));
      rt.heap.expect(static_cast<size_t>(width));
      indention = std::string(static_cast<size_t>(width), ' ');
    }
  }
  const bool first = args.find(1) && truthy(args[1]);
  const bool blank = args.find(2) && truthy(args[2]);
  rt.spend_scan(s.size());
  const std::string text = std::string(s) + "\n";
  const auto lines = text::splitlines(text, false, most_pieces(rt));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) rt.append(out, "\n");
    if (i == 0 ? first : blank || !lines[i].empty()) rt.append(out, indention);
    rt.append(out, lines[i]);
  }
  return rt.string(std::move(out), value.is_safe());
}

Value truncate(Runtime& rt, const Value& value, const Args& args) {
  const int64_t length = args.find(0) ? expect_int(rt, args[0], "length") : 255;
  const bool kill_words = args.find(1) && truthy(args[1]);
  const std::string_view end = args.find(2) ? expect_text(rt, args[2], "end") : std::string_view("...");
  const int64_t leeway = args.given(3) ? expect_int(rt, args[3], "leeway") : 5;
  const auto end_length = static_cast<int64_t>(text::count(end));
  if (length < end_length) rt.fail(fmt::format("truncate: expected length >= {}, got {}", end_length, length));
  if (leeway < 0) rt.fail(fmt::format("truncate: expected leeway >= 0, got {}", leeway));
  const int64_t n = length_or_fail(rt, value);
  if (n <= length || n - length <= leeway) return value;
  expect_text(rt, value, "the truncated value");
  const Str& str = value.as<Str>();
  std::string_view kept = std::string_view(str.text).substr(0, byte_offset(rt, str, length - end_length));
  if (!kill_words) kept = kept.substr(0, kept.rfind(' '));
  return rt.string(rt.copy(kept) + std::string(end), str.safe);
}

// --- wordwrap: Python's textwrap with expand_tabs and replace_whitespace off

bool is_blank(char32_t c) { return c == ' ' || (c >= 0x09 && c <= 0x0D); }
bool is_letter(char32_t c) { return text::is_word(c) && !text::is_decimal(c); }
bool is_hyphen(char32_t c) { return c == '-'; }
bool is_word_punctuation(char32_t c) {
  return text::is_word(c) ||
         (c < 0x80 && std::string_view("!\"'&.,?").find(static_cast<char>(c)) != std::string_view::npos);
}

// Splits a line into unbreakable pieces: runs of blanks, words, parts of hyphenated words, dashes.
class WordSplitter {
 public:
  WordSplitter(std::string_view line, bool hyphens) : hyphens_(hyphens) {
    for (size_t at = 0; at < line.size();) codes_.push_back(text::next(line, at));
  }

  std::vector<std::u32string_view> run() {
    std::vector<std::u32string_view> out;
    const std::u32string_view all(codes_);
    for (size_t at = 0; at < codes_.size();) {
      const size_t end = piece_end(at);
      out.push_back(all.substr(at, end - at));
      at = end;
    }
    return out;
  }

 private:
  template <class Is>
  bool at_is(size_t i, Is&& is) const {
    return i < codes_.size() && is(codes_[i]);
  }
  size_t skip_dashes(size_t i) const {
    while (i < codes_.size() && codes_[i] == '-') ++i;
    return i;
  }
  // Matches -{2,} between a word and a word character.
  bool dash_starts(size_t i) const {
    if (i == 0 || !is_word_punctuation(codes_[i - 1])) return false;
    const size_t end = skip_dashes(i);
    return end - i >= 2 && at_is(end, text::is_word);
  }
  // True at a hyphen inside a word after which the word may be broken.
  bool hyphen_cuts(size_t i) const {
    if (codes_[i] != '-' || i < 2) return false;
    const bool before = is_letter(codes_[i - 2]) ? is_letter(codes_[i - 1])
                                                 : i >= 3 && is_word_punctuation(codes_[i - 1]) &&
                                                       is_hyphen(codes_[i - 2]) && is_letter(codes_[i - 3]);
    const bool after =
        at_is(i + 1, is_letter) && (at_is(i + 2, is_letter) || (at_is(i + 2, is_hyphen) && at_is(i + 3, is_letter)));
    return before && after;
  }

  size_t piece_end(size_t at) const {
    size_t i = at;
    if (is_blank(codes_[at])) {
      while (at_is(i, is_blank)) ++i;
      return i;
    }
    if (hyphens_ && dash_starts(at)) return skip_dashes(at);
    for (i = at + 1; i < codes_.size() && !is_blank(codes_[i]); ++i) {
      if (hyphens_ && hyphen_cuts(i)) return i + 1;
      if (hyphens_ && dash_starts(i)) return i;
    }
    return i;
  }

  std::u32string codes_;
  const bool hyphens_;
};

struct WrapOptions {
  size_t width;
  bool break_long_words, break_on_hyphens;
};

bool all_blank(std::u32string_view s) {
  return std::all_of(s.begin(), s.end(), [](char32_t c) { return text::is_space(c); });
}

// Splits the word on top of `pieces` so that its first part fits into `room`.
std::u32string_view break_word(std::vector<std::u32string_view>& pieces, size_t room, bool on_hyphens) {
  const std::u32string_view word = pieces.back();
  size_t end = room;
  if (on_hyphens && word.size() > room) {
    const size_t hyphen = word.substr(0, room).rfind(U'-');
    const bool cuts =
        hyphen != std::u32string_view::npos && hyphen > 0 &&
        std::any_of(word.begin(), word.begin() + static_cast<ptrdiff_t>(hyphen), [](char32_t c) { return c != '-'; });
    if (cuts) end = hyphen + 1;
  }
  pieces.back() = word.substr(end);
  return word.substr(0, end);
}

// Wraps one paragraph into lines.
std::vector<std::u32string> wrap(Runtime& rt, std::vector<std::u32string_view> pieces, const WrapOptions& options) {
  std::reverse(pieces.begin(), pieces.end());
  std::vector<std::u32string> lines;
  while (!pieces.empty()) {
    rt.spend();
    std::vector<std::u32string_view> line;
    size_t length = 0;
    if (!lines.empty() && all_blank(pieces.back())) pieces.pop_back();
    while (!pieces.empty() && length + pieces.back().size() <= options.width) {
      length += pieces.back().size();
      line.push_back(pieces.back());
      pieces.pop_back();
    }
    if (!pieces.empty() && pieces.back().size() > options.width) {
      if (options.break_long_words) {
        line.push_back(break_word(pieces, options.width - length, options.break_on_hyphens));
      } else if (line.empty()) {
        line.push_back(pieces.back());
        pieces.pop_back();
      }
    }
    if (!line.empty() && all_blank(line.back())) line.pop_back();
    if (line.empty()) continue;
    std::u32string text;
    for (const auto piece : line) text += piece;
    lines.push_back(std::move(text));
  }
  return lines;
}

Value word_wrap(Runtime& rt, const Value& value, const Args& args) {
  const std::string_view s = expect_text(rt, value, "the wrapped value");
  const int64_t width = args.find(0) ? expect_int(rt, args[0], "width") : 79;
  if (width <= 0) rt.fail("wordwrap: the width must be positive");
  const WrapOptions options{static_cast<size_t>(width), !args.find(1) || truthy(args[1]),
                            !args.find(3) || truthy(args[3])};
  const std::string_view separator = args.given(2) ? expect_text(rt, args[2], "wrapstring") : std::string_view("\n");
  rt.spend(s.size() / 4);
  rt.heap.expect(24 * s.size());
  std::string out;
  bool first_line = true;
  for (const std::string_view paragraph : text::splitlines(s, false, most_pieces(rt))) {
    if (!first_line) rt.append(out, separator);
    first_line = false;
    WordSplitter splitter(paragraph, options.break_on_hyphens);
    bool first = true;
    for (const std::u32string& line : wrap(rt, splitter.run(), options)) {
      if (!first) rt.append(out, separator);
      first = false;
      std::string text;
      for (const char32_t c : line) text::append(text, c);
      rt.append(out, text);
    }
  }
  return rt.string(std::move(out));
}

Value json(Runtime& rt, const Value& value, const Args& args) {
  return rt.string(to_json(rt, value, args.find(0), args.find(1), args.find(2), args.find(3)));
}

constexpr Builtin kLayoutFilters[] = {
    {"indent", "width= first= blank=", indent},
    {"truncate", "length= killwords= end= leeway=", truncate},
    {"wordwrap", "width= break_long_words= wrapstring= break_on_hyphens=", word_wrap},
    {"tojson", "ensure_ascii= indent= separators= sort_keys=", json},
};

}  // namespace

std::span<const Builtin> layout_filters() { return kLayoutFilters; }

}  // namespace sluice::jinja
