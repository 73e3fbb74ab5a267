// Drafts by a layer that continues the model, or by a draft model, when several ranks compute the model: answers are
// those without drafts, and drafts are right as often as in one process. The ranks are processes.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/draft_answers.h"
#include "engine/prediction_model.h"
#include "golden/rank_group.h"
#include "support/temp_folder.h"

namespace sluice::rank_predictions_test {
namespace {

using namespace testing;  // engine/draft_answers.h

class RankPredictions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ops::select_backend("", /*deterministic=*/true).can.collectives) GTEST_SKIP() << "no ranks on this backend";
    set_rank_command(kRankCommand);
    options_.threads = 2;
    options_.max_model_len = 256;
    options_.deterministic = true;
    constexpr int64_t kTokenBytes = 1024 + 256 + 512;  // keys and values on each rank, and hidden states
    options_.kv_cache_memory_bytes = 400 * kTokenBytes;
    options_.kv_host_memory_bytes = int64_t{16} << 20;
    options_.max_num_batched_tokens = 64;
    options_.max_num_seqs = 32;
    options_.tensor_parallel_size = 2;
  }
  void TearDown() override { set_rank_command(""); }

  std::unique_ptr<Engine> load(Layers layers, bool drafts) {
    const std::string folder = parent_ / (layers == Layers::kEmpty ? "empty" : "trained");
    if (!std::filesystem::exists(folder)) write_prediction_model(folder, layers);
    EngineOptions o = options_;
    o.model = folder;
    if (drafts) o.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 3})";
    return Engine::load(o);
  }

  static std::vector<Request> requests(const Engine& engine) {
    std::vector<Request> all;
    for (int i = 0; i < 24; ++i) {
      Request r;
      r.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user("Count from one to twenty.")), false);
      for (int j = 0; j < i; ++j) r.prompt.push_back(300 + j % 3);
      r.sampling.max_tokens = 20 + i;
      r.sampling.temperature = i % 2 * 0.8;
      r.sampling.seed = i;
      r.sampling.ignore_eos = i % 3 == 0;
      if (i % 4 == 1) r.sampling.allowed_token_ids = {300, 301, 302, 303, 304, 305};
      if (i % 5 == 0) r.n = 2;
      if (i % 7 == 0) r.sampling.frequency_penalty = 0.3;  // has no drafts
      all.push_back(std::move(r));
    }
    return all;
  }

  TempFolder parent_;
  EngineOptions options_;
};

TEST_F(RankPredictions, LeaveAnswersAsTheyAre) {
  const auto plain = load(Layers::kTrained, false), engine = load(Layers::kTrained, true);
  const std::vector<Request> all = requests(*plain);
  for (int round = 0; round < 2; ++round) expect_equal(answers(*engine, all), answers(*plain, all));
  EXPECT_GT(drafted(*engine), 300);
  EXPECT_GT(accepted(*engine), 0);
  EXPECT_GT(metric(*engine, "vllm:num_preemptions"), 0);
}

TEST_F(RankPredictions, AreAllRightWhereTheModelIsKnown) {
  const auto engine = load(Layers::kEmpty, true);
  answers(*engine, requests(*engine));
  EXPECT_GT(drafted(*engine), 100);
  EXPECT_GE(accepted(*engine), 0.95 * drafted(*engine));
}

// The model drafts for itself: what a draft model guesses is then right. Sums over ranks have another order, so with
// stages, where rank 0 has a draft model of its own, that holds without -tp only.
TEST_F(RankPredictions, OfADraftModelAreRight) {
  options_.model = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";
  options_.dtype = "float32";
  double preemptions = 0;  // of all ways: on a busy machine, requests may come too slowly to fill one engine's cache
  for (const auto& [tensor, stages] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    if (tensor * stages > most_ranks()) continue;
    SCOPED_TRACE(fmt::format("{} ranks, {} stages", tensor, stages));
    options_.tensor_parallel_size = tensor;
    options_.pipeline_parallel_size = stages;
    options_.kv_cache_memory_bytes = (stages == 1 ? 2 : 3) << 20;
    EngineOptions with_draft = options_;
    with_draft.speculative_config = Json({{"model", options_.model}, {"num_speculative_tokens", 3}}).dump();
    const auto plain = Engine::load(options_), engine = Engine::load(with_draft);
    const std::vector<Request> all = requests(*plain);
    for (int round = 0; round < 2; ++round) expect_equal(answers(*engine, all), answers(*plain, all));
    EXPECT_GT(drafted(*engine), 300);
    EXPECT_GE(accepted(*engine), (tensor == 1 || stages == 1 ? 1 : 0.95) * drafted(*engine));
    preemptions += metric(*engine, "vllm:num_preemptions");
  }
  EXPECT_GT(preemptions, 0);
}

}  // namespace
}  // namespace sluice::rank_predictions_test
