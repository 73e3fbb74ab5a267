// The recognizer against plain definitions of the same languages.
#include <gtest/gtest.h>

#include <thread>

#include "grammar/random_grammar.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::recognizer_test {
namespace {

TEST(Recognizer, AcceptsExactlyTheTextsOfRandomGrammars) {
  const std::vector<std::string> words = all_words(5);
  const auto tokens = vocabulary_of({"a", "b", "c"});
  int grammars = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    RandomGrammar reference(seed);
    const std::shared_ptr<const Grammar> grammar = reference.finish();
    ASSERT_EQ(grammar == nullptr && !reference.texts().empty(), false) << seed;
    if (!grammar) continue;
    ++grammars;
    const Matcher start(grammar, tokens);
    Texts prefixes;
    for (const std::string& text : reference.texts()) {
      for (size_t n = 0; n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
    }
    for (const std::string& word : words) {
      Matcher m(start);
      const bool alive = m.accept(word);
      ASSERT_EQ(alive && m.complete(), reference.texts().contains(word)) << seed << " '" << word << "'";
      ASSERT_TRUE(alive || !prefixes.contains(word)) << seed << " '" << word << "'";
    }
  }
  EXPECT_GT(grammars, 1000);
}

// Whether a text completes `m` within `steps` further bytes, as far as a bounded search tells.
bool can_be_completed(const Matcher& m, int steps) {
  std::vector<Matcher> level = {m};
  for (int n = 0; n <= steps; ++n) {
    std::vector<Matcher> next;
    for (const Matcher& from : level) {
      if (from.complete()) return true;
      for (const char* c : {"a", "b", "c"}) {
        Matcher to(from);
        if (next.size() < 2000 && to.accept(c)) next.push_back(std::move(to));
      }
    }
    level = std::move(next);
  }
  return false;
}

TEST(Recognizer, HasNoDeadEnds) {
  const auto tokens = vocabulary_of({"a", "b", "c"});
  int grammars = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    RandomGrammar reference(seed);
    const std::shared_ptr<const Grammar> grammar = reference.finish();
    if (!grammar || reference.texts().empty()) continue;  // the shortest text may be too long for the search
    ++grammars;
    for (const std::string& word : all_words(4)) {
      Matcher m(grammar, tokens);
      if (!m.accept(word)) continue;
      ASSERT_TRUE(can_be_completed(m, 40)) << seed << " '" << word << "'";
    }
  }
  EXPECT_GT(grammars, 100);
}

TEST(Recognizer, TakesDeepNesting) {
  Budget budget;
  Builder builder(budget);
  const NodeId value = builder.declare("value");
  const NodeId parts[] = {builder.literal("["), builder.separated(value, builder.literal(","), 0, -1),
                          builder.literal("]")};
  builder.define(value, builder.sequence(parts));
  const auto tokens = vocabulary_of({"[", "]", ","});
  Matcher m(builder.finish(value), tokens);
  ASSERT_TRUE(m.accept(std::string(100'000, '[')));
  mask_of(m, *tokens);
  ASSERT_TRUE(m.accept(std::string(100'000, ']')));
  EXPECT_TRUE(m.ended());
}

TEST(Recognizer, TakesLongRepeatsWithoutStatesInAdvance) {
  Budget budget({.fuel = 1000});
  Builder builder(budget);
  Matcher m(builder.finish(builder.repeat(builder.literal("a"), 50'000, 100'000)), vocabulary_of({"a"}));
  ASSERT_TRUE(m.accept(std::string(49'999, 'a')));
  EXPECT_FALSE(m.complete());
  ASSERT_TRUE(m.accept(std::string(1, 'a')));
  EXPECT_TRUE(m.complete());
  ASSERT_TRUE(m.accept(std::string(50'000, 'a')));
  EXPECT_TRUE(m.ended());
  EXPECT_FALSE(m.accept("a"));
}

TEST(Recognizer, CollectsMemoryAndKeepsTheStatesOfMatchers) {
  Budget budget;
  Builder builder(budget);
  const NodeId s = builder.declare("s");
  const NodeId nested[] = {builder.literal("a"), s, builder.literal("b")};
  const NodeId other[] = {builder.literal("a"), s, builder.literal("c")};
  const NodeId alternatives[] = {builder.sequence(nested), builder.sequence(other), builder.literal("a")};
  builder.define(s, builder.choice(alternatives));
  const std::shared_ptr<const Grammar> grammar = builder.finish(s);
  const auto tokens = vocabulary_of({"a", "b", "c"});
  std::vector<Matcher> held;
  for (size_t i = 1; i < 40; ++i) {
    Matcher m(grammar, tokens);
    ASSERT_TRUE(m.accept(std::string(1000 * i, 'a')));
    held.push_back(std::move(m));
  }
  for (size_t i = 0; i < held.size(); ++i) {
    ASSERT_TRUE(held[i].accept(std::string(1000 * (i + 1) - 1, i % 2 == 0 ? 'b' : 'c')));
    EXPECT_TRUE(held[i].ended());
  }
  EXPECT_LT(memory_of(*grammar), size_t{200} << 20);
}

TEST(Matcher, ForcesWhatMustCome) {
  Budget budget;
  Builder builder(budget);
  const NodeId either[] = {builder.literal("cat"), builder.literal("car")};
  const NodeId parts[] = {builder.literal("a "), builder.choice(either), builder.literal("!")};
  Matcher m(builder.finish(builder.sequence(parts)), vocabulary_of({"a"}));
  std::string forced;
  m.forced(forced, 100);
  EXPECT_EQ(forced, "a ca");
  ASSERT_TRUE(m.accept("a car"));
  forced.clear();
  m.forced(forced, 100);
  EXPECT_EQ(forced, "!");
}

TEST(Matcher, WorksInSeveralThreads) {
  Budget budget;
  Builder builder(budget);
  const NodeId letters[] = {builder.literal("a"), builder.literal("bc"), builder.literal("cab")};
  const std::shared_ptr<const Grammar> grammar = builder.finish(builder.repeat(builder.choice(letters), 1, 4));
  const auto in_language = [&](const std::string& word) {
    Matcher m(grammar, vocabulary_of({"a"}));
    return m.accept(word) && m.complete();
  };
  const auto tokens = vocabulary_of({"a", "b", "c", "ab", "bc", "cc"});
  const std::vector<std::string> words = all_words(5);
  Texts expected;
  for (const std::string& word : words) {
    if (in_language(word)) expected.insert(word);
  }
  EXPECT_GT(expected.size(), 10u);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const std::string& word : words) {
        Matcher m(grammar, tokens);
        const bool accepted = m.accept(word) && m.complete();
        EXPECT_EQ(accepted, expected.contains(word));
        mask_of(m, *tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sluice::grammar::recognizer_test
