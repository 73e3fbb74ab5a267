// Translates Oniguruma patterns to PCRE2 in one pass that copies the syntax both share.
#include "tokenizer/files/oniguruma.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tokenizer/script_names.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

// Contents of \s and \w inside a class. \s is White_Space. \w is alphabetic, mark, decimal number or connector
// punctuation.
constexpr std::string_view kSpaceClass =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
// Outside a class, Oniguruma also treats these Latin-1 numbers as word characters.
constexpr std::string_view kLatin1Numbers = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

struct PropertyName {
  std::string_view oniguruma;  // lower case without spaces, hyphens and underscores
  std::string_view pcre2;
};
constexpr auto kProperties = std::to_array<PropertyName>({
    {"alpha", "Alphabetic"},
    {"casedletter", "L&"},
    {"closepunctuation", "Pe"},
    {"combiningmark", "M"},
    {"connectorpunctuation", "Pc"},
    {"control", "Cc"},
    {"currencysymbol", "Sc"},
    {"dashpunctuation", "Pd"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"enclosingmark", "Me"},
    {"finalpunctuation", "Pf"},
    {"format", "Cf"},
    {"initialpunctuation", "Pi"},
    {"letter", "L"},
    {"letternumber", "Nl"},
    {"lineseparator", "Zl"},
    {"lower", "Lowercase"},
    {"lowercaseletter", "Ll"},
    {"mark", "M"},
    {"mathsymbol", "Sm"},
    {"modifierletter", "Lm"},
    {"modifiersymbol", "Sk"},
    {"nonspacingmark", "Mn"},
    {"number", "N"},
    {"openpunctuation", "Ps"},
    {"other", "C"},
    {"otherletter", "Lo"},
    {"othernumber", "No"},
    {"otherpunctuation", "Po"},
    {"othersymbol", "So"},
    {"paragraphseparator", "Zp"},
    {"privateuse", "Co"},
    {"punct", "P"},
    {"punctuation", "P"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"spacingmark", "Mc"},
    {"surrogate", "Cs"},
    {"symbol", "S"},
    {"titlecaseletter", "Lt"},
    {"unassigned", "Cn"},
    {"upper", "Uppercase"},
    {"uppercaseletter", "Lu"},
});

// POSIX classes for which PCRE2 uses different sets.
constexpr auto kPosixClasses = std::to_array<PropertyName>({
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"blank", R"(\x09\p{Zs})"},
    {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},
    {"space", kSpaceClass},
    {"upper", R"(\p{Uppercase})"},
    {"word", kWord},
});

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool digit_at(size_t at) const { return at < in_.size() && in_[at] >= '0' && in_[at] <= '9'; }

  // Translates one atom, group bracket, alternative or quantifier.
  void item() {
    const char c = in_[at_];
    if (c == '{' || c == '*' || c == '+' || c == '?') {
      if (quantifier()) return;
    }
    if (c == '(') return open_group();
    if (c == ')') {
      out_ += in_[at_++];
      atom_ = groups_.empty() ? out_.size() - 1 : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      return;
    }
    atom_ = out_.size();
    if (c == '[') {
      out_ += char_class();
    } else if (c == '\\') {
      escape();
    } else {
      const size_t size = code_point_at(in_, at_).length;
      out_ += in_.substr(at_, size);
      at_ += size;
    }
  }

  // Copies *, +, ? with their lazy or possessive suffix. Returns false for a brace that is not an interval.
  bool quantifier() {
    if (in_[at_] != '{') {
      out_ += in_[at_++];
      if (at_ < in_.size() && (in_[at_] == '?' || in_[at_] == '+')) out_ += in_[at_++];
      return true;
    }
    size_t end = at_ + 1;
    const size_t low = end;
    while (digit_at(end)) ++end;
    const bool has_low = end > low;
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const size_t high = end;
    while (digit_at(end)) ++end;
    const bool has_high = comma && end > high;
    if (end >= in_.size() || in_[end] != '}' || !(has_low || has_high)) return false;
    out_ += '{';
    if (!has_low) out_ += '0';
    out_ += in_.substr(low, end + 1 - low);
    at_ = end + 1;
    if (next_is("?")) out_ += in_[at_++];
    if (next_is("+")) {  // repeats the interval; PCRE2 needs a group for that
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    return true;
  }

  void open_group() {
    groups_.push_back(out_.size());
    out_ += in_[at_++];
    if (!next_is("?")) return;
    out_ += in_[at_++];
    if (at_ >= in_.size() || in_[at_] == '<' || in_[at_] == '#') return;
    // (?imx-imx) and (?imx-imx:...): Ruby's m is PCRE2's s
    while (at_ < in_.size() && (in_[at_] == 'i' || in_[at_] == 'm' || in_[at_] == 'x' || in_[at_] == '-')) {
      out_ += in_[at_] == 'm' ? 's' : in_[at_];
      ++at_;
    }
    if (at_ < in_.size() && in_[at_] != '(' && in_[at_] != '\\' && in_[at_] != '[') out_ += in_[at_++];
  }

  // Translates an escape outside a class.
  void escape() {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    const auto put_class = [&](std::string_view inside, bool negated, std::string_view more = {}) {
      out_ += fmt::format("[{}{}{}]", negated ? "^" : "", inside, more);
      at_ += 2;
    };
    switch (c) {
      case 's':
        return put_class(kSpaceClass, false);
      case 'S':
        return put_class(kSpaceClass, true);
      case 'w':
        return put_class(kWord, false, kLatin1Numbers);
      case 'W':
        return put_class(kWord, true, kLatin1Numbers);
      case 'h':
        return put_class(kHexDigit, false);
      case 'H':
        return put_class(kHexDigit, true);
      default:
        out_ += shared_escape();
    }
  }

  // Translates an escape with the same meaning inside and outside a class.
  std::string shared_escape() {
    if (at_ + 1 >= in_.size()) throw std::invalid_argument("regular expression ends with \\");
    const char c = in_[at_ + 1];
    if (c == 'u' && at_ + 6 <= in_.size()) {
      const std::string_view digits = in_.substr(at_ + 2, 4);
      at_ += 6;
      return fmt::format("\\x{{{}}}", digits);
    }
    const size_t close = in_.find('}', at_);
    if ((c == 'p' || c == 'P') && in_.substr(at_ + 2).starts_with('{') && close != std::string_view::npos) {
      const std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
      at_ = close + 1;
      return fmt::format("\\{}{{{}}}", c, property(name));
    }
    const size_t size = 1 + code_point_at(in_, at_ + 1).length;
    const std::string copy(in_.substr(at_, size));
    at_ += size;
    return copy;
  }

  // Returns the name of a property as both libraries compare it: lower case without spaces, hyphens and underscores.
  static std::string plain_name(std::string_view name) {
    std::string plain;
    for (const char c : name) {
      if (c != ' ' && c != '_' && c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return plain;
  }

  static std::string property(std::string_view name) {
    const std::string_view mark = name.starts_with('^') ? "^" : "";
    const std::string plain = plain_name(name.substr(mark.size()));
    for (const PropertyName& known : kProperties) {
      if (known.oniguruma == plain) return fmt::format("{}{}", mark, known.pcre2);
    }
    for (const std::string_view script : kScripts) {
      if (plain_name(script) == plain) return fmt::format("{}sc:{}", mark, script);
    }
    return std::string(name);
  }

  // Translates a bracket class, from its [ to after its ]. A class with nested classes or && becomes a group of
  // lookaheads and alternatives that matches one character. Other classes stay classes.
  std::string char_class() {
    if (++class_depth_ > 32) throw std::invalid_argument("regular expression nests classes too deeply");
    ++at_;
    const bool negated = next_is("^");
    if (negated) ++at_;
    std::vector<std::string> intersected;  // operands to the left of each &&
    std::string items;                     // plain items of the current operand
    std::vector<std::string> nested;       // nested classes of the current operand
    const auto close_operand = [&] {
      if (!items.empty()) nested.push_back(fmt::format("[{}]", items));
      intersected.push_back(nested.empty() ? "(?!)" : fmt::format("(?:{})", fmt::join(nested, "|")));
      items.clear();
      nested.clear();
    };
    for (bool first = true;; first = false) {
      if (at_ >= in_.size()) throw std::invalid_argument("regular expression has an unclosed class");
      const char c = in_[at_];
      if (c == ']' && !first) break;
      if (next_is("[:")) {
        const size_t close = in_.find(":]", at_);
        if (close == std::string_view::npos) throw std::invalid_argument("regular expression has an unclosed class");
        items += posix_class(in_.substr(at_ + 2, close - at_ - 2), nested);
        at_ = close + 2;
      } else if (c == '[') {
        nested.push_back(char_class());
      } else if (next_is("&&")) {
        close_operand();
        at_ += 2;
      } else if (c == '\\') {
        items += class_escape(nested);
      } else {
        if (c == ']') items += '\\';
        const size_t size = code_point_at(in_, at_).length;
        items += in_.substr(at_, size);
        at_ += size;
      }
    }
    ++at_;
    --class_depth_;
    if (intersected.empty() && nested.empty()) return fmt::format("[{}{}]", negated ? "^" : "", items);
    close_operand();
    std::string all;
    for (size_t i = 0; i + 1 < intersected.size(); ++i) all += fmt::format("(?={})", intersected[i]);
    all += intersected.back();
    return negated ? fmt::format("(?:(?!{})\\p{{Any}})", all) : fmt::format("(?:{})", all);
  }

  std::string class_escape(std::vector<std::string>& nested) {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    std::string_view inside;
    switch (c) {
      case 's':
        inside = kSpaceClass;
        break;
      case 'S':
        inside = kNotSpace;
        break;
      case 'w':
        inside = kWord;
        break;
      case 'h':
        inside = kHexDigit;
        break;
      case 'W':
      case 'H':
        nested.push_back(fmt::format("[^{}]", c == 'W' ? kWord : kHexDigit));
        at_ += 2;
        return {};
      default:
        return shared_escape();
    }
    at_ += 2;
    return std::string(inside);
  }

  static std::string posix_class(std::string_view name, std::vector<std::string>& nested) {
    const bool negated = name.starts_with('^');
    const std::string_view plain = name.substr(negated);
    std::string_view inside;
    for (const PropertyName& known : kPosixClasses) {
      if (known.oniguruma == plain) inside = known.pcre2;
    }
    if (inside.empty()) return fmt::format("[:{}:]", name);
    if (!negated) return std::string(inside);
    nested.push_back(fmt::format("[^{}]", inside));
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // start of the last atom in out_
  std::vector<size_t> groups_;  // starts of the open groups in out_
  int class_depth_ = 0;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace sluice::tokenizer
