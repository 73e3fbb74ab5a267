// Masks against what a matcher accepts, token by token; members of objects against a count of each kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "grammar/random_grammar.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::mask_test {
namespace {

// Compares the mask with accept() for every token; returns the tokens that are allowed.
std::vector<TokenId> check_mask(const Matcher& m, const Vocabulary& vocabulary) {
  const std::vector<uint32_t> mask = mask_of(m, vocabulary);
  std::vector<TokenId> next;
  for (TokenId token = 0; token < vocabulary.width(); ++token) {
    Matcher copy(m);
    const bool accepted = copy.accept(token);
    EXPECT_EQ(allowed(mask, token), accepted) << "token " << token;
    if (accepted) next.push_back(token);
  }
  return next;
}

TEST(Masks, AllowExactlyTheTokensThatAreAccepted) {
  std::mt19937 random(7);
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const std::shared_ptr<const Grammar> grammar = RandomGrammar(seed).finish();
    if (!grammar) continue;
    std::vector<std::string> list = {"", "a", "b", "c", "d", "ab", "ab"};  // one unused, one outside, one twice
    for (int i = 0; i < 20; ++i) {
      std::string token;
      for (size_t n = 1 + random() % 4; n > 0; --n) token.push_back(static_cast<char>('a' + random() % 3));
      list.push_back(token);
    }
    const TokenId end = static_cast<TokenId>(list.size()) + 2;
    const auto tokens = vocabulary_of(list, {end});
    Matcher m(grammar, tokens);
    for (int step = 0; step < 12; ++step) {
      std::vector<TokenId> next = check_mask(m, *tokens);
      ASSERT_FALSE(HasFailure()) << seed << " at step " << step;
      EXPECT_EQ(std::erase(next, end), m.complete() ? 1u : 0u);
      if (next.empty()) break;
      ASSERT_TRUE(m.accept(next[random() % next.size()]));
    }
  }
}

// A character that a JSON string holds as it is.
Automaton plain_character(Budget& budget) {
  const auto sequence = [&](std::initializer_list<std::pair<int, int>> bytes) {
    Automaton out = Automaton::literal("");
    for (const auto& [first, last] : bytes) {
      out = concatenate(out, Automaton::bytes(static_cast<uint8_t>(first), static_cast<uint8_t>(last)), budget);
    }
    return out;
  };
  const std::pair<int, int> more = {0x80, 0xbf};
  const Automaton all[] = {sequence({{0x20, 0x21}}),
                           sequence({{0x23, 0x5b}}),
                           sequence({{0x5d, 0x7f}}),
                           sequence({{0xc2, 0xdf}, more}),
                           sequence({{0xe0, 0xe0}, {0xa0, 0xbf}, more}),
                           sequence({{0xe1, 0xec}, more, more}),
                           sequence({{0xed, 0xed}, {0x80, 0x9f}, more}),
                           sequence({{0xee, 0xef}, more, more}),
                           sequence({{0xf0, 0xf0}, {0x90, 0xbf}, more, more}),
                           sequence({{0xf1, 0xf3}, more, more, more}),
                           sequence({{0xf4, 0xf4}, {0x80, 0x8f}, more, more})};
  return unite(all, budget);
}

// Masks of plain tokens come from tables instead of a walk, by the number of characters that are left.
TEST(Masks, OfBoundedStringsAreExact) {
  std::mt19937 random(3);
  const std::vector<std::string> pieces = {"a", "Z", " ", "é", "漢", "😀", "\"", "\\", "\n", "\xc3", "\xa9", "\xf0\x9f"};
  std::vector<std::string> list;
  for (int i = 0; i < 300; ++i) {
    std::string token;
    for (size_t n = 1 + random() % 6; n > 0; --n) token += pieces[random() % pieces.size()];
    list.push_back(token);
  }
  const auto tokens = vocabulary_of(list);
  Budget budget;
  const Automaton character = plain_character(budget);
  using Bounds = std::pair<int, int>;
  for (const auto& [least, most] : {Bounds{0, -1}, Bounds{0, 3}, Bounds{2, 9}, Bounds{5, 100}, Bounds{0, 1'000'000}}) {
    Builder builder(budget);
    const NodeId parts[] = {builder.literal("\""), builder.repeat(builder.regular(character), least, most),
                            builder.literal("\"")};
    const std::shared_ptr<const Grammar> grammar = builder.finish(builder.sequence(parts));
    for (int text = 0; text < 5; ++text) {
      Matcher m(grammar, tokens);
      ASSERT_TRUE(m.accept("\""));
      for (int step = 0; step < 30; ++step) {
        const std::vector<TokenId> next = check_mask(m, *tokens);
        ASSERT_FALSE(HasFailure()) << least << " .. " << most << " at step " << step;
        if (next.empty()) break;
        ASSERT_TRUE(m.accept(next[random() % next.size()]));
      }
    }
  }
}

struct Object {
  Members members;
  std::vector<bool> has_value;  // by class; others are never begun
};

Object random_object(Builder& builder, std::mt19937& random) {
  Object o;
  o.members.colon = builder.literal(":");
  o.members.separator = builder.literal(",");
  o.members.least = static_cast<int>(random() % 3);
  o.members.most = random() % 2 == 0 ? -1 : o.members.least + static_cast<int>(random() % 3);
  o.members.in_order = random() % 4 == 0;
  const size_t classes = 1 + random() % 4;
  for (size_t i = 0; i < classes; ++i) {
    o.has_value.push_back(random() % 6 != 0);
    Members::Class c{.key = Automaton::literal(std::string(1, static_cast<char>('a' + i))),
                     .value = o.has_value.back() ? builder.literal("1") : builder.nothing(),
                     .once = random() % 3 != 0,
                     .required = random() % 3 == 0};
    if (random() % 3 == 0) c.implies.push_back(static_cast<int>(random() % classes));
    o.members.classes.push_back(std::move(c));
  }
  return o;
}

bool is_object(const Object& o, const std::string& keys) {
  const Members& m = o.members;
  const auto count = [&](size_t c) { return std::count(keys.begin(), keys.end(), static_cast<char>('a' + c)); };
  if (static_cast<int>(keys.size()) < m.least || (m.most >= 0 && static_cast<int>(keys.size()) > m.most)) return false;
  if (m.in_order && !std::is_sorted(keys.begin(), keys.end())) return false;
  for (size_t c = 0; c < m.classes.size(); ++c) {
    if (count(c) == 0 && m.classes[c].required) return false;
    if (count(c) > 1 && m.classes[c].once) return false;
    if (count(c) > 0 && !o.has_value[c]) return false;
    for (const int implied : m.classes[c].implies) {
      if (count(c) > 0 && count(static_cast<size_t>(implied)) == 0) return false;
    }
  }
  return true;
}

TEST(MembersOfObjects, AreThoseThatCompleteTheObject) {
  const auto tokens = vocabulary_of({"a"});
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    Budget budget;
    Builder builder(budget);
    const Object object = random_object(builder, random);
    std::vector<std::string> lists = {""};
    for (size_t i = 0; i < lists.size() && lists[i].size() < 5; ++i) {
      const std::string list = lists[i];
      for (size_t c = 0; c < object.has_value.size(); ++c) lists.push_back(list + static_cast<char>('a' + c));
    }
    const bool any =
        std::any_of(lists.begin(), lists.end(), [&](const std::string& l) { return is_object(object, l); });
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = builder.finish(builder.members(object.members));
    } catch (const GrammarError&) {
      ASSERT_FALSE(any) << round;
      continue;
    }
    ASSERT_TRUE(any) << round;
    for (const std::string& list : lists) {
      std::string text;
      for (const char c : list) text += (text.empty() ? "" : ",") + std::string(1, c) + ":1";
      Matcher m(grammar, tokens);
      const bool alive = m.accept(text);
      ASSERT_EQ(alive && m.complete(), is_object(object, list)) << round << " " << list;
      const bool completes = std::any_of(lists.begin(), lists.end(), [&](const std::string& l) {
        return l.starts_with(list) && is_object(object, l);
      });
      if (list.size() < 3) {
        ASSERT_EQ(alive, completes) << round << " " << list;
      }
    }
  }
}

TEST(FreeText, EndsAtTheFirstEnd) {
  Budget budget;
  Builder builder(budget);
  std::vector<Builder::End> ends = {{.bytes = "<t>", .special = {}, .then = builder.literal("{}</t>")},
                                    {.bytes = "", .special = 9, .then = builder.literal("!")}};
  const auto tokens = vocabulary_of({"<", "t", ">", "x", "<t>", "{}", "</t>", "!", "é"});
  Matcher m(builder.finish(builder.free_text(std::move(ends), false)), tokens);
  EXPECT_TRUE(m.complete());
  ASSERT_TRUE(m.accept("x<é<t"));
  EXPECT_TRUE(m.complete());
  EXPECT_FALSE(m.accept("\xff"));
  Matcher other(m);
  ASSERT_TRUE(other.accept("t"));
  ASSERT_TRUE(m.accept(">"));
  EXPECT_FALSE(m.complete());
  EXPECT_FALSE(m.accept("x"));
  ASSERT_TRUE(m.accept("{}</t>"));
  EXPECT_TRUE(m.ended());
  check_mask(other, *tokens);
  EXPECT_TRUE(allowed(mask_of(other, *tokens), 9));
  ASSERT_TRUE(other.accept(9));
  EXPECT_FALSE(other.accept("x"));
  ASSERT_TRUE(other.accept("!"));
  EXPECT_TRUE(other.ended());
}

}  // namespace
}  // namespace sluice::grammar::mask_test
