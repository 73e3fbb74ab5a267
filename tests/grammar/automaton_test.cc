// Operations on automata against sets of short texts, and JSON strings against the JSON library.
#include "grammar/automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/json.h"
#include "grammar/random_grammar.h"

namespace sluice::grammar::automaton_test {
namespace {

constexpr size_t kLongest = 5;

Texts texts_of(const Automaton& a, const std::vector<std::string>& words) {
  Texts out;
  for (const std::string& word : words) {
    if (a.matches(word)) out.insert(word);
  }
  return out;
}

// A random automaton, made of the operations that do not determinize.
Automaton random_automaton(std::mt19937& random, int depth, Budget& budget) {
  if (depth == 0) {
    std::string text;
    for (size_t n = random() % 3; n > 0; --n) text.push_back(static_cast<char>('a' + random() % 3));
    return random() % 4 == 0 ? Automaton::bytes('a', 'b') : Automaton::literal(text);
  }
  const Automaton a = random_automaton(random, depth - 1, budget), b = random_automaton(random, depth - 1, budget);
  switch (random() % 3) {
    case 0:
      return concatenate(a, b, budget);
    case 1: {
      const Automaton both[] = {a, b};
      return unite(both, budget);
    }
    default: {
      const int least = static_cast<int>(random() % 3);
      return repeat(a, least, random() % 2 == 0 ? -1 : least + static_cast<int>(random() % 3), budget);
    }
  }
}

TEST(Automaton, OperationsAreThoseOnSets) {
  std::mt19937 random(1);
  const std::vector<std::string> words = all_words(kLongest);
  for (int round = 0; round < 300; ++round) {
    Budget budget;
    const Automaton a = random_automaton(random, 3, budget), b = random_automaton(random, 3, budget);
    const Texts x = texts_of(a, words), y = texts_of(b, words);
    Texts both, either = x, only;
    std::ranges::set_intersection(x, y, std::inserter(both, both.end()));
    std::ranges::set_difference(x, y, std::inserter(only, only.end()));
    either.insert(y.begin(), y.end());
    const Automaton two[] = {a, b};
    ASSERT_EQ(texts_of(intersect(a, b, budget), words), both) << round;
    ASSERT_EQ(texts_of(subtract(a, b, budget), words), only) << round;
    ASSERT_EQ(texts_of(unite(two, budget), words), either) << round;
    const Automaton minimal = determinize(a, budget);
    ASSERT_EQ(texts_of(minimal, words), x) << round;
    ASSERT_TRUE(includes(a, minimal, budget) && includes(minimal, a, budget)) << round;
    ASSERT_EQ(includes(a, b, budget), subtract(b, a, budget).empty()) << round;
    if (!both.empty()) {
      ASSERT_FALSE(disjoint(a, b, budget)) << round;
    }
  }
}

TEST(Automaton, EnumeratesFiniteLanguages) {
  Budget budget;
  const Automaton list[] = {Automaton::literal("b"), Automaton::literal("a"), Automaton::literal("")};
  EXPECT_EQ(unite(list, budget).enumerate(3, budget), (std::vector<std::string>{"", "a", "b"}));
  EXPECT_EQ(unite(list, budget).enumerate(2, budget), std::nullopt);
  EXPECT_EQ(repeat(Automaton::literal("ab"), 0, -1, budget).enumerate(10, budget), std::nullopt);
  EXPECT_EQ(Automaton::none().enumerate(0, budget), std::vector<std::string>());
}

std::string utf8(char32_t c) {
  std::string out;
  const auto byte = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (c < 0x80) return byte(c), out;
  if (c < 0x800) return byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f)), out;
  if (c < 0x10000) return byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f)), out;
  byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 0x3f)), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f));
  return out;
}

TEST(Automaton, CodePointsAreExactlyThoseOfTheRanges) {
  std::mt19937 random(2);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::pair<char32_t, char32_t>> ranges;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      const char32_t top = random() % 2 == 0 ? 0x1000 : 0x110000;
      char32_t a = random() % top, b = random() % top;
      if (a > b) std::swap(a, b);
      ranges.emplace_back(a, b);
    }
    const Automaton set = Automaton::code_points(ranges);
    const auto expected = [&](char32_t c) {
      return (c < 0xd800 || c > 0xdfff) &&
             std::ranges::any_of(ranges, [c](const auto& r) { return r.first <= c && c <= r.second; });
    };
    std::vector<char32_t> probes = {0,      0x7f,   0x80,   0x7ff,  0x800,   0xd7ff,
                                    0xd800, 0xdfff, 0xe000, 0xffff, 0x10000, 0x10ffff};
    for (const auto& [a, b] : ranges)
      probes.insert(probes.end(), {a, b, a + 1, a == 0 ? 0 : a - 1, std::min<char32_t>(b + 1, 0x10ffff)});
    for (int i = 0; i < 300; ++i) probes.push_back(random() % 0x110000);
    for (const char32_t c : probes) ASSERT_EQ(set.matches(utf8(c)), expected(c)) << std::hex << uint32_t{c};
  }
  EXPECT_FALSE(any_text().matches("\xc0\x80"));
  EXPECT_FALSE(any_text().matches("\xed\xa0\x80"));
  EXPECT_TRUE(any_text().matches("a\xf0\x9f\x98\x80"));
}

// Writes a text as a JSON string, each character in a random spelling.
std::string random_spelling(const std::u32string& text, std::mt19937& random) {
  std::string out = "\"";
  const auto escape = [&](uint32_t unit) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
      const char* digits = random() % 2 == 0 ? "0123456789abcdef" : "0123456789ABCDEF";
      out.push_back(digits[unit >> shift & 15]);
    }
  };
  for (const char32_t c : text) {
    const bool must = c < 0x20 || c == '"' || c == '\\';
    const bool may = c >= 0x7f || std::u32string(U"&'/<>").find(c) != std::u32string::npos;
    if (!must && (!may || random() % 2 == 0)) {
      out += utf8(c);
    } else if (c < 0x10000) {
      escape(c);
    } else {
      escape(0xd800 + ((c - 0x10000) >> 10));
      escape(0xdc00 + ((c - 0x10000) & 0x3ff));
    }
  }
  return out + "\"";
}

TEST(JsonString, HasEverySpellingOfItsTextsAndNoOther) {
  std::mt19937 random(3);
  Budget budget({.fuel = int64_t{1} << 40, .bytes = int64_t{1} << 40, .time = std::chrono::hours(1)});
  const auto any_character = [&] {
    static constexpr char32_t kTops[] = {0x80, 0x800, 0xd800, 0x110000};
    for (;;) {
      const char32_t c = random() % kTops[random() % 4];
      if (c < 0xd800 || c > 0xdfff) return c;
    }
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<std::pair<char32_t, char32_t>> ranges;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      char32_t a = any_character(), b = any_character();
      if (a > b) std::swap(a, b);
      ranges.emplace_back(a, b);
    }
    const Automaton language = repeat(Automaton::code_points(ranges), 1, 2, budget);
    const Automaton json = json_string(language, budget);
    for (int i = 0; i < 200; ++i) {
      std::u32string text;
      for (size_t n = random() % 4; n > 0; --n) {
        const auto& r = ranges[random() % ranges.size()];
        text.push_back(random() % 3 == 0 ? any_character() : random() % 2 == 0 ? r.first : r.second);
        if (text.back() >= 0xd800 && text.back() <= 0xdfff) text.back() = 'x';
      }
      std::string plain;
      for (const char32_t c : text) plain += utf8(c);
      const std::string spelling = random_spelling(text, random);
      ASSERT_EQ(Json::parse(spelling).get<std::string>(), plain);
      ASSERT_EQ(json.matches(spelling), language.matches(plain)) << spelling;
    }
  }
}

TEST(JsonString, RefusesWhatIsNoString) {
  Budget budget;
  const Automaton json = json_string(any_text(), budget);
  for (const char* good : {R"("")", R"("\/\b\f\n\r\t\"\\")", R"("\ud83d\ude00")", "\"\x7f\""}) {
    EXPECT_TRUE(json.matches(good)) << good;
  }
  for (const char* bad :
       {R"("\ud83d")", R"("\ude00")", R"("\x")", "\"\n\"", "\"", R"("\u12g4")", R"("\u0041")", R"("a"b)", ""}) {
    EXPECT_FALSE(json.matches(bad)) << bad;
  }
}

}  // namespace
}  // namespace sluice::grammar::automaton_test
