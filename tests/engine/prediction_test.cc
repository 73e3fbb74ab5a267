// Drafts by layers that continue the model: answers are those without drafts, drafts do not depend on how their text
// was computed, and what cannot be is refused at the start. features_test.cc tries them with every other feature.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "engine/draft_answers.h"
#include "engine/prediction_model.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::prediction_test {
namespace {

using namespace testing;  // engine/draft_answers.h
using ::testing::AllOf;
using ::testing::HasSubstr;

EngineOptions base_options(const std::string& model) {
  EngineOptions o;
  o.model = model;
  o.threads = 2;
  o.max_model_len = 256;
  o.deterministic = true;
  o.kv_cache_memory_bytes = int64_t{16} << 20;
  return o;
}

EngineOptions with_drafts(EngineOptions o, int tokens, const std::string& method = "mtp") {
  o.speculative_config = dump_json({{"method", method}, {"num_speculative_tokens", tokens}});
  return o;
}

const std::vector<TokenId> kFew{300, 301, 302, 303, 304, 305};

Request request_for(const Engine& engine, int number) {
  constexpr const char* kQuestions[] = {"What is 17 + 25?", "Tell me a story about a fox.",
                                        "Count from one to twenty."};
  Request r;
  r.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user(kQuestions[number % 3])), false);
  for (int i = 0; i < number % 40; ++i) r.prompt.push_back(300 + i % 3);
  r.sampling.max_tokens = 20 + number % 50;
  r.sampling.temperature = number % 2 * 0.8;
  r.sampling.seed = number;
  r.sampling.ignore_eos = number % 3 == 0;
  if (number % 4 == 1) r.sampling.allowed_token_ids = kFew;  // many drafts are right then
  if (number % 5 == 0) r.n = 2;
  if (number % 4 == 0) r.sampling.logprobs = 1;
  return r;
}

// How the text of a draft is computed.
class Predictions : public ::testing::TestWithParam<const char*> {
 protected:
  static EngineOptions options(const std::string& model, const std::string& how) {
    EngineOptions o = base_options(model);
    constexpr int64_t kTokenBytes = 2048 + 512 + 512;  // keys, values and hidden states
    if (how == "small_steps") o.max_num_batched_tokens = 24;
    if (how == "little_memory" || how == "kept_rows") o.kv_cache_memory_bytes = 800 * kTokenBytes;
    if (how == "kept_rows") o.kv_host_memory_bytes = int64_t{16} << 20;
    if (how == "no_prefix_cache") o.enable_prefix_caching = false;
    if (how == "fp8_cache") o.kv_cache_dtype = "fp8";
    if (how == "int8_cache") o.kv_cache_dtype = "int8";
    if (how == "float32") o.dtype = "float32";
    if (how == "quantized") o.quantization = "q8_0";
    if (how == "replicas") o.data_parallel_size = 2;
    return o;
  }
};

TEST_P(Predictions, LeaveAnswersAsTheyAre) {
  const std::string how = GetParam();
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model);
  const EngineOptions o = options(model, how);
  const auto plain = Engine::load(o), engine = Engine::load(with_drafts(o, 3));
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) requests.push_back(request_for(*plain, i));
  for (int round = 0; round < 2; ++round) {  // the second one with prefixes in the cache
    expect_equal(answers(*engine, requests), answers(*plain, requests));
  }
  EXPECT_GT(drafted(*engine), 500);
  EXPECT_GT(accepted(*engine), 0);
  EXPECT_LT(accepted(*engine), drafted(*engine));
  if (how == "little_memory") {
    EXPECT_GT(metric(*engine, "vllm:num_preemptions"), 0);
  }
  if (how == "kept_rows") {
    EXPECT_GT(metric(*engine, "sluice:kv_rows_loaded"), 0);
  }
}

TEST_P(Predictions, AreAllRightWhereTheModelIsKnown) {
  const std::string how = GetParam();
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model, Layers::kEmpty);
  const auto engine = Engine::load(with_drafts(options(model, how), 3));
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request_for(*engine, i));
  for (int round = 0; round < 2; ++round) answers(*engine, requests);
  EXPECT_GT(drafted(*engine), 300);
  // Its logits differ by roundings from the model's, and few tokens are as close.
  EXPECT_GE(accepted(*engine), 0.95 * drafted(*engine));
}

INSTANTIATE_TEST_SUITE_P(All, Predictions,
                         ::testing::Values("plain", "small_steps", "little_memory", "kept_rows", "no_prefix_cache",
                                           "fp8_cache", "int8_cache", "float32", "quantized", "replicas"),
                         [](const auto& info) { return std::string(info.param); });

// The fastest backend of this machine may compute a row otherwise in another batch, so that answers may differ.
TEST(PredictionEngine, DraftsAreRightOnTheFastestBackend) {
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model, Layers::kEmpty);
  for (const char* cache : {"auto", "fp8", "int8"}) {
    SCOPED_TRACE(cache);
    EngineOptions o = base_options(model);
    o.deterministic = false;
    o.kv_cache_dtype = cache;
    const auto engine = Engine::load(with_drafts(o, 3));
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) requests.push_back(request_for(*engine, i));
    for (int round = 0; round < 2; ++round) answers(*engine, requests);
    run_alone(*engine, requests[3]);  // all sequences of its steps have drafts
    EXPECT_GT(drafted(*engine), 300);
    EXPECT_GE(accepted(*engine), 0.85 * drafted(*engine));
  }
}

// With few tokens to choose from, many drafts are right by chance. Which ones are depends on hidden states, keys and
// values of the whole text, so that their number says whether these are in their places.
TEST(PredictionEngine, DraftsDoNotDependOnHowTheTextWasComputed) {
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model);
  const auto run = [&](Engine& engine, int seed) {
    Request r = request_for(engine, 37);
    r.n = 1;
    r.sampling = {};
    r.sampling.temperature = 0.8, r.sampling.seed = seed;
    r.sampling.max_tokens = 150, r.sampling.ignore_eos = true;
    r.sampling.allowed_token_ids = kFew;
    const double before = accepted(engine);
    run_alone(engine, r);
    EXPECT_TRUE(settles(engine, "vllm:num_requests_running", 0));  // the last step is counted
    return accepted(engine) - before;
  };
  EngineOptions o = base_options(model);
  const auto once = Engine::load(with_drafts(o, 2));
  o.max_num_batched_tokens = 16;
  const auto in_small_steps = Engine::load(with_drafts(o, 2));
  o.enable_prefix_caching = false;
  const auto without_prefixes = Engine::load(with_drafts(o, 2));
  for (int seed = 0; seed < 4; ++seed) {
    const double count = run(*once, seed);  // from the second seed on with a prefix from the cache
    EXPECT_GT(count, 10);
    EXPECT_EQ(run(*in_small_steps, seed), count);
    EXPECT_EQ(run(*without_prefixes, seed), count);
    EXPECT_EQ(run(*once, seed), count);
  }
}

std::string error_of(const EngineOptions& options) {
  try {
    Engine::load(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PredictionEngine, WhatCannotDraftIsRefused) {
  EXPECT_THAT(error_of(with_drafts(base_options(demo_model()), 1)),
              AllOf(HasSubstr("--speculative-config: the family llama has no layers that can draft"),
                    HasSubstr("deepseek_v3, deepseek_v32, ernie4_5_moe, glm4_moe, glm4_moe_lite, glm_moe_dsa, mimo")));
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model);
  EXPECT_EQ(error_of(with_drafts(base_options(model), 1, "glm4_moe_mtp")), "");
  EngineOptions o = with_drafts(base_options(model), 1);
  o.tensor_parallel_size = o.pipeline_parallel_size = 2;
  EXPECT_THAT(error_of(o), HasSubstr("the method mtp cannot be used with --pipeline-parallel-size 2"));

  Json values = read_json_file(model + "/config.json");
  values["num_nextn_predict_layers"] = 2;
  std::ofstream(model + "/config.json") << dump_json(values);
  EXPECT_THAT(error_of(with_drafts(base_options(model), 1)),
              HasSubstr("'num_nextn_predict_layers': 2 cannot draft (expected 1)"));
  EXPECT_EQ(error_of(base_options(model)), "");

  const std::string without = parent / "without";
  write_prediction_model(without, Layers::kMissing);
  EXPECT_EQ(error_of(base_options(without)), "");
  EXPECT_THAT(error_of(with_drafts(base_options(without), 1)),
              AllOf(HasSubstr("model.layers.4.enorm.weight"), HasSubstr("missing")));
}

TEST(PredictionEngine, MemoryOfTheLayerIsInThePlan) {
  const TempFolder parent;
  const std::string model = parent / "model";
  write_prediction_model(model);
  const auto engine = Engine::load(with_drafts(base_options(model), 1));
  double weights = 0;
  for (const MetricFamily& family : engine->metrics()) {
    if (family.name != "sluice:memory_bytes") continue;
    for (const MetricSample& sample : family.samples) {
      for (const auto& [label, value] : sample.labels) weights += value == "draft weights" ? sample.value : 0;
    }
  }
  EXPECT_GT(weights, 1 << 20);  // a layer of a million parameters, without the embedding table of two
  EXPECT_LT(weights, 4 << 20);
}

}  // namespace
}  // namespace sluice::prediction_test
