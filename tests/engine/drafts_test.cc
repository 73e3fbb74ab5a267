// Drafts by a model: answers are those without drafts, whatever happens to the memory of a sequence, and what cannot be
// is refused at the start. features_test.cc tries them with every other feature.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/draft_answers.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::drafts_test {
namespace {

using namespace testing;  // engine/draft_answers.h
namespace fs = std::filesystem;

EngineOptions base_options() {
  EngineOptions o;
  o.model = demo_model();
  o.threads = 2;
  o.max_model_len = 256;
  o.deterministic = true;
  o.kv_cache_memory_bytes = int64_t{16} << 20;
  return o;
}

EngineOptions with_drafts(const std::string& model, Json more = Json::object()) {
  EngineOptions o = base_options();
  more["model"] = model;
  o.speculative_config = dump_json(more);
  return o;
}

void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
  std::ifstream in(file);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  std::ofstream(file) << text.replace(at, from.size(), to);
}

// A copy of the model whose layers have these types, with windows of 40 tokens. Returns its folder.
std::string with_windows(const std::string& folder, const std::string& types) {
  fs::copy(demo_model(), folder);
  const fs::path config = fs::path(folder) / "config.json";
  replace_in(config, "LlamaForCausalLM", "MinistralForCausalLM");
  replace_in(config, "\"model_type\": \"llama\"",
             "\"model_type\": \"ministral\", \"sliding_window\": 40, \"layer_types\": " + types);
  return folder;
}

// Requests of many kinds, whose prompts have beginnings in common.
std::vector<Request> requests_for(const Engine& engine, uint64_t seed, int count) {
  constexpr const char* kQuestions[] = {"What is 17 + 25?", "Tell me a story about a fox.",
                                        "Name the capital of France.", "Write JSON with a name and an age.",
                                        "Count from one to twenty."};
  std::mt19937_64 random(seed);
  const auto uniform = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  std::vector<Request> all;
  for (int i = 0; i < count; ++i) {
    Request r;
    r.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user(kQuestions[uniform(0, 4)])), false);
    for (int more = uniform(0, 1) * uniform(0, 60); more > 0; --more) r.prompt.push_back(300 + uniform(0, 3));
    r.sampling.max_tokens = uniform(1, 90);
    r.sampling.temperature = uniform(0, 1) * 0.8;
    r.sampling.seed = uniform(0, 99);
    r.sampling.ignore_eos = uniform(0, 2) == 0;
    if (uniform(0, 3) == 0) r.n = uniform(2, 3);
    if (uniform(0, 3) == 0) r.sampling.logprobs = 2;
    if (uniform(0, 5) == 0) r.sampling.min_tokens = std::min(10, *r.sampling.max_tokens);
    if (uniform(0, 5) == 0) r.sampling.stop = std::vector<std::string>{"e "};
    if (uniform(0, 5) == 0) r.sampling.top_k = 5;
    if (uniform(0, 7) == 0) r.sampling.presence_penalty = 0.7;
    all.push_back(std::move(r));
  }
  return all;
}

TEST(DraftModelEngine, AnswersOfManyRequestsAreThoseWithoutDrafts) {
  const auto plain = Engine::load(base_options());
  const std::vector<Request> requests = requests_for(*plain, 1, 40);
  const auto wanted = answers(*plain, requests);
  const auto engine = Engine::load(with_drafts(draft_model(), {{"num_speculative_tokens", 5}}));
  expect_equal(answers(*engine, requests), wanted);
  EXPECT_GT(accepted(*engine), 100);
  EXPECT_GT(drafted(*engine), accepted(*engine));
  expect_equal(answers(*engine, requests), wanted);  // with prefixes in the cache
}

// It samples with the same noise as the model, so that it is right with a temperature, too.
TEST(DraftModelEngine, MostDraftedTokensAreAccepted) {
  for (const double temperature : {0.0, 0.8}) {
    const auto engine = Engine::load(with_drafts(draft_model()));
    Request request;
    request.prompt = engine->tokenize(engine->render_chat(ChatPrompt::user("Tell me a story about a fox.")), false);
    request.sampling = {.temperature = temperature, .max_tokens = 120};
    for (int seed = 0; seed < 8; ++seed) {
      request.sampling.seed = seed;
      run_alone(*engine, request);
    }
    EXPECT_GT(drafted(*engine), 100);
    EXPECT_GT(accepted(*engine), 0.6 * drafted(*engine)) << "temperature " << temperature;
  }
}

// Where memory is short, steps are small, or rows are kept elsewhere, a draft model that is the model itself still
// guesses every token: its keys and values are where they belong.
class ModelAsItsOwnDraft : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelAsItsOwnDraft, GuessesEveryToken) {
  const std::string how = GetParam();
  const TempFolder folder;
  std::string model = demo_model();
  constexpr const char* kSliding = "\"sliding_attention\"";
  if (how == "windows") model = with_windows(folder / "model", fmt::format("[{0}, {0}, {0}, {0}]", kSliding));
  if (how == "some_windows") {
    model = with_windows(folder / "model", fmt::format("[{0}, {0}, {0}, \"full_attention\"]", kSliding));
  }
  EngineOptions o = with_drafts(model, {{"num_speculative_tokens", 3}});
  o.model = model;
  constexpr int64_t kTokenBytes = 2 * 2048;
  if (how == "small_steps") o.max_num_batched_tokens = 24;
  if (how == "little_memory" || how == "kept_rows") o.kv_cache_memory_bytes = 800 * kTokenBytes;
  if (how == "kept_rows") o.kv_host_memory_bytes = int64_t{16} << 20;
  if (how == "no_prefix_cache") o.enable_prefix_caching = false;
  if (how == "int8_cache") o.kv_cache_dtype = "int8";
  if (how == "replicas") o.data_parallel_size = 2;
  const auto engine = Engine::load(o);
  o.speculative_config.clear();
  const auto plain = Engine::load(o);
  for (uint64_t round = 0; round < 3; ++round) {
    const std::vector<Request> requests = requests_for(*plain, 10 + round / 2, 30);  // the first two rounds are equal
    expect_equal(answers(*engine, requests), answers(*plain, requests));
  }
  EXPECT_GT(drafted(*engine), 500);
  EXPECT_EQ(drafted(*engine), accepted(*engine));
  if (how == "little_memory") {
    EXPECT_GT(metric(*engine, "vllm:num_preemptions"), 0);
  }
  if (how == "kept_rows") {
    EXPECT_GT(metric(*engine, "sluice:kv_rows_loaded"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelAsItsOwnDraft,
                         ::testing::Values("plain", "small_steps", "little_memory", "kept_rows", "no_prefix_cache",
                                           "int8_cache", "replicas", "windows", "some_windows"),
                         [](const auto& info) { return std::string(info.param); });

TEST(DraftModelEngine, UnlikelyTokensAreNotDrafted) {
  const auto share = [](Json config) {
    config["num_speculative_tokens"] = 5;
    const auto engine = Engine::load(with_drafts(draft_model(), config));
    answers(*engine, requests_for(*engine, 2, 30));
    return std::pair(drafted(*engine), accepted(*engine) / drafted(*engine));
  };
  const auto [all, accepted_of_all] = share(Json::object());
  const auto [likely, accepted_of_likely] = share({{"draft_p_min", 0.8}});
  EXPECT_LT(likely, all);
  EXPECT_GT(accepted_of_likely, accepted_of_all);
  const auto [whole, accepted_of_whole] = share({{"draft_p_min", 0.8}, {"draft_n_min", 5}});
  EXPECT_LT(whole, likely);
}

std::string error_of(const EngineOptions& options) {
  try {
    Engine::load(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DraftModelEngine, WhatCannotDraftIsRefused) {
  const TempFolder parent;
  const std::string folder = parent / "draft";
  EXPECT_THAT(error_of(with_drafts(folder)),
              AllOf(StartsWith("--speculative-config: the draft model: "), HasSubstr(folder)));
  fs::copy(draft_model(), folder);
  const auto edit = [&](const char* file, const std::string& from, const std::string& to) {
    replace_in(fs::path(folder) / file, from, to);
  };
  edit("config.json", "\"max_position_embeddings\": 2048", "\"max_position_embeddings\": 128");
  EXPECT_THAT(error_of(with_drafts(folder)), AllOf(HasSubstr("128 positions"), HasSubstr("--max-model-len 128")));
  edit("config.json", "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 2048");
  EXPECT_EQ(error_of(with_drafts(folder)), "");
  edit("tokenizer.json", "\"content\": \"<|im_start|>\"", "\"content\": \"<|im_begin|>\"");
  EXPECT_THAT(error_of(with_drafts(folder)), AllOf(HasSubstr("the draft model: its tokenizer"),
                                                   HasSubstr("'<|im_begin|>' (expected '<|im_start|>')")));
  fs::remove(fs::path(folder) / "model.safetensors");
  EXPECT_THAT(error_of(with_drafts(folder)), StartsWith("--speculative-config: the draft model: "));

  EXPECT_EQ(error_of(with_drafts(draft_model(), {{"draft_tensor_parallel_size", 2}})),
            "--speculative-config: draft_tensor_parallel_size 2 (expected 1, as many as the draft model's ranks)");
  EngineOptions divided = with_drafts(draft_model(), {{"draft_tensor_parallel_size", 1}});
  divided.tensor_parallel_size = 2;
  EXPECT_THAT(error_of(divided), HasSubstr("draft_tensor_parallel_size 1 (expected 2"));
  EngineOptions ranks = with_drafts(draft_model());
  ranks.tensor_parallel_size = 4;
  ranks.decode_context_parallel_size = 2;
  EXPECT_THAT(error_of(ranks), HasSubstr("--speculative-config with a draft model cannot be used with "
                                         "--decode-context-parallel-size 2"));
}

TEST(DraftModelEngine, MemoryOfTheDraftModelIsInThePlan) {
  const auto engine = Engine::load(with_drafts(draft_model()));
  double weights = 0;
  for (const MetricFamily& family : engine->metrics()) {
    if (family.name != "sluice:memory_bytes") continue;
    for (const MetricSample& sample : family.samples) {
      for (const auto& [label, value] : sample.labels) weights += value == "draft weights" ? sample.value : 0;
    }
  }
  EXPECT_GT(weights, 2 << 20);
}

}  // namespace
}  // namespace sluice::drafts_test
