// Adapters that begin within a prompt: which rows of a step have them, and which blocks are the model's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lora/adapter.h"
#include "scheduler/small_steps.h"

namespace sluice::activated_adapters_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ActivatedAdaptersTest : public SmallSteps {
 protected:
  ActivatedAdaptersTest() {
    options_.prefix_caching = true;
    options_.adapter_slots = 2;
    options_.place_adapter = [](const Adapter&, int, float) {};
  }

  int cached_tokens(int prompt, RequestAdapter adapter) {
    return SmallSteps::cached_tokens(numbered_request(prompt, 1), std::move(adapter));
  }
  RequestAdapter begins(int from) const {
    return {.adapter = adapter_, .from = from, .key = "adapter from " + std::to_string(from)};
  }

  std::shared_ptr<const Adapter> adapter_ = std::make_shared<const Adapter>();
};

TEST_F(ActivatedAdaptersTest, ChangeRowsFromTheirFirstTokenOn) {
  Request request = numbered_request(15, 3);
  request.sampling.prompt_logprobs = 0;
  add(request, begins(8));
  Batch batch = step();  // 6 tokens before
  EXPECT_THAT(batch.adapters, IsEmpty());
  EXPECT_THAT(batch.sample_adapters, IsEmpty());
  batch = step();
  EXPECT_THAT(batch.adapters, ElementsAre(-1, -1, 0, 0, 0, 0));
  EXPECT_THAT(batch.sample_adapters, ElementsAre(-1, -1, 0, 0, 0, 0));
  batch = step();
  EXPECT_THAT(batch.adapters, ElementsAre(0, 0, 0));
  batch = step();  // decodes
  EXPECT_THAT(batch.adapters, ElementsAre(0));
  EXPECT_THAT(batch.sample_adapters, ElementsAre(0));
}

TEST_F(ActivatedAdaptersTest, ShareTheModelsBlocksBeforeIt) {
  EXPECT_EQ(cached_tokens(17, {}), 0);
  EXPECT_EQ(cached_tokens(17, begins(9)), 8) << "the third block has a token of the adapter";
  EXPECT_EQ(cached_tokens(17, begins(9)), 16);
  EXPECT_EQ(cached_tokens(17, begins(8)), 8) << "another place is another key";
  EXPECT_EQ(cached_tokens(17, begins(4)), 4);
  EXPECT_EQ(cached_tokens(17, {}), 16);
}

TEST_F(ActivatedAdaptersTest, LeaveModulesAsTheyAre) {
  Request request = numbered_request(14, 1);
  request.modules = {{.tokens = 6, .position = 0}, {.tokens = 5, .position = 8}};
  Request plain = request;
  add(request, begins(12));
  EXPECT_THAT(step().adapters, IsEmpty());  // a module
  EXPECT_THAT(step().adapters, IsEmpty());
  EXPECT_THAT(step().adapters, ElementsAre(-1, 0, 0));
  EXPECT_TRUE(scheduler().idle());
  EXPECT_EQ(SmallSteps::cached_tokens(plain), 12) << "the modules, and the token before the adapter's";
}

}  // namespace
}  // namespace sluice::activated_adapters_test
