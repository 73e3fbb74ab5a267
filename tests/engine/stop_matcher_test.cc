// Stop strings across piece boundaries, compared with a search in the whole text.
#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace sluice::stop_matcher_test {
namespace {

StopMatcher matcher_of(const std::vector<std::string>& stops, bool include) {
  return {std::make_shared<const StopAutomaton>(stops), include};
}

// Returns the stop string that ends first; of several that end together, the longest.
std::string reference(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& s : stops) {
      if (!s.empty() && s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0 &&
          (best == nullptr || s.size() > best->size())) {
        best = &s;
      }
    }
    if (best != nullptr) return text.substr(0, include ? end : end - best->size());
  }
  return text;
}

TEST(StopMatcher, EqualsASearchInTheWholeTextForEverySplit) {
  std::mt19937 rng(7);
  const auto random_text = [&](int longest) {
    std::string s(rng() % (longest + 1), ' ');
    for (char& c : s) c = static_cast<char>('a' + rng() % 2);
    return s;
  };
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_text(24);
    std::vector<std::string> stops(rng() % 4);
    for (std::string& s : stops) s = random_text(5);
    const bool include = rng() % 2 == 0;
    StopMatcher matcher = matcher_of(stops, include);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + rng() % 4;
      shown += matcher.push(text.substr(at, n));
      at += n;
    }
    shown += matcher.finish();
    ASSERT_EQ(shown, reference(text, stops, include)) << text;
    ASSERT_EQ(matcher.matched(),
              reference(text, stops, include) != text || (include && reference(text, stops, false) != text));
  }
}

// A thousand strings that share prefixes. With one matcher per string this would take a thousand times as long.
TEST(StopMatcher, ManyStringsAreOneAutomaton) {
  std::vector<std::string> stops;
  for (int i = 0; i < 1024; ++i) stops.push_back(std::string(59, 'a') + std::to_string(1000 + i));
  StopMatcher matcher = matcher_of(stops, false);
  std::string shown;
  for (int i = 0; i < 20000; ++i) shown += matcher.push(std::string(100, 'a'));
  EXPECT_EQ(shown.size(), 2'000'000u - 59);
  shown += matcher.push("1500");
  ASSERT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.match(), stops[500]);
  EXPECT_EQ(shown.size(), 2'000'000u - 59);
}

TEST(StopMatcher, CopiesOfAListShareAnAutomaton) {
  StopAutomata automata;
  const SharedList<std::string> stops = {"a", "b"}, copy = stops, other = {"a", "b"};
  auto first = automata.get(stops);
  EXPECT_EQ(first, automata.get(copy));
  EXPECT_NE(first, automata.get(other));
  EXPECT_EQ(automata.get({}), nullptr);
  const std::weak_ptr<const StopAutomaton> weak = first;
  first.reset();
  EXPECT_TRUE(weak.expired());
  EXPECT_NE(automata.get(stops), nullptr);
}

TEST(StopMatcher, WithoutStopsTextPasses) {
  StopMatcher matcher(nullptr, false);
  EXPECT_EQ(matcher.push("text"), "text");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, HoldsBackOnlyWhatIsUndecided) {
  StopMatcher matcher = matcher_of({"END"}, false);
  EXPECT_EQ(matcher.push("textE"), "text");
  EXPECT_EQ(matcher.push("x"), "Ex");
  EXPECT_EQ(matcher.push("EN"), "");
  EXPECT_EQ(matcher.push("D more"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.match(), "END");
  EXPECT_EQ(matcher.push("more"), "");
}

TEST(StopMatcher, UnarmedTextPassesAndCannotBeginAMatch) {
  StopMatcher matcher = matcher_of({"ab"}, false);
  EXPECT_EQ(matcher.push("ab a", false), "ab a");
  EXPECT_EQ(matcher.push("b", true), "b");
  EXPECT_EQ(matcher.push("ab", true), "");
  EXPECT_TRUE(matcher.matched());
}

}  // namespace
}  // namespace sluice::stop_matcher_test
