// Splits text by script. The table of scripts comes from PCRE2: its regular expressions determine a character's script.
#include "tokenizer/unicode_scripts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tokenizer/regex.h"
#include "tokenizer/script_names.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

constexpr int kAny = -1;  // no script: the space, unassigned characters

struct Range {
  char32_t first, last;
  int script;
};

// Hiragana, katakana and the prolonged sound mark count as Han, as in SentencePiece. Each script is searched in what
// earlier scripts left over, which is little after Han and Hangul.
std::vector<Range> make_ranges() {
  std::string rest;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (is_assigned(c)) append_utf8(rest, c);
  }
  std::vector<Range> ranges;
  for (size_t script = 0; script < kScripts.size(); ++script) {
    const Regex regex(kScripts[script] == "Han" ? R"([\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}]+)"
                                                : fmt::format("\\p{{sc:{}}}+", kScripts[script]));
    std::string left;
    size_t done = 0;
    Regex::Matches matches(regex, rest);
    while (const auto found = matches.next()) {
      left += std::string_view(rest).substr(done, found->begin - done);
      done = found->end;
      for_each_code_point(std::string_view(rest).substr(found->begin, done - found->begin), [&](char32_t c) {
        if (ranges.empty() || ranges.back().last + 1 != c || ranges.back().script != static_cast<int>(script)) {
          ranges.push_back({c, c, static_cast<int>(script)});
        }
        ranges.back().last = c;
      });
    }
    left += std::string_view(rest).substr(done);
    rest = std::move(left);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  return ranges;
}

int script_of(char32_t c) {
  static const std::vector<Range> ranges = make_ranges();
  if (c == ' ') return kAny;
  if (c == 0x30FC) c = 0x4E00;
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                      [](char32_t value, const Range& range) { return value < range.first; });
  return after == ranges.begin() || c > std::prev(after)->last ? kAny : std::prev(after)->script;
}

class UnicodeScripts final : public PreTokenizer {
 public:
  UnicodeScripts() { script_of('a'); }

  void apply(Pieces& pieces) const override {
    std::vector<Span> out;
    for (const Span piece : pieces.spans) {
      const std::string_view text = pieces.view(piece);
      size_t begin = 0;
      int last = kAny;
      for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        const int script = script_of(c.value);
        if (script != kAny && script != last) {
          // As in Hugging Face's library, text without a script is dropped before the first piece.
          if (last != kAny) out.push_back({piece.begin + begin, piece.begin + at});
          begin = at;
          last = script;
        }
        at += c.length;
      }
      if (last != kAny) out.push_back({piece.begin + begin, piece.end});
    }
    pieces.spans = std::move(out);
  }
};

}  // namespace

std::unique_ptr<PreTokenizer> load_unicode_scripts(const Field&) { return std::make_unique<UnicodeScripts>(); }

}  // namespace sluice::tokenizer
