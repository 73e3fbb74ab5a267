// What the engine makes of the model's hidden states when several ranks compute it: vectors of texts, and contrastive
// searches. Of a pipeline, the last stage has these states. The ranks are processes.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/draft_answers.h"
#include "golden/rank_group.h"

namespace sluice::rank_hidden_test {
namespace {

class RankHidden : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ops::select_backend("", /*deterministic=*/true).can.collectives) GTEST_SKIP() << "no ranks on this backend";
    set_rank_command(kRankCommand);
    options_.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
    options_.dtype = "float32";
    options_.threads = 2;
    options_.deterministic = true;
    options_.kv_cache_memory_bytes = int64_t{16} << 20;
    options_.max_num_batched_tokens = 700;  // stages cut such a step into parts
  }
  void TearDown() override { set_rank_command(""); }

  // Calls check(options of the ranks, whether their bits are those of one process).
  template <class Check>
  void for_each_way(const Check& check) const {
    for (const auto& [tensor, stages] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
      if (tensor * stages > most_ranks()) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {} stages", tensor, stages));
      EngineOptions o = options_;
      o.tensor_parallel_size = tensor, o.pipeline_parallel_size = stages;
      check(o, tensor == 1);
    }
  }

  EngineOptions options_;
};

std::vector<TokenId> random_text(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(3 + random() % 8000));
  return tokens;
}

std::vector<std::vector<float>> vectors_of(Engine& engine, const std::vector<int>& lengths) {
  PoolingRequest request;
  for (const int length : lengths) {
    request.texts.push_back({.tokens = random_text(length, static_cast<unsigned>(length))});
  }
  std::promise<PoolingResult> promise;
  engine.embed(std::move(request), [&](PoolingResult result) { promise.set_value(std::move(result)); });
  const PoolingResult result = promise.get_future().get();
  EXPECT_EQ(result.reason, FinishReason::kStop) << result.message;
  return result.vectors;
}

TEST_F(RankHidden, VectorsOfTexts) {
  const std::vector<int> lengths{1, 7, 260, 900, 33};
  for (const char* pooling : {"last", "mean"}) {
    SCOPED_TRACE(pooling);
    options_.embedding_pooling = pooling;
    const auto wanted = vectors_of(*Engine::load(options_), lengths);
    ASSERT_EQ(wanted.size(), lengths.size());
    for_each_way([&](const EngineOptions& o, bool same_bits) {
      const auto got = vectors_of(*Engine::load(o), lengths);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t text = 0; text < got.size(); ++text) {
        if (same_bits) {
          EXPECT_EQ(got[text], wanted[text]) << "text " << text;
          continue;
        }
        ASSERT_EQ(got[text].size(), wanted[text].size());
        for (size_t i = 0; i < got[text].size(); ++i) {
          EXPECT_NEAR(got[text][i], wanted[text][i], 2e-5) << "text " << text << ", value " << i;
        }
      }
    });
  }
}

TEST_F(RankHidden, ContrastiveSearches) {
  options_.contrastive_search_tokens = 4000;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request& request = requests.emplace_back();
    request.prompt = random_text(5 + 130 * i, static_cast<unsigned>(i));
    request.sampling.penalty_alpha = 0.6;
    request.sampling.top_k = 4;
    request.sampling.max_tokens = 12;
  }
  requests.back().sampling.penalty_alpha = 0;  // an ordinary request runs beside them
  const auto wanted = testing::answers(*Engine::load(options_), requests);
  for_each_way([&](const EngineOptions& o, bool) {
    testing::expect_equal(testing::answers(*Engine::load(o), requests), wanted);
  });
}

}  // namespace
}  // namespace sluice::rank_hidden_test
