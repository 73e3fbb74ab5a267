// Tests the table of prefixes.
#include "cache/prefix_table.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr ReplicaMask kAll = ~ReplicaMask{0};

std::vector<ChainHash> chain_of(uint8_t name, size_t blocks) {
  std::vector<ChainHash> chain(blocks);
  for (size_t i = 0; i < blocks; ++i) chain[i] = {name, static_cast<uint8_t>(i), 1};
  return chain;
}

// `first` blocks of chain a, then blocks of chain b.
std::vector<ChainHash> branch(size_t first, size_t more) {
  auto chain = chain_of('a', first);
  for (const ChainHash& hash : chain_of('b', more)) chain.push_back(hash);
  return chain;
}

TEST(PrefixTable, FindsTheLongestPrefix) {
  PrefixTable table(1 << 20);
  EXPECT_EQ(table.find(chain_of('a', 4), kAll).blocks, 0u);
  table.remember(chain_of('a', 4), 0);
  table.remember(branch(2, 6), 1);
  const auto a = table.find(chain_of('a', 9), kAll);
  EXPECT_EQ(a.blocks, 4u);
  EXPECT_EQ(a.replicas, 1u);
  const auto b = table.find(branch(2, 3), kAll);
  EXPECT_EQ(b.blocks, 5u);
  EXPECT_EQ(b.replicas, 2u);
  const auto both = table.find(chain_of('a', 2), kAll);
  EXPECT_EQ(both.blocks, 2u);
  EXPECT_EQ(both.replicas, 3u);
  EXPECT_EQ(table.find(chain_of('a', 9), 2).blocks, 2u);  // replica 0 may not be chosen
  EXPECT_EQ(table.find(chain_of('c', 9), kAll).replicas, 0u);
  EXPECT_EQ(table.find({}, kAll).replicas, 0u);
}

TEST(PrefixTable, IsBoundedAndForgetsTheEndsFirst) {
  PrefixTable table(10 * PrefixTable::kBytesPerBlock);
  table.remember(chain_of('a', 6), 0);
  table.remember(chain_of('b', 4), 0);
  table.remember(chain_of('c', 3), 0);
  EXPECT_EQ(table.blocks(), 10u);
  EXPECT_EQ(table.bytes(), 10 * PrefixTable::kBytesPerBlock);
  EXPECT_EQ(table.find(chain_of('a', 6), kAll).blocks, 3u);
  EXPECT_EQ(table.find(chain_of('b', 4), kAll).blocks, 4u);
  EXPECT_EQ(table.find(chain_of('c', 3), kAll).blocks, 3u);
  table.remember(chain_of('a', 1), 0);  // used again
  table.remember(chain_of('d', 7), 0);
  EXPECT_EQ(table.find(chain_of('a', 6), kAll).blocks, 1u);
  EXPECT_EQ(table.find(chain_of('d', 7), kAll).blocks, 7u);
}

TEST(PrefixTable, KeepsTheBeginningOfAChainThatIsLongerThanTheTable) {
  PrefixTable table(5 * PrefixTable::kBytesPerBlock);
  table.remember(chain_of('a', 50), 3);
  EXPECT_EQ(table.find(chain_of('a', 50), kAll).blocks, 5u);
}

TEST(PrefixTable, WithoutMemoryItRemembersNothing) {
  PrefixTable table(0);
  table.remember(chain_of('a', 5), 0);
  EXPECT_EQ(table.blocks(), 0u);
  EXPECT_EQ(table.find(chain_of('a', 5), kAll).blocks, 0u);
}

TEST(PrefixTable, AReplicaThatStartedAnewHasNothing) {
  PrefixTable table(1 << 20);
  table.remember(chain_of('a', 4), 0);
  table.remember(chain_of('a', 4), 1);
  table.remember(chain_of('b', 4), 63);
  table.forget(0);
  EXPECT_EQ(table.find(chain_of('a', 4), kAll).replicas, 2u);
  table.remember(chain_of('a', 2), 0);
  EXPECT_EQ(table.find(chain_of('a', 2), kAll).replicas, 3u);
  EXPECT_EQ(table.find(chain_of('a', 4), 1).blocks, 2u);
  table.forget(1);
  table.forget(63);
  EXPECT_EQ(table.find(chain_of('a', 4), kAll).blocks, 2u);
  EXPECT_EQ(table.find(chain_of('b', 4), kAll).blocks, 0u);
  table.remember(chain_of('b', 1), 5);  // a change does not bring back what was forgotten
  EXPECT_EQ(table.find(chain_of('b', 1), kAll).replicas, ReplicaMask{1} << 5);
}

}  // namespace
}  // namespace sluice
