// Where requests go: to their prefix, to the least loaded replica, or in turn.
#include "engine/placement.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

constexpr ReplicaMask kAll = 7;  // three replicas

std::vector<TokenId> prompt_of(TokenId first, size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(Placement, AChainCoversWholeBlocksAndTheSalt) {
  const std::vector<TokenId> prompt = prompt_of(1, 3 * Placement::kBlock - 1);
  const auto chain = Placement::chain_of(prompt, "a");
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(Placement::chain_of(std::span(prompt).first(2 * Placement::kBlock), "a"), chain);
  EXPECT_NE(Placement::chain_of(prompt, "b")[0], chain[0]);
  std::vector<TokenId> other = prompt;
  ++other[0];
  EXPECT_NE(Placement::chain_of(other, "a")[1], chain[1]);
  EXPECT_TRUE(Placement::chain_of(std::span(prompt).first(Placement::kBlock - 1), "a").empty());
}

TEST(Placement, EquallyLoadedReplicasTakeTurns) {
  Placement placement(3);
  std::vector<int> counts(3);
  for (int i = 0; i < 9; ++i) ++counts[static_cast<size_t>(placement.choose({}, kAll))];
  EXPECT_EQ(counts, (std::vector<int>{3, 3, 3}));
}

TEST(Placement, TheLeastLoadedReplicaGetsARequest) {
  Placement placement(3);
  const auto a = placement.enter(0, {}, 5), b = placement.enter(2, {}, 4);
  EXPECT_EQ(placement.choose({}, kAll), 1);
  const auto c = placement.enter(1, {}, 9);
  EXPECT_EQ(placement.choose({}, kAll), 2);
  EXPECT_EQ(placement.choose({}, 0b011), 0);
}

TEST(Placement, LoadEndsWithTheLastCopy) {
  Placement placement(2);
  auto entered = placement.enter(1, {}, 3);
  auto copy = entered;
  entered.reset();
  EXPECT_EQ(placement.load(1), 3);
  copy.reset();
  EXPECT_EQ(placement.load(1), 0);
}

TEST(Placement, LoadMayEndAfterThePlacement) {
  std::shared_ptr<const void> entered;
  {
    Placement placement(2);
    entered = placement.enter(0, {}, 1);
  }
  entered.reset();
}

TEST(Placement, APrefixGoesWhereItIsUnlessThereIsTooMuchLoad) {
  Placement placement(3);
  const auto chain = Placement::chain_of(prompt_of(1, 4 * Placement::kBlock), "");
  const auto longer = Placement::chain_of(prompt_of(1, 6 * Placement::kBlock), "");
  const auto entered = placement.enter(2, chain, 1);
  EXPECT_EQ(placement.choose(longer, kAll), 2);
  const auto more = placement.enter(2, {}, Placement::kImbalance - 1);
  EXPECT_EQ(placement.choose(longer, kAll), 2);
  const auto most = placement.enter(2, {}, 1);
  EXPECT_NE(placement.choose(longer, kAll), 2);
  const auto others = {placement.enter(0, {}, 4), placement.enter(1, {}, 4)};
  EXPECT_EQ(placement.choose(longer, kAll), 2);
  EXPECT_NE(placement.choose(longer, 0b011), 2);
  placement.forget_prefixes(2);
  const auto last = placement.enter(2, {}, 4);
  EXPECT_NE(placement.choose(longer, kAll), 2);
}

TEST(Placement, LongPromptsAreMoreLoad) {
  EXPECT_EQ(Placement::load_of(1, 0), 1);
  EXPECT_EQ(Placement::load_of(1, 1023), 1);
  EXPECT_EQ(Placement::load_of(3, 10 * 1024), 13);
}

}  // namespace
}  // namespace sluice
