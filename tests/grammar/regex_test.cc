// Regular expressions against PCRE2's matches on short texts.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>

#include "grammar/automaton.h"
#include "support/cpu_time.h"

namespace sluice::grammar::regex_test {
namespace {

// ECMA 262 as PCRE2 has it: "$" only at the very end, [] and [^] as sets.
class Pcre {
 public:
  explicit Pcre(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS | PCRE2_NEWLINE_ANYCRLF,
                              &error, &offset, nullptr));
    if (code_) data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }
  explicit operator bool() const { return code_ != nullptr; }
  bool finds(const std::string& text) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_.get(),
                       nullptr) > 0;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
};

class RandomPattern {
 public:
  explicit RandomPattern(uint32_t seed) : random_(seed) {}
  std::string make(int depth, bool lookahead) {
    std::string out;
    for (int n = pick(1, 3); n > 0; --n) out += piece(depth, lookahead);
    if (depth > 0 && pick(0, 3) == 0) out += "|" + make(depth - 1, lookahead);
    return out;
  }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  std::string piece(int depth, bool lookahead) {
    static const std::vector<std::string> kAtoms = {"a", "b", "\\w", "[ab]", "[^a]", ".", "\\s", "-", "é", "[é-ü]"};
    static const std::vector<std::string> kAssertions = {"^", "$", "\\b", "\\B"};
    static const std::vector<std::string> kQuantifiers = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}"};
    if (pick(0, 7) == 0) return kAssertions[static_cast<size_t>(pick(0, 3))];
    if (lookahead && pick(0, 4) == 0)
      return (pick(0, 1) == 0 ? "(?=" : "(?!") + plain(1) + (pick(0, 3) == 0 ? "$)" : ")");
    std::string atom = kAtoms[static_cast<size_t>(pick(0, static_cast<int>(kAtoms.size()) - 1))];
    const bool group = depth > 0 && pick(0, 2) == 0;
    if (group) atom = "(?:" + make(depth - 1, false) + ")";
    return atom + kQuantifiers[static_cast<size_t>(pick(0, static_cast<int>(kQuantifiers.size()) - 1))];
  }
  std::string plain(int pieces) {
    static const std::vector<std::string> kAtoms = {"a", "b", "[ab]", "[^a]", "a*b", ".*b", "a|b"};
    std::string out;
    for (; pieces > 0; --pieces) out += kAtoms[static_cast<size_t>(pick(0, static_cast<int>(kAtoms.size()) - 1))];
    return "(?:" + out + ")";
  }
  std::mt19937 random_;
};

std::vector<std::string> short_texts() {
  const std::vector<std::string> characters = {"a", "b", "-", " ", "é"};
  std::vector<std::string> out = {""};
  for (size_t i = 0; i < out.size() && i < 400; ++i) {
    const std::string text = out[i];
    for (const std::string& c : characters) out.push_back(text + c);
  }
  return out;
}

void compare(const std::string& pattern, const std::vector<std::string>& texts) {
  const Pcre reference(pattern);
  ASSERT_TRUE(reference) << pattern;
  Budget budget;
  const Automaton found = determinize(parse_regex(pattern, RegexSyntax::kEcma, false, budget), budget);
  for (const std::string& text : texts) {
    ASSERT_EQ(found.matches(text), reference.finds(text)) << pattern << " on '" << text << "'";
  }
}

TEST(Regex, FindsWhatPcreFinds) {
  const std::vector<std::string> texts = short_texts();
  for (uint32_t seed = 0; seed < 250; ++seed) {
    compare(RandomPattern(seed).make(2, false), texts);
    if (HasFatalFailure()) return;
  }
}

TEST(Regex, LooksAheadAsPcreDoes) {
  const std::vector<std::string> texts = short_texts();
  for (uint32_t seed = 1000; seed < 1150; ++seed) {
    compare(RandomPattern(seed).make(1, true), texts);
    if (HasFatalFailure()) return;
  }
  compare("^(?=.*a)(?=.*b)(?!.*--).{2,4}$", texts);
}

TEST(Regex, RefusesByName) {
  Budget budget;
  const std::pair<const char*, const char*> kWrong[] = {{"(a", "missing ')'"},
                                                        {"a)", "unmatched ')'"},
                                                        {"[a", "missing ']'"},
                                                        {"a{2,1}", "out of order"},
                                                        {"(a)\\1", "back-references"},
                                                        {"(?<=a)b", "lookbehind"},
                                                        {"a{0,2147483647}", "above 1000000"},
                                                        {"\\p{Nothing}", "unknown property"},
                                                        {"*", "nothing to repeat"},
                                                        {"\\ud800", "surrogate"},
                                                        {"[z-a]", "out of order"},
                                                        {"a**", "quantifier follows"},
                                                        {"\\", "backslash"}};
  for (const auto& [pattern, message] : kWrong) {
    try {
      parse_regex(pattern, RegexSyntax::kEcma, false, budget);
      ADD_FAILURE() << pattern;
    } catch (const GrammarError& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << pattern << ": " << e.what();
    }
  }
}

TEST(Regex, StaysWithinItsLimits) {
  const std::string deep = std::string(100'000, '(') + "a" + std::string(100'000, ')');
  for (const std::string& pattern :
       {deep, std::string("(?:(?:a{1000}){1000}){1000}"), std::string("(?!(a|b)*a(a|b){30}c).*"),
        std::string("((((a{0,999}){0,999}){0,999}){0,999})")}) {
    const double seconds = cpu_seconds([&] {
      Budget budget;
      EXPECT_THROW(parse_regex(pattern, RegexSyntax::kEcma, false, budget), GrammarError) << pattern.substr(0, 40);
    });
    EXPECT_LT(seconds, 2.0);
  }
}

TEST(Regex, TakesPythonsForms) {
  Budget budget;
  const auto matches = [&](const char* pattern, const char* text) {
    return parse_regex(pattern, RegexSyntax::kPython, true, budget).matches(text);
  };
  EXPECT_TRUE(matches("(?i)yes|no", "YES"));
  EXPECT_TRUE(matches("(?P<year>\\d{4})-\\d\\d", "2026-11"));
  EXPECT_FALSE(matches("\\d{4}", "20261"));
  EXPECT_TRUE(matches("\\Aab\\Z", "ab"));
  EXPECT_TRUE(matches("(?i:a)b", "Ab"));
  EXPECT_FALSE(matches("(?i:a)b", "AB"));
  EXPECT_TRUE(matches("a{,2}", "aa"));
  EXPECT_TRUE(matches("\\w+", "été"));
  EXPECT_TRUE(matches("(?s).*", "a\nb"));
  EXPECT_FALSE(matches(".*", "a\nb"));
}

}  // namespace
}  // namespace sluice::grammar::regex_test
