// What waits for the next turn of a session, and when it gives way.
#include "cache/sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cache/prompts.h"

namespace sluice::sessions_test {
namespace {

using namespace testing;  // cache/prompts.h
using namespace std::chrono_literals;

constexpr int kSize = 2;  // tokens of a block

Tokens text(int first, int blocks) {
  Tokens tokens;
  for (int i = 0; i < blocks * kSize; ++i) tokens.push_back(first + i);
  return tokens;
}

class SessionsTest : public ::testing::Test {
 protected:
  void start(int blocks, int most_pinned) {
    pool_.emplace(
        BlockPoolOptions{.blocks = blocks, .block_size = kSize, .on_pinned_needed = [this] { sessions_->displace(); }});
    sessions_.emplace(*pool_, most_pinned);
  }
  // A turn whose tokens are in the cache when it ends.
  void turn(const std::string& name, const Tokens& tokens, Sessions::Time expires = Sessions::Time() + 10s) {
    const std::vector<BlockId> blocks = fill(*pool_, "", tokens);
    sessions_->keep(name, blocks.back(), 0, expires);
    pool_->release(blocks);
  }
  void other(const Tokens& tokens) { pool_->release(fill(*pool_, "", tokens)); }
  size_t cached(const Tokens& tokens) const { return find(*pool_, "", tokens).size(); }
  // Takes blocks as a running sequence does, and gives them back.
  void use(int blocks) {
    const auto taken = pool_->take(blocks);
    ASSERT_TRUE(taken);
    pool_->release(*taken);
  }

  std::optional<BlockPool> pool_;
  std::optional<Sessions> sessions_;
};

TEST_F(SessionsTest, ItsBlocksAreEvictedLast) {
  start(6, 4);
  turn("a", text(100, 3));
  other(text(200, 3));  // used later
  EXPECT_EQ(pool_->available(), 6);
  EXPECT_EQ(pool_->pinned(), 3);
  use(3);
  EXPECT_EQ(cached(text(100, 3)), 3u);
  EXPECT_EQ(cached(text(200, 3)), 0u);
}

TEST_F(SessionsTest, GivesWayToWhatRuns) {
  start(6, 6);
  turn("a", text(100, 3));
  turn("b", text(200, 3));
  use(4);  // the session that was used least recently loses its pins
  EXPECT_EQ(cached(text(200, 3)), 2u) << "only the leaf is evicted";
  EXPECT_EQ(sessions_->stats().sessions, 0);
  EXPECT_EQ(sessions_->stats().displaced, 2u);
  EXPECT_EQ(pool_->pinned(), 0);
}

// A row without all of its dependent blocks gets them from the next sequence that computes it.
TEST_F(SessionsTest, ARowThatGetsABlockKeepsToTheQuota) {
  pool_.emplace(BlockPoolOptions{
      .blocks = 6, .block_size = kSize, .groups = 2, .on_pinned_needed = [this] { sessions_->displace(); }});
  sessions_.emplace(*pool_, 1);
  const Tokens tokens = text(100, 1);
  const BlockHash hash = pool_->hash(pool_->root(""), tokens);
  const auto commit = [&](std::vector<BlockId> row) {
    pool_->commit_to_cache(row, kNoBlock, "", hash, tokens);
    return row;
  };
  const std::vector<BlockId> taken = *pool_->take(3);
  const std::vector<BlockId> first = commit({taken[0], kNoBlock});
  sessions_->keep("a", first[0], 1, Sessions::Time() + 10s);
  EXPECT_EQ(pool_->pinned(), 1);
  commit({taken[1], taken[2]});
  sessions_->keep_to_quota();
  EXPECT_EQ(pool_->pinned(), 0);
  EXPECT_EQ(sessions_->stats().displaced, 1u);
}

TEST_F(SessionsTest, OnlySoMuchIsPinned) {
  start(10, 5);
  turn("a", text(100, 3));
  turn("b", text(200, 3));
  EXPECT_EQ(sessions_->stats().sessions, 1);
  EXPECT_EQ(pool_->pinned(), 3);
  use(7);
  EXPECT_EQ(cached(text(100, 3)), 0u);
  EXPECT_EQ(cached(text(200, 3)), 3u);
  turn("c", text(300, 6));  // more than the limit
  EXPECT_EQ(sessions_->stats().sessions, 0);
  EXPECT_EQ(cached(text(300, 6)), 6u) << "it is cached like any other text";
}

TEST_F(SessionsTest, TheNextTurnTakesThePlaceOfTheLast) {
  start(10, 10);
  turn("a", text(100, 2));
  turn("a", text(100, 4));
  EXPECT_EQ(pool_->pinned(), 4);
  turn("a", text(500, 1));  // another text
  EXPECT_EQ(pool_->pinned(), 1);
  EXPECT_EQ(sessions_->stats().sessions, 1);
}

TEST_F(SessionsTest, EndsByTimeOrByCall) {
  start(10, 10);
  const Sessions::Time begin;
  turn("a", text(100, 2), begin + 1s);
  turn("b", text(200, 2), begin + 2s);
  turn("c", text(300, 2), begin + 3s);
  EXPECT_EQ(sessions_->next_expiry(), begin + 1s);
  sessions_->extend("a", begin + 5s);
  sessions_->extend("c", begin + 1s);  // earlier than it was: nothing changes
  sessions_->extend("unknown", begin + 1s);
  EXPECT_EQ(sessions_->next_expiry(), begin + 2s);
  sessions_->expire(begin + 2s);
  EXPECT_EQ(pool_->pinned(), 4);
  EXPECT_EQ(sessions_->stats().expired, 1u);
  sessions_->end("a");
  sessions_->end("a");
  EXPECT_EQ(pool_->pinned(), 2);
  sessions_->end_all();
  EXPECT_EQ(pool_->pinned(), 0);
  EXPECT_FALSE(sessions_->next_expiry());
}

TEST_F(SessionsTest, SharedBlocksArePinnedUntilTheLastSessionEnds) {
  start(10, 10);
  Tokens one = text(100, 2), two = one;
  for (const TokenId token : text(200, 1)) one.push_back(token);
  for (const TokenId token : text(300, 1)) two.push_back(token);
  turn("a", one);
  turn("b", two);
  EXPECT_EQ(pool_->pinned(), 4) << "two blocks are common";
  sessions_->end("a");
  EXPECT_EQ(pool_->pinned(), 3);
  use(7);
  EXPECT_EQ(cached(two), 3u);
  EXPECT_EQ(cached(one), 2u);
}

// Of a layer with a window only the last rows are needed.
TEST(SessionsOfGroups, TheDependentBlocksOfTheLastRowsArePinned) {
  BlockPool pool({.blocks = 8, .block_size = kSize, .groups = 2});
  const Tokens tokens = text(100, 3);
  const std::vector<BlockHash> hashes = hashes_of_prompt(pool, "", tokens);
  std::vector<BlockId> blocks = *pool.take(6);
  for (size_t row = 0; row < 3; ++row) {
    pool.commit_to_cache(std::span(blocks).subspan(2 * row, 2), row == 0 ? kNoBlock : blocks[2 * row - 2], "",
                         hashes[row], std::span(tokens).subspan(row * kSize, kSize));
  }
  pool.pin(blocks[4], 2);
  EXPECT_EQ(pool.pinned(), 5);
  pool.release(blocks);
  pool.release(*pool.take(3));  // two were free; the third is the dependent block of the first row
  EXPECT_EQ(pool.in_row(blocks[0], 1), kNoBlock);
  EXPECT_EQ(pool.in_row(blocks[2], 1), blocks[3]);
  EXPECT_EQ(pool.in_row(blocks[4], 1), blocks[5]);
  pool.unpin(blocks[4], 2);
  EXPECT_EQ(pool.pinned(), 0);
  EXPECT_TRUE(pool.take(8));
}

// Whatever happens, the text of a session is in the cache as long as the session is there.
TEST(SessionsAtRandom, TextsOfSessionsAreCached) {
  std::mt19937 random(1);
  const auto uniform = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  for (int round = 0; round < 200; ++round) {
    std::optional<Sessions> sessions;
    const int blocks = uniform(8, 30), most = uniform(0, blocks);
    BlockPool pool({.blocks = blocks, .block_size = kSize, .on_pinned_needed = [&] { sessions->displace(); }});
    sessions.emplace(pool, most);
    std::map<std::string, Tokens> texts;
    std::vector<std::vector<BlockId>> held;
    Sessions::Time now{};
    for (int step = 0; step < 200; ++step) {
      now += std::chrono::milliseconds(uniform(0, 20));
      sessions->expire(now);
      const std::string name(1, static_cast<char>('a' + uniform(0, 5)));
      const int kind = uniform(0, 9);
      if (kind == 0) {
        sessions->end(name);
        texts.erase(name);
      } else if (kind == 1 && !held.empty()) {
        pool.release(held.back());
        held.pop_back();
      } else if (kind == 2) {
        if (const auto taken = pool.take(uniform(1, 6))) held.push_back(*taken);
      } else {
        Tokens tokens = text(uniform(0, 2) * 100, uniform(1, 3));
        for (const TokenId token : text(1000 + uniform(0, 3) * 100, uniform(0, 4))) tokens.push_back(token);
        if (static_cast<int>(tokens.size()) / kSize > pool.available()) continue;
        const std::vector<BlockId> own = fill(pool, "", tokens);
        if (uniform(0, 2) > 0) {
          sessions->keep(name, own.back(), 0, now + std::chrono::milliseconds(uniform(1, 400)));
          texts[name] = tokens;
        }
        pool.release(own);
      }
      ASSERT_LE(pool.pinned(), most);
      size_t found = 0;
      for (const auto& [_, tokens] : texts) found += find(pool, "", tokens).size() == tokens.size() / kSize ? 1 : 0;
      ASSERT_GE(static_cast<int>(found), sessions->stats().sessions) << "round " << round << ", step " << step;
    }
    sessions->end_all();
    ASSERT_EQ(pool.pinned(), 0);
    for (const auto& own : held) pool.release(own);
    ASSERT_EQ(pool.available(), blocks);
    ASSERT_TRUE(pool.take(blocks));
  }
}

}  // namespace
}  // namespace sluice::sessions_test
