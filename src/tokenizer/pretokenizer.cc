// All pre-tokenizers except UnicodeScripts (unicode_scripts.cc).
#include "tokenizer/pretokenizer.h"

#include <array>
#include <optional>
#include <string>

#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_scripts.h"

namespace sluice::tokenizer {
namespace {

// GPT-2's pattern.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits every piece. stretches(text of the piece, add) calls add(begin, end, delimiter) for the stretches of the piece
// in order.
template <class F>
void split_pieces(Pieces& pieces, SplitBehavior behavior, F&& stretches) {
  std::vector<Span> out;
  std::vector<Stretch> found;
  // If text before the first piece is dropped, the new first piece is not at the start any more.
  const size_t start = pieces.spans.empty() ? 0 : pieces.spans.front().begin;
  for (const Span piece : pieces.spans) {
    found.clear();
    stretches(pieces.view(piece), [&](size_t begin, size_t end, bool delimiter) {
      found.push_back({{piece.begin + begin, piece.begin + end}, delimiter});
    });
    append_split(found, behavior, out);
  }
  pieces.spans = std::move(out);
  if (pieces.spans.empty() || pieces.spans.front().begin != start) pieces.from_the_start = false;
}

// Splits at the matches of an object with for_each_match-like enumeration.
template <class F>
void split_by_matches(Pieces& pieces, SplitBehavior behavior, bool invert, F&& for_each_match) {
  split_pieces(pieces, behavior, [&](std::string_view text, auto&& add) {
    size_t end = 0;
    for_each_match(text, [&](size_t match_begin, size_t match_end) {
      if (match_begin != end) add(end, match_begin, invert);
      add(match_begin, match_end, !invert);
      end = match_end;
    });
    if (end != text.size()) add(end, text.size(), invert);
  });
}

// Treats every character of a class as a separate delimiter.
template <class F>
void split_by_character(Pieces& pieces, SplitBehavior behavior, F&& is_delimiter) {
  split_by_matches(pieces, behavior, false, [&](std::string_view text, auto&& match) {
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      if (is_delimiter(c.value)) match(at, at + c.length);
      at += c.length;
    }
  });
}

// Rebuilds the text piece by piece: f(out, text of the piece, whether it is at the start of the request).
template <class F>
void rewrite_pieces(Pieces& pieces, F&& f) {
  std::string out;
  out.reserve(pieces.text.size() + pieces.spans.size());
  for (size_t i = 0; i < pieces.spans.size(); ++i) {
    const size_t begin = out.size();
    f(out, pieces.view(pieces.spans[i]), i == 0 && pieces.from_the_start);
    pieces.spans[i] = {begin, out.size()};
  }
  pieces.text = std::move(out);
}

class Split final : public PreTokenizer {
 public:
  explicit Split(const Field& field)
      : pattern_(field.at("pattern")),
        behavior_(load_split_behavior(field.at("behavior"))),
        invert_(field.at("invert").boolean()) {}

  void apply(Pieces& pieces) const override {
    split_by_matches(pieces, behavior_, invert_, [&](std::string_view text, auto&& match) {
      pattern_.for_each_match(text, pieces.threads, match);
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

// trim_offsets only affects offsets, which Sluice does not compute.
class ByteLevel final : public PreTokenizer {
 public:
  // With `spell`, the pieces are rewritten in the byte-level alphabet. Otherwise the model does that.
  ByteLevel(const Field& field, bool spell) : add_prefix_space_(field.at("add_prefix_space").boolean()), spell_(spell) {
    if (field.boolean_or("use_regex", true)) pattern_.emplace(kByteLevelPattern);
  }

  void apply(Pieces& pieces) const override {
    if (add_prefix_space_) {
      rewrite_pieces(pieces, [](std::string& out, std::string_view text, bool) {
        if (!text.starts_with(' ')) out += ' ';
        out += text;
      });
    }
    if (pattern_) {
      split_by_matches(pieces, SplitBehavior::kIsolated, false, [&](std::string_view text, auto&& match) {
        pattern_->for_each_match(text, pieces.threads, match);
      });
    }
    if (spell_) {
      rewrite_pieces(pieces, [](std::string& out, std::string_view text, bool) { append_byte_level(out, text); });
    }
  }

 private:
  bool add_prefix_space_;
  bool spell_;
  std::optional<Regex> pattern_;
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const Field& field) : split_(field.boolean_or("split", true)) {
    append_utf8(replacement_, field.at("replacement").character());
    const auto scheme = field.find("prepend_scheme");
    const std::string_view name = scheme ? scheme->string() : "always";
    if (name != "always" && name != "first" && name != "never") {
      scheme->unsupported(fmt::format("unknown prepend_scheme \"{}\"", name));
    }
    if (!field.boolean_or("add_prefix_space", true) && name != "never") {
      if (scheme) field.corrupt("add_prefix_space contradicts prepend_scheme");
      return;
    }
    always_ = name == "always";
    first_ = name == "first";
  }

  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [&](std::string& out, std::string_view text, bool at_start) {
      if ((always_ || (first_ && at_start)) && !text.starts_with(' ') && !text.starts_with(replacement_)) {
        out += replacement_;
      }
      for (const char c : text) c == ' ' ? out += replacement_ : out += c;
    });
    if (!split_) return;
    split_by_matches(pieces, SplitBehavior::kMergedWithNext, false, [&](std::string_view text, auto&& match) {
      for (size_t at = 0; (at = text.find(replacement_, at)) != std::string_view::npos; at += replacement_.size()) {
        match(at, at + replacement_.size());
      }
    });
  }

 private:
  std::string replacement_;
  bool split_;
  bool always_ = false;
  bool first_ = false;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(const Field& field)
      : behavior_(field.at("individual_digits").boolean() ? SplitBehavior::kIsolated : SplitBehavior::kContiguous) {}
  void apply(Pieces& pieces) const override { split_by_character(pieces, behavior_, is_numeric); }

 private:
  SplitBehavior behavior_;
};

class Punctuation final : public PreTokenizer {
 public:
  explicit Punctuation(const Field& field) {
    if (const auto behavior = field.find("behavior")) behavior_ = load_split_behavior(*behavior);
  }
  void apply(Pieces& pieces) const override { split_by_character(pieces, behavior_, is_punctuation); }

 private:
  SplitBehavior behavior_ = SplitBehavior::kIsolated;
};

// Pieces are runs of \w, and runs of characters that are neither \w nor white space.
class Whitespace final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    split_by_matches(pieces, SplitBehavior::kRemoved, true, [](std::string_view text, auto&& match) {
      const auto kind = [](char32_t c) { return is_word(c) ? 1 : is_whitespace(c) ? 0 : 2; };
      size_t begin = 0;
      int run = 0;
      for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (const int next = kind(c.value); next != run) {
          if (run != 0) match(begin, at);
          begin = at;
          run = next;
        }
        at += c.length;
      }
      if (run != 0) match(begin, text.size());
    });
  }
};

class WhitespaceSplit final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override { split_by_character(pieces, SplitBehavior::kRemoved, is_whitespace); }
};

class Bert final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    split_by_character(pieces, SplitBehavior::kRemoved, is_whitespace);
    split_by_character(pieces, SplitBehavior::kIsolated, is_punctuation);
  }
};

class CharDelimiterSplit final : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(const Field& field) : delimiter_(field.at("delimiter").character()) {}
  void apply(Pieces& pieces) const override {
    split_by_character(pieces, SplitBehavior::kRemoved, [&](char32_t c) { return c == delimiter_; });
  }

 private:
  char32_t delimiter_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(const Field& field) {
    if (const auto length = field.find("length")) length_ = length->integer(1, INT64_MAX);
  }

  void apply(Pieces& pieces) const override {
    split_by_matches(pieces, SplitBehavior::kIsolated, false, [&](std::string_view text, auto&& match) {
      size_t begin = 0;
      int64_t characters = 0;
      for (size_t at = 0; at < text.size();) {
        at += code_point_at(text, at).length;
        if (++characters == length_) {
          match(begin, at);
          begin = at;
          characters = 0;
        }
      }
    });
  }

 private:
  int64_t length_ = 5;  // in characters
};

template <class T>
std::unique_ptr<PreTokenizer> plain(const Field&) {
  return std::make_unique<T>();
}
template <class T>
std::unique_ptr<PreTokenizer> configured(const Field& field) {
  return std::make_unique<T>(field);
}

struct PreTokenizerType {
  std::string_view name;
  std::unique_ptr<PreTokenizer> (*load)(const Field&);
};
constexpr auto kPreTokenizers = std::to_array<PreTokenizerType>({
    {"BertPreTokenizer", plain<Bert>},
    {"CharDelimiterSplit", configured<CharDelimiterSplit>},
    {"Digits", configured<Digits>},
    {"FixedLength", configured<FixedLength>},
    {"Metaspace", configured<Metaspace>},
    {"Punctuation", configured<Punctuation>},
    {"Split", configured<Split>},
    {"UnicodeScripts", load_unicode_scripts},
    {"Whitespace", plain<Whitespace>},
    {"WhitespaceSplit", plain<WhitespaceSplit>},
});

void flatten(const Field& field, std::vector<Field>& out) {
  if (field.at("type").string() != "Sequence") {
    out.push_back(field);
    return;
  }
  field.at("pretokenizers").for_each([&](const Field& step) { flatten(step, out); });
}

}  // namespace

PreTokenizers load_pretokenizers(const Field& field) {
  std::vector<Field> fields;
  flatten(field, fields);
  PreTokenizers loaded;
  for (size_t i = 0; i < fields.size(); ++i) {
    const Field type = fields[i].at("type");
    const bool last = i + 1 == fields.size();
    if (type.string() == "ByteLevel") {
      loaded.steps.push_back(std::make_unique<ByteLevel>(fields[i], /*spell=*/!last));
      loaded.byte_level = last;
      continue;
    }
    const auto* known = std::find_if(kPreTokenizers.begin(), kPreTokenizers.end(),
                                     [&](const PreTokenizerType& t) { return t.name == type.string(); });
    if (known == kPreTokenizers.end()) type.unsupported(fmt::format("unknown pre-tokenizer \"{}\"", type.string()));
    loaded.steps.push_back(known->load(fields[i]));
  }
  return loaded;
}

}  // namespace sluice::tokenizer
