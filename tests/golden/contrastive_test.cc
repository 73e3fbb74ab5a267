// Texts of contrastive searches, compared with those of transformers (tests/tools/make_contrastive_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "base/json.h"
#include "engine/collect.h"
#include "golden/arch_golden.h"

namespace sluice::contrastive_golden_test {
namespace {

const std::string kMinnow = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m";

std::vector<Json> rows_of(const std::string& model) {
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/tests/goldens/contrastive.jsonl");
  std::vector<Json> rows;
  for (std::string line; std::getline(in, line);) {
    Json row = parse_json(line);
    if (row["model"] == model) rows.push_back(std::move(row));
  }
  EXPECT_FALSE(rows.empty());
  return rows;
}

Request request_of(const Json& row) {
  Request request;
  request.prompt = row["prompt"].get<std::vector<TokenId>>();
  request.sampling.penalty_alpha = row["alpha"].get<double>();
  request.sampling.top_k = row["top_k"].get<int>();
  request.sampling.repetition_penalty = row["repetition_penalty"].get<double>();
  request.sampling.max_tokens = 20;
  if (row["model"] != "minnow-6m") request.sampling.stop_token_ids = {2};
  return request;
}

class Contrastive : public ::testing::TestWithParam<const char*> {};

// All searches at once: with room for everything; with chunked prefill; and with so little memory that candidates are
// preempted, and that texts wait for room for their hidden states. The second round has the prompts in the prefix
// cache.
TEST_P(Contrastive, TextsAreThoseOfTransformers) {
  const std::string model = GetParam();
  const bool minnow = model == "minnow-6m";
  std::unique_ptr<ArchGolden> golden;
  if (!minnow) golden = std::make_unique<ArchGolden>(model);
  const std::vector<Json> rows = rows_of(model);
  for (const int place : {0, 1, 2}) {
    if (place == 2 && !minnow) continue;
    SCOPED_TRACE(place);
    EngineOptions o;
    o.model = minnow ? kMinnow : golden->checkpoint();
    o.tokenizer = kMinnow;
    o.dtype = "float32";
    o.max_model_len = 128;
    o.contrastive_search_tokens = place == 2 ? 120 : 2000;
    o.kv_cache_memory_bytes = place == 2 ? 160 * 4096 : 64 << 20;
    if (place == 1) o.max_num_batched_tokens = 16;
    const auto engine = Engine::load(o);
    for (int round = 0; round < 2; ++round) {
      testing::Collector collector(*engine);
      std::vector<size_t> at;
      for (const Json& row : rows) at.push_back(collector.submit(request_of(row)));
      for (size_t i = 0; i < rows.size(); ++i) {
        const testing::Choice& choice = collector.answer(at[i])[0];
        EXPECT_EQ(choice.tokens, rows[i]["tokens"].get<std::vector<TokenId>>()) << dump_json(rows[i]);
        EXPECT_EQ(choice.finish->reason, choice.tokens.size() < 20 ? FinishReason::kStop : FinishReason::kLength);
        EXPECT_EQ(choice.usage.completion_tokens, static_cast<int>(choice.tokens.size()));
      }
    }
    EXPECT_EQ(place == 2, testing::metric(*engine, "vllm:num_preemptions") > 0);
  }
}

// A model that projects its last hidden states gives none beside its logits.
TEST(ContrastiveSearch, NeedsHiddenStatesBesideTheLogits) {
  const ArchGolden golden("opt-2");
  EngineOptions o;
  o.model = golden.checkpoint();
  o.tokenizer = kMinnow;
  o.contrastive_search_tokens = 100;
  try {
    Engine::load(o);
    ADD_FAILURE() << "loaded";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("give no hidden states"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Contrastive, ::testing::Values("minnow-6m", "llama", "mistral", "mamba2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace sluice::contrastive_golden_test
