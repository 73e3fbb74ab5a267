// All normalizers except Precompiled (precompiled_charsmap.cc).
#include "tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/precompiled_charsmap.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

// Rebuilds a text character by character: f(out, code point) appends the replacement.
template <class F>
void rewrite(std::string& text, F&& f) {
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) { f(out, c); });
  text = std::move(out);
}

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = normalize(text, form_); }

 private:
  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(std::string& text) const override { rewrite(text, append_lowercase); }
};

class StripNormalizer final : public Normalizer {
 public:
  explicit StripNormalizer(const Field& field)
      : left_(field.at("strip_left").boolean()), right_(field.at("strip_right").boolean()) {}

  void apply(std::string& text) const override {
    size_t first = 0;  // range to keep: [first, last)
    size_t last = 0;
    bool inside = false;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      if (!is_whitespace(c.value)) {
        if (!inside) first = at;
        inside = true;
        last = at + c.length;
      }
      at += c.length;
    }
    if (!inside && (left_ || right_)) {
      text.clear();
      return;
    }
    if (!left_) first = 0;
    if (!right_) last = text.size();
    text = text.substr(first, last - first);
  }

 private:
  bool left_, right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(std::string& text) const override {
    rewrite(text, [](std::string& out, char32_t c) {
      if (!is_mark(c)) append_utf8(out, c);
    });
  }
};

class Nmt final : public Normalizer {
 public:
  void apply(std::string& text) const override {
    rewrite(text, [](std::string& out, char32_t c) {
      if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) {
        return;
      }
      const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                         c == 0xFFFD;
      append_utf8(out, space ? U' ' : c);
    });
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const Field& field) : prefix_(field.at("prepend").string()) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const Field& field) : pattern_(field.at("pattern")), content_(field.at("content").string()) {}
  void apply(std::string& text) const override { text = pattern_.replace(text, content_); }

 private:
  Pattern pattern_;
  std::string content_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size() * 2);
    append_byte_level(out, text);
    text = std::move(out);
  }
};

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const Field& field)
      : clean_(field.at("clean_text").boolean()),
        chinese_(field.at("handle_chinese_chars").boolean()),
        lowercase_(field.at("lowercase").boolean()),
        strip_accents_(field.boolean_or("strip_accents", lowercase_)) {}

  void apply(std::string& text) const override {
    if (clean_) rewrite(text, clean);
    if (chinese_) {
      rewrite(text, [](std::string& out, char32_t c) {
        const bool chinese = is_chinese(c);
        if (chinese) out += ' ';
        append_utf8(out, c);
        if (chinese) out += ' ';
      });
    }
    if (strip_accents_) {
      text = normalize(text, NormalForm::kNfd);
      rewrite(text, [](std::string& out, char32_t c) {
        if (!is_nonspacing_mark(c)) append_utf8(out, c);
      });
    }
    if (lowercase_) rewrite(text, append_lowercase);
  }

 private:
  static void clean(std::string& out, char32_t c) {
    const bool line_break_or_tab = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xFFFD || (is_other(c) && !line_break_or_tab)) return;
    append_utf8(out, is_whitespace(c) ? U' ' : c);
  }

  // The ideograph blocks that BERT's own code lists; U+2B820..2B91F are missing there, too.
  static bool is_chinese(char32_t c) {
    constexpr std::array<std::array<char32_t, 2>, 8> kBlocks{{{0x4E00, 0x9FFF},
                                                              {0x3400, 0x4DBF},
                                                              {0x20000, 0x2A6DF},
                                                              {0x2A700, 0x2B73F},
                                                              {0x2B740, 0x2B81F},
                                                              {0x2B920, 0x2CEAF},
                                                              {0xF900, 0xFAFF},
                                                              {0x2F800, 0x2FA1F}}};
    return std::any_of(kBlocks.begin(), kBlocks.end(), [c](const auto& b) { return c >= b[0] && c <= b[1]; });
  }

  bool clean_, chinese_, lowercase_, strip_accents_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(const Field& field) {
    field.at("normalizers").for_each([&](const Field& step) { steps_.push_back(load_normalizer(step)); });
  }
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

template <class T>
std::unique_ptr<Normalizer> plain(const Field&) {
  return std::make_unique<T>();
}
template <class T>
std::unique_ptr<Normalizer> configured(const Field& field) {
  return std::make_unique<T>(field);
}
template <NormalForm kForm>
std::unique_ptr<Normalizer> unicode(const Field&) {
  return std::make_unique<UnicodeNormalizer>(kForm);
}

struct NormalizerType {
  std::string_view name;
  std::unique_ptr<Normalizer> (*load)(const Field&);
};
constexpr auto kNormalizers = std::to_array<NormalizerType>({
    {"BertNormalizer", configured<BertNormalizer>},
    {"ByteLevel", plain<ByteLevelNormalizer>},
    {"Lowercase", plain<Lowercase>},
    {"NFC", unicode<NormalForm::kNfc>},
    {"NFD", unicode<NormalForm::kNfd>},
    {"NFKC", unicode<NormalForm::kNfkc>},
    {"NFKD", unicode<NormalForm::kNfkd>},
    {"Nmt", plain<Nmt>},
    {"Precompiled", load_precompiled_charsmap},
    {"Prepend", configured<Prepend>},
    {"Replace", configured<Replace>},
    {"Sequence", configured<Sequence>},
    {"Strip", configured<StripNormalizer>},
    {"StripAccents", plain<StripAccents>},
});

}  // namespace

std::unique_ptr<Normalizer> load_normalizer(const Field& field) {
  const Field type = field.at("type");
  for (const NormalizerType& known : kNormalizers) {
    if (known.name == type.string()) return known.load(field);
  }
  type.unsupported(fmt::format("unknown normalizer \"{}\"", type.string()));
}

}  // namespace sluice::tokenizer
