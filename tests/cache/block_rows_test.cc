// The block pool with several groups of layers: rows of a leader and followers, which come and go by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "cache/block_pool.h"

namespace sluice::block_rows_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<TokenId>;
using Row = std::vector<BlockId>;  // [groups]

std::vector<BlockHash> names_of(const BlockPool& pool, const Tokens& tokens) {
  std::vector<BlockHash> hashes;
  BlockHash hash = pool.root("");
  for (size_t i = 0; i + pool.block_size() <= tokens.size(); i += pool.block_size()) {
    hashes.push_back(hash = pool.hash(hash, std::span(tokens).subspan(i, pool.block_size())));
  }
  return hashes;
}

std::vector<BlockId> find(const BlockPool& pool, const Tokens& tokens) {
  return pool.find("", names_of(pool, tokens), tokens);
}

// Takes and publishes rows of `groups` for all of `tokens` (a multiple of the block size).
std::vector<Row> fill(BlockPool& pool, int groups, const Tokens& tokens) {
  const int size = pool.block_size();
  const std::vector<BlockHash> hashes = names_of(pool, tokens);
  std::vector<Row> rows;
  for (size_t i = 0; i < hashes.size(); ++i) {
    Row row = *pool.take(groups);
    pool.commit_to_cache(row, i == 0 ? kNoBlock : rows.back()[0], "", hashes[i],
                         std::span(tokens).subspan(i * size, size));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<BlockId> column(const std::vector<Row>& rows, int group) {
  std::vector<BlockId> blocks;
  for (const Row& row : rows) blocks.push_back(row[group]);
  return blocks;
}

TEST(BlockRows, DependentsAreFoundThroughTheirPrimary) {
  BlockPool pool({.blocks = 9, .block_size = 2, .groups = 3});
  const auto rows = fill(pool, 3, {1, 2, 3, 4});
  const auto found = find(pool, {1, 2, 3, 4});
  EXPECT_EQ(found, column(rows, 0));
  for (int group = 0; group < 3; ++group) EXPECT_EQ(pool.in_row(found[1], group), rows[1][group]);
  EXPECT_EQ(fill(pool, 3, {1, 2}), std::vector<Row>{rows[0]}) << "equal content is kept once";
  EXPECT_EQ(pool.holders(rows[0][2]), 2);
  EXPECT_EQ(pool.stats().free, 3);
}

TEST(BlockRows, ADependentIsEvictedAloneAndReplacedByTheNextOne) {
  BlockPool pool({.blocks = 5, .block_size = 1, .groups = 2});
  const auto rows = fill(pool, 2, {1, 2});
  pool.release({&rows[0][1], 1});  // slid out of its window; the leaders are held
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(pool.in_row(rows[0][0], 1), rows[0][1]) << "still there to be found";
  const auto taken = *pool.take(2);
  EXPECT_EQ(pool.stats().evictions, 1u);
  EXPECT_EQ(pool.in_row(rows[0][0], 1), kNoBlock);
  EXPECT_THAT(find(pool, {1, 2}), ElementsAre(rows[0][0], rows[1][0]));
  // Whoever computes the row again gives it what it lost.
  Row again = taken;
  const Tokens tokens{1};
  pool.commit_to_cache(again, kNoBlock, "", names_of(pool, tokens)[0], tokens);
  EXPECT_THAT(again, ElementsAre(rows[0][0], taken[1]));
  EXPECT_EQ(pool.in_row(rows[0][0], 1), taken[1]);
  EXPECT_EQ(pool.available(), 1);
}

TEST(BlockRows, AnEvictedPrimaryTakesItsRowAlong) {
  BlockPool pool({.blocks = 6, .block_size = 1, .groups = 3});
  const auto rows = fill(pool, 3, {1, 2});
  pool.share({&rows[1][2], 1});
  for (int group = 0; group < 3; ++group) pool.release(column(rows, group));
  EXPECT_EQ(pool.available(), 5);
  ASSERT_TRUE(pool.take(1));
  EXPECT_EQ(pool.stats().free, 1) << "the leaf's leader and the follower that nobody holds";
  EXPECT_THAT(find(pool, {1, 2}), ElementsAre(rows[0][0]));
  EXPECT_FALSE(pool.in_prefix_cache(rows[1][2]));
  EXPECT_EQ(pool.holders(rows[1][2]), 1);
  pool.release({&rows[1][2], 1});
  EXPECT_EQ(pool.stats().free, 2);
  EXPECT_EQ(pool.stats().cached, 3);
}

TEST(BlockRows, RowsWithoutDependentsThatSlidOut) {
  BlockPool pool({.blocks = 4, .block_size = 1, .groups = 2});
  Row row{(*pool.take(1))[0], kNoBlock};
  const Tokens tokens{1};
  pool.commit_to_cache(row, kNoBlock, "", names_of(pool, tokens)[0], tokens);
  EXPECT_EQ(pool.in_row(row[0], 1), kNoBlock);
  pool.reset_prefix_cache();
  EXPECT_THAT(find(pool, tokens), IsEmpty());
  pool.release({row.data(), 1});
  EXPECT_EQ(pool.stats().free, 4);
}

// Sequences that reuse what they find, keep followers in windows and end, on a small pool: whatever is found was
// written for that group and those tokens, and no block is lost or has two owners.
class Rows {
 public:
  explicit Rows(uint64_t seed)
      : random_(seed),
        groups_(uniform(1, 4)),
        blocks_(uniform(groups_, 30)),
        size_(uniform(1, 3)),
        pool_({.blocks = blocks_, .block_size = size_, .groups = groups_, .hash_bits = uniform(0, 1) ? 256 : 4}) {}

  void run() {
    for (int step = 0; step < 200; ++step) {
      const int action = uniform(0, 19);
      if (action < 10) begin();
      if (action >= 10 && action < 15) slide();
      if (action >= 15 && action < 19) end();
      if (action == 19 && uniform(0, 9) == 0) pool_.reset_prefix_cache();
      check();
      if (::testing::Test::HasFailure()) return;
    }
    while (!live_.empty()) end();
    EXPECT_EQ(pool_.available(), blocks_);
  }

  static inline int found_dependents = 0, lost_dependents = 0;

 private:
  struct Sequence {
    Tokens tokens;
    std::vector<Row> rows;
  };
  using Content = std::pair<int, Tokens>;  // group, all tokens up to the block's end

  int uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  Content content(int group, const Tokens& tokens, size_t row) const {
    return {group, Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>((row + 1) * size_))};
  }

  void begin() {
    Sequence s;
    for (int i = uniform(1, 5) * size_; i > 0; --i) s.tokens.push_back(uniform(0, 1));
    const auto hashes = names_of(pool_, s.tokens);
    const auto primaries = pool_.find("", hashes, s.tokens);
    for (size_t i = 0; i < primaries.size(); ++i) {
      Row row;
      for (int group = 0; group < groups_; ++group) {
        const BlockId block = pool_.in_row(primaries[i], group);
        row.push_back(block);
        if (group > 0) ++(block == kNoBlock ? lost_dependents : found_dependents);
        if (block == kNoBlock) continue;
        EXPECT_EQ(written_.at(block), content(group, s.tokens, i));
        pool_.share({&block, 1});
      }
      s.rows.push_back(std::move(row));
    }
    const int wanted = static_cast<int>(hashes.size() - primaries.size()) * groups_;
    const auto taken = pool_.take(wanted);
    EXPECT_EQ(taken.has_value(), wanted <= unheld() - held_by(s));
    live_.push_back(s);
    if (!taken) return end();
    for (size_t i = primaries.size(); i < hashes.size(); ++i) {
      const auto first = taken->begin() + static_cast<std::ptrdiff_t>(i - primaries.size()) * groups_;
      Row row(first, first + groups_);
      for (int group = 0; group < groups_; ++group) written_[row[group]] = content(group, s.tokens, i);
      pool_.commit_to_cache(row, i == 0 ? kNoBlock : live_.back().rows.back()[0], "", hashes[i],
                            std::span(s.tokens).subspan(i * size_, size_));
      live_.back().rows.push_back(row);
    }
  }

  // Followers of the first rows go.
  void slide() {
    if (live_.empty()) return;
    Sequence& s = live_[uniform(0, static_cast<int>(live_.size()) - 1)];
    const int group = uniform(0, groups_ - 1), rows = uniform(0, static_cast<int>(s.rows.size()));
    for (int i = 0; group > 0 && i < rows; ++i) {
      BlockId& block = s.rows[i][group];
      if (block != kNoBlock) pool_.release({&block, 1});
      block = kNoBlock;
    }
  }

  void end() {
    if (live_.empty()) return;
    const Sequence s = live_.back();
    live_.pop_back();
    for (int group = 0; group < groups_; ++group) {
      for (auto row = s.rows.rbegin(); row != s.rows.rend(); ++row) {
        if ((*row)[group] != kNoBlock) pool_.release({&(*row)[group], 1});
      }
    }
    std::shuffle(live_.begin(), live_.end(), random_);
  }

  std::map<BlockId, int> holders() const {
    std::map<BlockId, int> count;
    for (const Sequence& s : live_) {
      for (const Row& row : s.rows) {
        for (const BlockId block : row) ++count[block];
      }
    }
    count.erase(kNoBlock);
    return count;
  }

  int unheld() const { return blocks_ - static_cast<int>(holders().size()); }

  // Blocks that only this sequence holds, which is not among the living yet.
  int held_by(const Sequence& s) const {
    const auto others = holders();
    int count = 0;
    for (const Row& row : s.rows) {
      count += static_cast<int>(
          std::ranges::count_if(row, [&](BlockId block) { return block != kNoBlock && !others.contains(block); }));
    }
    return count;
  }

  void check() const {
    const auto count = holders();
    for (BlockId block = 0; block < blocks_; ++block) {
      ASSERT_EQ(pool_.holders(block), count.contains(block) ? count.at(block) : 0) << "block " << block;
    }
    const BlockPoolStats stats = pool_.stats();
    ASSERT_EQ(stats.used, static_cast<int>(count.size()));
    ASSERT_EQ(stats.free + stats.cached + stats.used, blocks_);
    int unheld_and_cached = 0;
    for (BlockId block = 0; block < blocks_; ++block) {
      unheld_and_cached += pool_.in_prefix_cache(block) && !count.contains(block);
    }
    ASSERT_EQ(stats.cached, unheld_and_cached);
    for (const Sequence& s : live_) {
      for (size_t i = 0; i < s.rows.size(); ++i) {
        for (int group = 0; group < groups_; ++group) {
          const BlockId block = s.rows[i][group];
          if (block != kNoBlock) {
            ASSERT_EQ(written_.at(block), content(group, s.tokens, i));
          }
        }
      }
    }
  }

  std::mt19937_64 random_;
  int groups_, blocks_, size_;
  BlockPool pool_;
  std::vector<Sequence> live_;
  std::map<BlockId, Content> written_;
};

TEST(BlockRows, WhatIsFoundWasWrittenForThatGroupAndThoseTokens) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Rows(seed).run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(Rows::found_dependents, 1000);
  EXPECT_GT(Rows::lost_dependents, 1000);
}

}  // namespace
}  // namespace sluice::block_rows_test
