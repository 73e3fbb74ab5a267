// The block pool against a naive model that keeps whole prefixes, and the contracts a scheduler relies on.
#include "cache/block_pool.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cache/prompts.h"

namespace sluice::block_pool_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using namespace testing;  // cache/prompts.h

TEST(BlockPool, TakesAllOrNothing) {
  BlockPool pool({.blocks = 4});
  const auto three = pool.take(3);
  ASSERT_TRUE(three);
  EXPECT_EQ(std::set<BlockId>(three->begin(), three->end()).size(), 3u);
  EXPECT_FALSE(pool.take(2));
  EXPECT_EQ(pool.available(), 1);
  EXPECT_TRUE(pool.take(0));
  pool.release(*three);
  EXPECT_EQ(pool.stats().free, 4);
}

// Two images may have the same placeholder tokens, and two adapters the same prompt. A hash of one bit collides: then
// the keys themselves are compared.
TEST(BlockPool, ExtraKeysKeepEqualTokensApart) {
  for (const int bits : {256, 1}) {
    BlockPool pool({.blocks = 32, .block_size = 2, .hash_bits = bits});
    const Tokens tokens = {7, 7, 7, 7};
    const auto hashes_of = [&](const std::vector<std::string>& extras) {
      std::vector<BlockHash> hashes;
      for (size_t i = 0; i < extras.size(); ++i) {
        hashes.push_back(
            pool.hash(i == 0 ? pool.root("") : hashes[i - 1], std::span(tokens).subspan(2 * i, 2), extras[i]));
      }
      return hashes;
    };
    const auto found = [&](const std::vector<std::string>& extras) {
      return pool.find("", hashes_of(extras), tokens, std::vector<std::string_view>(extras.begin(), extras.end()));
    };
    const std::vector<std::string> cat = {"", "cat"}, dog = {"", "dog"}, none = {"", ""};
    EXPECT_EQ(hashes_of(none), hashes_of_prompt(pool, "", tokens));
    std::vector<BlockId> blocks = *pool.take(2);
    for (size_t i = 0; i < 2; ++i) {
      pool.commit_to_cache({&blocks[i], 1}, i == 0 ? kNoBlock : blocks[0], "", hashes_of(cat)[i],
                           std::span(tokens).subspan(2 * i, 2), cat[i]);
    }
    const bool both = pool.in_prefix_cache(blocks[1]);  // not if its hash is that of the first one
    EXPECT_TRUE(both || bits == 1);
    EXPECT_EQ(found(cat).size(), both ? 2u : 1u);
    EXPECT_EQ(found(dog), std::vector<BlockId>{blocks[0]});
    EXPECT_EQ(found(none), std::vector<BlockId>{blocks[0]});
    // A block that was evicted and used again has no extra keys of its former content.
    pool.release(blocks);
    pool.release(*pool.take(32));
    EXPECT_THAT(found(cat), IsEmpty());
    fill(pool, "", tokens);
    EXPECT_EQ(found(none), find(pool, "", tokens));
    EXPECT_LE(found(dog).size(), 1u);
  }
}

TEST(BlockPool, FindsTheLongestPrefixOfEqualContentOnly) {
  BlockPool pool({.blocks = 8, .block_size = 2});
  const auto blocks = fill(pool, "", {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(find(pool, "", {1, 2, 3, 4, 5, 6}), blocks);
  EXPECT_THAT(find(pool, "", {1, 2, 3, 4, 9, 9}), ElementsAre(blocks[0], blocks[1]));
  EXPECT_THAT(find(pool, "", {3, 4, 5, 6}), IsEmpty());
  EXPECT_THAT(find(pool, "tenant", {1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(find(pool, "", {1}), IsEmpty());
}

TEST(BlockPool, NamesDependOnContentAloneAndOnAllOfIt) {
  const BlockPool pool({.blocks = 1, .block_size = 2, .fingerprint = "model"});
  const BlockPool same({.blocks = 9, .block_size = 2, .fingerprint = "model"});
  const BlockPool other({.blocks = 1, .block_size = 2, .fingerprint = "mode"});
  EXPECT_EQ(hashes_of_prompt(pool, "s", {1, 2, 3, 4}), hashes_of_prompt(same, "s", {1, 2, 3, 4}));
  EXPECT_NE(pool.root(""), other.root("l"));  // strings are hashed with their lengths
  EXPECT_NE(pool.root("a"), pool.root("b"));
  EXPECT_NE(hashes_of_prompt(pool, "", {1, 2, 3, 4})[1], hashes_of_prompt(pool, "", {9, 2, 3, 4})[1]);
  // SHA-256 of the documented bytes, computed with another implementation (Python's hashlib).
  const BlockPool plain({.blocks = 1, .block_size = 2});
  EXPECT_EQ(fmt::format("{:02x}{:02x}{:02x}{:02x}", plain.root("").bytes[0], plain.root("").bytes[1],
                        plain.root("").bytes[2], plain.root("").bytes[3]),
            "89b21205");
  const BlockHash first = hashes_of_prompt(plain, "", {1, 2})[0];
  EXPECT_EQ(fmt::format("{:02x}{:02x}{:02x}{:02x}", first.bytes[0], first.bytes[1], first.bytes[2], first.bytes[3]),
            "aaa7d5a2");
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedLeafFirst) {
  BlockPool pool({.blocks = 6, .block_size = 1});
  const auto a = fill(pool, "", {1, 2, 3});
  const auto b = fill(pool, "", {7, 8});
  pool.release(a);
  pool.release(b);
  pool.share(std::span(a).first(1));  // used again: {1} is now younger than b
  pool.release(std::span(a).first(1));
  EXPECT_EQ(pool.stats().free, 1);
  EXPECT_EQ(pool.stats().cached, 5);
  const auto left = [&] { return std::pair(find(pool, "", {1, 2, 3}).size(), find(pool, "", {7, 8}).size()); };
  std::vector<std::pair<size_t, size_t>> seen;
  while (pool.available() > 0) {
    pool.take(1);
    seen.push_back(left());
  }
  using P = std::pair<size_t, size_t>;
  EXPECT_THAT(seen, ElementsAre(P(3, 2), P(2, 2), P(1, 2), P(1, 1), P(1, 0), P(0, 0)));
  EXPECT_EQ(pool.stats().evictions, 5u);
}

// Blocks that slid out of a window are given back before those that follow them, which stay held.
// A prefix that was used three times outlives later ones that were used once.
TEST(BlockPool, EvictsTheLeastOftenUsedFirst) {
  for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu}) {
    BlockPool pool({.blocks = 4, .block_size = 1, .eviction = eviction});
    pool.release(fill(pool, "", {1}));
    for (int i = 0; i < 3; ++i) {
      const std::vector<BlockId> hit = find(pool, "", {1});
      pool.share(hit);
      pool.release(hit);
    }
    for (const TokenId token : {2, 3, 4, 5, 6}) {
      pool.release(fill(pool, "", {token}));
      const std::vector<BlockId> hit = find(pool, "", {token});
      pool.share(hit);
      pool.release(hit);
    }
    EXPECT_EQ(find(pool, "", {1}).size(), eviction == Eviction::kLfu ? 1u : 0u);
    EXPECT_EQ(find(pool, "", {2}).size(), 0u);
    EXPECT_EQ(find(pool, "", {6}).size(), 1u);
    pool.reset_prefix_cache();
    EXPECT_EQ(pool.stats().free, 4);
  }
}

TEST(BlockPool, WhatFollowsAnEvictedBlockIsForgottenWithIt) {
  BlockPool pool({.blocks = 6, .block_size = 1});
  const auto a = fill(pool, "", {1, 2, 3});
  const auto branch = fill(pool, "", {1, 2, 9});
  pool.release(branch);                     // {9} is cached; {1, 2} are held for a
  pool.release(std::span(a).first(2));      // out of the window, while {3} is held
  EXPECT_EQ(find(pool, "", {1, 2, 3}), a);  // still there to be found
  EXPECT_EQ(pool.available(), 5);
  pool.take(3);  // evicts {9}, which was released first
  EXPECT_EQ(find(pool, "", {1, 2, 3}), a);
  pool.take(1);  // evicts {2}, and {3} is no prefix's block any more
  EXPECT_THAT(find(pool, "", {1, 2, 3}), ElementsAre(a[0]));
  EXPECT_FALSE(pool.in_prefix_cache(a[2]));
  EXPECT_EQ(pool.holders(a[2]), 1);
  pool.release(std::span(a).last(1));
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(pool.stats().cached, 1);
}

TEST(BlockPool, EqualContentIsKeptOnce) {
  BlockPool pool({.blocks = 4, .block_size = 2});
  const auto first = fill(pool, "", {1, 2});
  const auto second = fill(pool, "", {1, 2});
  EXPECT_EQ(first, second);
  EXPECT_EQ(pool.holders(first[0]), 2);
  EXPECT_EQ(pool.stats().free, 3);
}

TEST(BlockPool, ResetForgetsNamesButNotHolders) {
  BlockPool pool({.blocks = 8, .block_size = 1});
  const auto held = fill(pool, "", {1, 2});
  pool.release(fill(pool, "", {3, 4}));
  pool.reset_prefix_cache();
  EXPECT_EQ(pool.stats().free, 6);
  EXPECT_THAT(find(pool, "", {1, 2}), IsEmpty());
  EXPECT_EQ(pool.holders(held[1]), 1);
  // The chain of a forgotten block cannot go on: nothing could find its end.
  const auto next = *pool.take(1);
  const Tokens tokens{1, 2, 3};
  BlockId last = next[0];
  pool.commit_to_cache({&last, 1}, held[1], "", hashes_of_prompt(pool, "", tokens)[2], std::span(tokens).subspan(2));
  EXPECT_EQ(last, next[0]);
  EXPECT_FALSE(pool.in_prefix_cache(last));
  pool.release(next);
  pool.release(held);
  EXPECT_EQ(pool.stats().free, 8);
}

TEST(BlockPoolDeathTest, WrongCodeIsCaught) {
  BlockPool pool({.blocks = 2});
  const auto block = *pool.take(1);
  pool.release(block);
  EXPECT_DEATH(pool.release(block), "released once too often");
  EXPECT_DEATH(pool.share(block), "is free");
}

// What a pool should do, with whole prefixes instead of names and linear searches instead of links.
class NaiveModel {
 public:
  explicit NaiveModel(int blocks) : holders(blocks), content(blocks) {}

  using Key = std::pair<std::string, Tokens>;  // salt, all tokens up to the block's end
  std::vector<int> holders;
  std::vector<std::optional<Key>> content;  // of published blocks
  std::vector<BlockId> cached;              // least recently released first

  BlockId find(const Key& key) const {
    const auto it = std::ranges::find(content, std::optional(key));
    return it == content.end() ? kNoBlock : static_cast<BlockId>(it - content.begin());
  }
  int free() const {
    return static_cast<int>(std::ranges::count(holders, 0) - static_cast<std::ptrdiff_t>(cached.size()));
  }
  void take(const std::vector<BlockId>& blocks) {
    const int evicted = std::max(0, static_cast<int>(blocks.size()) - free());
    for (int i = 0; i < evicted; ++i) content[cached[i]].reset();
    cached.erase(cached.begin(), cached.begin() + evicted);
    for (const BlockId block : blocks) {
      ASSERT_EQ(holders[block], 0);
      ASSERT_FALSE(content[block]);
      holders[block] = 1;
    }
  }
  void share(BlockId block) {
    std::erase(cached, block);
    ++holders[block];
  }
  void release(const std::vector<BlockId>& blocks) {
    for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
      if (--holders[*it] == 0 && content[*it]) cached.push_back(*it);
    }
  }
};

struct Holder {
  std::string salt;
  Tokens tokens;
  std::vector<BlockId> blocks;
};

class ModelTest : public ::testing::TestWithParam<int> {  // bits of the hash
 protected:
  void run(uint64_t seed);
};

void ModelTest::run(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int size = uniform(1, 4), blocks = uniform(3, 24), vocab = uniform(1, 3);
  BlockPool pool({.blocks = blocks, .block_size = size, .hash_bits = GetParam()});
  NaiveModel model(blocks);
  std::vector<Holder> live;
  for (int step = 0; step < 300; ++step) {
    const int action = uniform(0, 9);
    if (action < 5) {  // a sequence: reuse what is found, take the rest, publish
      Holder holder{.salt = uniform(0, 3) ? "" : "tenant", .tokens = {}, .blocks = {}};
      for (int i = uniform(0, 6) * size; i > 0; --i) holder.tokens.push_back(uniform(0, vocab));
      const auto prefix = [&](size_t n) {
        return NaiveModel::Key(holder.salt, Tokens(holder.tokens.begin(), holder.tokens.begin() + n * size));
      };
      const auto hashes = hashes_of_prompt(pool, holder.salt, holder.tokens);
      holder.blocks = pool.find(holder.salt, hashes, holder.tokens);
      for (size_t i = 0; i < holder.blocks.size(); ++i) ASSERT_EQ(model.content[holder.blocks[i]], prefix(i + 1));
      const size_t hits = holder.blocks.size();
      ASSERT_TRUE(hits == hashes.size() || model.find(prefix(hits + 1)) == kNoBlock) << "a prefix was missed";
      pool.share(holder.blocks);
      for (const BlockId block : holder.blocks) model.share(block);
      const auto taken = pool.take(static_cast<int>(hashes.size() - hits));
      ASSERT_EQ(taken.has_value(),
                static_cast<int>(hashes.size() - hits) <= model.free() + static_cast<int>(model.cached.size()));
      if (!taken) {
        pool.release(holder.blocks);
        model.release(holder.blocks);
        continue;
      }
      model.take(*taken);
      holder.blocks.insert(holder.blocks.end(), taken->begin(), taken->end());
      for (size_t i = hits; i < hashes.size(); ++i) {
        const BlockId own = holder.blocks[i];
        BlockId kept = own;
        pool.commit_to_cache({&kept, 1}, i == 0 ? kNoBlock : holder.blocks[i - 1], holder.salt, hashes[i],
                             std::span(holder.tokens).subspan(i * size, size));
        const BlockId known = model.find(prefix(i + 1));
        if (known != kNoBlock) {
          ASSERT_EQ(kept, known);
          model.share(known);
          model.release({own});
        } else if (pool.in_prefix_cache(kept)) {
          ASSERT_EQ(kept, own);
          model.content[own] = prefix(i + 1);
        } else {
          ASSERT_LT(GetParam(), 256) << "a name was refused without a collision";
        }
        holder.blocks[i] = kept;
        if (!pool.in_prefix_cache(kept)) break;
      }
      live.push_back(std::move(holder));
    } else if (action < 6 && !live.empty()) {  // a fork
      Holder copy = live[uniform(0, static_cast<int>(live.size()) - 1)];
      pool.share(copy.blocks);
      for (const BlockId block : copy.blocks) model.share(block);
      live.push_back(std::move(copy));
    } else if (action < 9 && !live.empty()) {
      std::swap(live[uniform(0, static_cast<int>(live.size()) - 1)], live.back());
      pool.release(live.back().blocks);
      model.release(live.back().blocks);
      live.pop_back();
    } else if (uniform(0, 20) == 0) {
      pool.reset_prefix_cache();
      std::ranges::fill(model.content, std::nullopt);
      model.cached.clear();
    }
    const BlockPoolStats stats = pool.stats();
    ASSERT_EQ(stats.cached, static_cast<int>(model.cached.size()));
    ASSERT_EQ(stats.free, model.free());
    ASSERT_EQ(stats.free + stats.cached + stats.used, blocks);
    for (BlockId block = 0; block < blocks; ++block) {
      ASSERT_EQ(pool.holders(block), model.holders[block]);
      ASSERT_EQ(pool.in_prefix_cache(block), model.content[block].has_value());
    }
  }
  for (const Holder& holder : live) pool.release(holder.blocks);
  ASSERT_EQ(pool.available(), blocks);
}

TEST_P(ModelTest, AgreesWithTheNaiveModel) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    run(seed);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// With 3 bits nearly every name collides: verification alone keeps contents apart.
INSTANTIATE_TEST_SUITE_P(HashBits, ModelTest, ::testing::Values(256, 16, 3), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sluice::block_pool_test
