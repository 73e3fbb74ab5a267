#include "batch/token_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

namespace sluice::token_list_test {
namespace {

TEST(TokenList, KeepsTokensInOrderHoweverManyThereAre) {
  for (int count = 0; count < 9; ++count) {
    TokenList list;
    std::vector<TokenId> expected(count);
    std::iota(expected.begin(), expected.end(), 100);
    for (const TokenId token : expected) list.push_back(token);
    EXPECT_EQ(list.size(), expected.size());
    EXPECT_EQ(list.empty(), expected.empty());
    const TokenList moved = std::move(list);
    EXPECT_THAT(std::vector<TokenId>(moved.begin(), moved.end()), ::testing::ElementsAreArray(expected));
    if (count > 0) {
      EXPECT_EQ(moved[static_cast<uint32_t>(count) - 1], 100 + count - 1);
    }
  }
}

}  // namespace
}  // namespace sluice::token_list_test
