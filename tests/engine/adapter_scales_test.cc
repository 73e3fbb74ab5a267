// Scales of adapters that requests choose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json.h"
#include "engine/collect.h"
#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace sluice::adapter_scales_test {
namespace {

using namespace testing;  // engine/collect.h
using ::testing::HasSubstr;

const std::string kPirate = demo_model() + "-lora-pirate";

// The demo adapter, whose alpha is 32, with another one.
class PirateWithAlpha {
 public:
  explicit PirateWithAlpha(double alpha, const std::vector<TokenId>& invocation = {}) {
    std::filesystem::copy(kPirate + "/adapter_model.safetensors", folder_.path());
    Json config = read_json_file(kPirate + "/adapter_config.json");
    config["lora_alpha"] = alpha;
    if (!invocation.empty()) config["alora_invocation_tokens"] = invocation;
    folder_.write("adapter_config.json", config.dump());
  }
  std::string module(const std::string& name) const { return name + "=" + folder_.path().string(); }

 private:
  TempFolder folder_;
};

std::unique_ptr<Engine> engine_with(std::vector<std::string> modules, int max_loras = 2) {
  EngineOptions o;
  o.model = demo_model();
  o.threads = 2;
  o.deterministic = true;  // batch-invariant even if a GPU is the default backend
  o.max_model_len = 512;
  o.kv_cache_memory_bytes = int64_t{32} << 20;
  o.max_loras = max_loras;
  o.lora_modules = std::move(modules);
  return Engine::load(o);
}

Request scaled(const Engine& engine, const std::string& adapter, float scale, const std::string& text) {
  Request request;
  request.prompt = engine.tokenize(text, false);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 24;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 0;
  request.adapter = adapter;
  request.adapter_scale = scale;
  return request;
}

std::vector<float> logprobs_of(const Choice& choice) {
  std::vector<float> out;
  for (const TokenLogprobs& token : choice.logprobs) out.push_back(token.token.logprob);
  return out;
}

void expect_equal(const Choice& got, const Choice& want) {
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(logprobs_of(got), logprobs_of(want));
}

const std::string kText = "Tell me a story about the sea and a ship with three masts, far from every coast.";

TEST(AdapterScales, AreFactorsOfTheFilesScale) {
  const PirateWithAlpha quarter(8), more(54.4), none(0), negative(-16);
  const auto engine = engine_with({"pirate=" + kPirate, quarter.module("quarter"), more.module("more"),
                                   none.module("none"), negative.module("negative")});
  Collector collector(*engine);  // together, so that rows of a step have other scales
  const std::pair<std::string, float> pairs[] = {
      {"quarter", 0.25f}, {"more", 1.7f}, {"none", 0.0f}, {"negative", -0.5f}};
  std::vector<size_t> got, want;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [name, scale] : pairs) {
      got.push_back(collector.submit(scaled(*engine, "pirate", scale, kText)));
      want.push_back(collector.submit(scaled(*engine, name, 1, kText)));
    }
  }
  for (size_t i = 0; i < got.size(); ++i) expect_equal(collector.answer(got[i])[0], collector.answer(want[i])[0]);
  EXPECT_NE(logprobs_of(collector.answer(got[0])[0]), logprobs_of(collector.answer(got[1])[0]));
}

TEST(AdapterScales, TakeTurnsWhereOnlyOneFits) {
  const auto roomy = engine_with({"pirate=" + kPirate}, 4), narrow = engine_with({"pirate=" + kPirate}, 1);
  const float scales[] = {1, 0.5f, -1, 2, 0.5f, 1};
  Collector here(*narrow), there(*roomy);
  for (const float scale : scales) {
    here.submit(scaled(*narrow, "pirate", scale, kText));
    there.submit(scaled(*roomy, "pirate", scale, kText));
  }
  for (size_t i = 0; i < std::size(scales); ++i) expect_equal(here.answer(i)[0], there.answer(i)[0]);
}

TEST(AdapterScales, DoNotSharePrefixes) {
  const auto engine = engine_with({"pirate=" + kPirate});
  const auto cached = [&](const std::string& adapter, float scale) {
    return run_alone(*engine, scaled(*engine, adapter, scale, std::string(200, 'x'))).usage.cached_tokens;
  };
  EXPECT_EQ(cached("pirate", 1), 0);
  EXPECT_EQ(cached("pirate", 0.5f), 0);
  EXPECT_EQ(cached("pirate", -0.5f), 0);
  EXPECT_EQ(cached("", 1), 0);
  EXPECT_GT(cached("pirate", 0), 0) << "the model's blocks";
  EXPECT_GT(cached("pirate", 0.5f), 0);
  EXPECT_GT(cached("pirate", 1), 0);
}

TEST(AdapterScales, OfActivatedOnesShareTheModelsBlocksOnly) {
  const auto reference = engine_with({});
  const std::string tail = " Answer:";
  const PirateWithAlpha late(32, reference->tokenize(tail, false)), half(16, reference->tokenize(tail, false));
  const auto engine = engine_with({late.module("late"), half.module("half")});
  const auto ask = [&](const std::string& adapter, float scale) {
    return run_alone(*engine, scaled(*engine, adapter, scale, kText + kText + tail + kText));
  };
  const Choice want = ask("half", 1), got = ask("late", 0.5f);
  expect_equal(got, want);
  EXPECT_GT(got.usage.cached_tokens, 0) << "the model's blocks";
  EXPECT_EQ(ask("late", 1).usage.cached_tokens, got.usage.cached_tokens);
  EXPECT_GT(ask("late", 0.5f).usage.cached_tokens, got.usage.cached_tokens);
}

TEST(AdapterScales, BeyondAllNumbersHarmNobodyElse) {
  const auto engine = engine_with({"pirate=" + kPirate});
  const Choice plain = run_alone(*engine, scaled(*engine, "pirate", 1, kText));
  Collector collector(*engine);
  const size_t beside = collector.submit(scaled(*engine, "pirate", 1, kText));
  for (const float scale : {3e38f, -3e38f, 1e20f, 1e-40f}) collector.submit(scaled(*engine, "pirate", scale, kText));
  expect_equal(collector.answer(beside)[0], plain);
  for (size_t i = 1; i < 5; ++i) EXPECT_TRUE(collector.answer(i)[0].finish.has_value()) << i;
  expect_equal(run_alone(*engine, scaled(*engine, "pirate", 1, kText)), plain);
}

TEST(AdapterScales, AreRefusedByName) {
  const TempFolder folder;
  folder.write("adapter_config.json", R"({"peft_type":"LORA","r":1,"lora_alpha":1})");
  std::vector<float> a(8192), b(256);
  write_safetensors(
      folder / "adapter_model.safetensors",
      std::vector<NamedTensor>{
          {"base_model.model.model.embed_tokens.lora_embedding_A", Tensor(a.data(), &kFloat32, {1, 8192})},
          {"base_model.model.model.embed_tokens.lora_embedding_B", Tensor(b.data(), &kFloat32, {256, 1})}});
  const auto engine = engine_with({"pirate=" + kPirate, "table=" + folder.path().string()});
  const auto refusal = [&](const std::string& adapter, float scale) -> std::string {
    try {
      run_alone(*engine, scaled(*engine, adapter, scale, kText));
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_EQ(e.param, "lora");
      return e.what();
    }
  };
  EXPECT_EQ(engine->adapters().at(0).unscalable, "");
  EXPECT_EQ(engine->adapters().at(1).unscalable, "model.embed_tokens");
  EXPECT_EQ(refusal("table", 1), "");
  EXPECT_EQ(refusal("table", 0), "");
  EXPECT_THAT(refusal("table", 0.5f), HasSubstr("expected the scale 0 or 1 of the adapter 'table', but got 0.5. Its "
                                                "module 'model.embed_tokens' has more"));
  EXPECT_THAT(refusal("pirate", std::nanf("")), HasSubstr("finite"));
  EXPECT_THAT(refusal("pirate", std::numeric_limits<float>::infinity()), HasSubstr("finite"));
}

}  // namespace
}  // namespace sluice::adapter_scales_test
