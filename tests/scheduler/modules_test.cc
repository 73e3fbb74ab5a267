// Prompts with modules: the parts of a step, the places and positions of tokens, and what others wait for.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/small_steps.h"

namespace sluice::modules_test {
namespace {

class ModulesTest : public SmallSteps {
 protected:
  ModulesTest() { options_.max_num_batched_tokens = 16; }
};

// Modules of six and five tokens at positions 0 and 8, and three tokens of its own.
Request two_modules(TokenId first = 1000) {
  Request r = numbered_request(14, 2, first);
  r.modules = {{.tokens = 6, .position = 0}, {.tokens = 5, .position = 8}};
  return r;
}

TEST_F(ModulesTest, EachIsAPartOfTheStep) {
  add(two_modules());
  const Batch modules = step();
  EXPECT_EQ(modules.query_start, (std::vector<int32_t>{0, 6, 11}));
  EXPECT_EQ(modules.kv_len, (std::vector<int32_t>{6, 5}));
  EXPECT_EQ(modules.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12}));
  EXPECT_EQ(modules.tokens.front(), 1000);
  EXPECT_EQ(modules.tokens.back(), 1010);
  EXPECT_TRUE(modules.sample_rows.empty());
  EXPECT_TRUE(modules.token_copies.empty());
  const auto table = [](const Batch& batch, int sequence) {
    const auto begin = batch.block_table.begin() + sequence * batch.block_table_stride;
    return std::vector<int32_t>(begin, std::find(begin, begin + batch.block_table_stride, -1));
  };
  const std::vector<int32_t> a = table(modules, 0), b = table(modules, 1);
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(b.size(), 2u);

  const Batch own = step();  // behind [a a a a] [b b b b] [a a b
  EXPECT_EQ(own.kv_len, (std::vector<int32_t>{14}));
  EXPECT_EQ(own.positions, (std::vector<int32_t>{13, 14, 15}));
  EXPECT_EQ(own.sample_rows.size(), 1u);
  const std::vector<int32_t> all = table(own, 0);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0], a[0]);
  EXPECT_EQ(all[1], b[0]);
  ASSERT_EQ(own.token_copies.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(own.token_copies[i].to, all[2] * 4 + i);
    EXPECT_EQ(own.token_copies[i].from, i < 2 ? a[1] * 4 + i : b[1] * 4);
  }
  EXPECT_EQ(own.slots[0], all[2] * 4 + 3);
  const Batch decode = step();
  EXPECT_EQ(decode.positions, (std::vector<int32_t>{16}));
  EXPECT_EQ(decode.kv_len, (std::vector<int32_t>{15}));
  EXPECT_TRUE(scheduler().idle());
}

TEST_F(ModulesTest, AreFoundWithTheirTails) {
  EXPECT_EQ(cached_tokens(two_modules()), 0);
  Request other = two_modules();
  other.prompt[11] = 7;  // the first of its own
  EXPECT_EQ(cached_tokens(other), 11);
  Request one = numbered_request(9, 2);
  one.modules = {{.tokens = 6, .position = 0}};
  EXPECT_EQ(cached_tokens(one), 6);
  one.modules[0].position = 1;
  EXPECT_EQ(cached_tokens(one), 0);
  EXPECT_EQ(cached_tokens(numbered_request(9, 2)), 0) << "a plain prompt";
}

TEST_F(ModulesTest, ThatAnotherRequestComputesAreWaitedFor) {
  options_.max_num_batched_tokens = 4;
  add(two_modules());
  Request other = two_modules();
  other.prompt.back() = 7;
  add(other);
  int computed = 0;
  for (int steps = 0; steps < 3; ++steps) computed += step().size();
  EXPECT_EQ(computed, 11) << "the modules";
  while (!scheduler().idle()) computed += step().size();
  EXPECT_EQ(computed, 11 + 2 * (3 + 1));
}

// At most max_num_seqs parts, of whatever sequences.
TEST_F(ModulesTest, LeaveRoomInTheStep) {
  Request r = numbered_request(8, 1);
  for (int i = 0; i < 7; ++i) r.modules.push_back({.tokens = 1, .position = i});
  add(r);
  EXPECT_EQ(step().sequences(), options_.max_num_seqs);
  EXPECT_EQ(step().sequences(), 7 - options_.max_num_seqs);
  EXPECT_EQ(step().positions, (std::vector<int32_t>{7}));
}

}  // namespace
}  // namespace sluice::modules_test
