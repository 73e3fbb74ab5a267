// Compares the demo models with Hugging Face transformers: logits, the 26 greedy answers, perplexity, chat template and
// tokenizer together.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "base/json.h"
#include "base/mmap.h"
#include "engine/collect.h"
#include "engine/runner.h"
#include "engine/text.h"
#include "formats/safetensors.h"
#include "support/sanitized.h"

namespace sluice::minnow_test {
namespace {

const std::string kGoldens = std::string(SLUICE_SOURCE_DIR) + "/tests/goldens/minnow/";

std::vector<Json> read_lines(const std::string& file) {
  std::ifstream in(kGoldens + file);
  std::vector<Json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(parse_json(line));
  EXPECT_FALSE(rows.empty()) << file;
  return rows;
}

EngineOptions options(const std::string& model, const std::string& dtype) {
  EngineOptions o;
  o.model = std::string(SLUICE_SOURCE_DIR) + "/models/" + model;
  o.dtype = dtype;
  o.kv_cache_memory_bytes = 64 << 20;
  return o;
}

class Minnow : public ::testing::TestWithParam<const char*> {};

TEST_P(Minnow, LogitsInFloat32) {
  const std::string model = GetParam();
  const MappedFile file(kGoldens + model + "-logits.safetensors");
  std::map<std::string, TensorEntry> golden;
  for (TensorEntry& entry : read_safetensors(file.bytes(), model)) golden.emplace(entry.name, entry);
  const EngineOptions o = options(model, "float32");
  ThreadPool pool(2);
  LoadedModel loaded = load_model(o, pool);
  Runner runner(loaded);
  int samples = 0;
  for (const auto& [name, entry] : golden) {
    if (!name.starts_with("logits_")) continue;
    ++samples;
    const TensorEntry& ids = golden.at("ids_" + name.substr(7));
    const std::span<const int32_t> tokens(reinterpret_cast<const int32_t*>(ids.data),
                                          static_cast<size_t>(ids.shape[0]));
    const Tensor want = entry.view();
    for_each_logits(runner, loaded.plan, o.block_size, tokens, 64, [&](int position, std::span<const float> row) {
      const float* expected = want.f32() + position * want.row_stride;
      double worst = 0, scale = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(row[i]) - expected[i]));
        scale = std::max(scale, std::abs(static_cast<double>(expected[i])));
      }
      EXPECT_LE(worst / scale, 2e-4) << name << " row " << position;
    });
  }
  EXPECT_GT(samples, 0);
}

// Returns how many of the greedy answers are exactly equal, when asked all at once or one by one.
int equal_answers(const EngineOptions& o, const std::string& file, bool at_once) {
  const auto engine = Engine::load(o);
  testing::Collector collector(*engine);
  const std::vector<Json> rows = read_lines(file);
  std::vector<size_t> at;
  for (const Json& row : rows) {
    Request request;
    request.prompt = engine->tokenize(
        engine->render_chat({.messages = dump_json(row["messages"]), .tools = {}, .template_kwargs = {}}), false);
    EXPECT_EQ(request.prompt, row["prompt_ids"].get<std::vector<TokenId>>());
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int>(row["greedy_ids"].size());
    at.push_back(collector.submit(std::move(request)));
    if (!at_once) collector.wait();
  }
  int equal = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const testing::Choice& choice = collector.answer(at[i])[0];
    equal += choice.text == rows[i]["greedy_text"].get<std::string>() &&
             choice.tokens == rows[i]["greedy_ids"].get<std::vector<TokenId>>();
  }
  return equal;
}

TEST_P(Minnow, GreedyAnswersInFloat32) {
  const std::string file = std::string(GetParam()) + "-greedy.jsonl";
  EXPECT_EQ(equal_answers(options(GetParam(), "float32"), file, false), 26);
  EXPECT_EQ(equal_answers(options(GetParam(), "float32"), file, true), 26);
}

// The texts and scores of beam searches of transformers 4.57.1, in float32.
Request beam_request(const Json& row) {
  Request request;
  request.prompt = row["prompt_ids"].get<std::vector<TokenId>>();
  const Json& early = row["early_stopping"];
  request.beams = {.width = row["num_beams"].get<int>(),
                   .length_penalty = row["length_penalty"].get<double>(),
                   .early_stopping = early == "never" ? EarlyStopping::kNever
                                     : early == true  ? EarlyStopping::kYes
                                                      : EarlyStopping::kNo,
                   .groups = row.value("num_beam_groups", 1),
                   .diversity_penalty = row.value("diversity_penalty", 0.0)};
  request.n = row["n"].get<int>();
  request.sampling.max_tokens = row["max_tokens"].get<int>();
  request.sampling.min_tokens = row.value("min_tokens", 0);
  request.sampling.logprobs = 0;
  return request;
}

void expect_beams(const Json& row, const std::vector<testing::Choice>& choices) {
  ASSERT_EQ(choices.size(), row["outputs"].size());
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto want = row["outputs"][i]["tokens"].get<std::vector<TokenId>>();
    EXPECT_EQ(choices[i].tokens, want) << dump_json(row);
    EXPECT_EQ(choices[i].finish->reason,
              choices[i].tokens.back() == 8179 ? FinishReason::kStop : FinishReason::kLength);
    if (row.contains("diversity_penalty")) continue;  // it is part of the score, but not of the log-probabilities
    double score = 0.0;
    for (const TokenLogprobs& token : choices[i].logprobs) score += static_cast<double>(token.token.logprob);
    score /= std::pow(static_cast<double>(choices[i].tokens.size()), row["length_penalty"].get<double>());
    EXPECT_NEAR(score, row["outputs"][i]["score"].get<double>(), 1e-3 * (1 + std::abs(score)));
  }
}

// Diverse searches are those of transformers 4.56.2. There, a group that has ended goes on with pad tokens, which other
// groups are penalized for. The pad token of the goldens is one that no text has.
class MinnowBeams : public ::testing::TestWithParam<const char*> {};

// All searches at once: with room for everything, with chunked prefill, and with so little memory that beams are
// preempted. The second round finds the prompts in the prefix cache.
TEST_P(MinnowBeams, AreThoseOfTransformers) {
  const std::vector<Json> rows = read_lines(GetParam());
  for (const int place : {0, 1, 2}) {
    SCOPED_TRACE(place);
    EngineOptions o = options("minnow-6m", "float32");
    o.max_model_len = 256;
    if (place == 1) o.max_num_batched_tokens = 16;
    if (place == 2) o.kv_cache_memory_bytes = 512 * 4096;  // 512 tokens
    const auto engine = Engine::load(o);
    for (int round = 0; round < 2; ++round) {
      testing::Collector collector(*engine);
      std::vector<size_t> at;
      for (const Json& row : rows) at.push_back(collector.submit(beam_request(row)));
      for (size_t i = 0; i < rows.size(); ++i) expect_beams(rows[i], collector.answer(at[i]));
      if (place == 0 && round == 1) {
        EXPECT_GT(collector.answer(at[0])[0].usage.cached_tokens, 0);
      }
    }
    EXPECT_EQ(place == 2, testing::metric(*engine, "vllm:num_preemptions") > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Searches, MinnowBeams,
                         ::testing::Values("minnow-6m-beams.jsonl", "minnow-6m-diverse-beams.jsonl"),
                         [](const auto& info) { return info.index == 0 ? "Plain" : "Diverse"; });

TEST_P(Minnow, GreedyAnswersInTheDefaultType) {
  EXPECT_GE(equal_answers(options(GetParam(), "auto"), std::string(GetParam()) + "-greedy.jsonl", true), 24);
}

double measured_perplexity(const EngineOptions& o) {
  EngineOptions options = o;
  options.max_num_seqs = 256;
  ThreadPool pool;
  LoadedModel loaded = load_model(options, pool);
  const auto tokenizer = load_tokenizer(options, *loaded.plan.checkpoint);
  Runner runner(loaded);
  double sum = 0;
  int64_t scored = 0;
  for (const Json& row : read_lines("chat-test.jsonl")) {
    const std::vector<int32_t> ids = tokenizer->encode(row["text"].get<std::string>() + "<|endoftext|>");
    for_each_logits(runner, loaded.plan, options.block_size, ids, 256,
                    [&](int position, std::span<const float> logits) {
                      if (position + 1 >= static_cast<int>(ids.size())) return;
                      double total = 0;
                      for (const float v : logits) total += std::exp(v);
                      sum += std::log(total) - logits[static_cast<size_t>(ids[static_cast<size_t>(position) + 1])];
                      ++scored;
                    });
  }
  EXPECT_EQ(scored, 46055);
  return std::exp(sum / static_cast<double>(scored));
}

// Measures each model and type once.
double perplexity(const EngineOptions& o) {
  static std::map<std::string, double> measured;
  const std::string key = fmt::format("{} {} {} {}", o.model, o.dtype, o.quantization, o.kv_cache_dtype);
  const auto found = measured.find(key);
  return found != measured.end() ? found->second : measured[key] = measured_perplexity(o);
}

TEST_P(Minnow, Perplexity) {
  if (kSanitized) {
    GTEST_SKIP() << "the whole file takes minutes under a sanitizer; logits and answers run the same code";
  }
  const Json reference = read_json_file(kGoldens + "reference.json");
  const double want = reference[GetParam()]["chat_test_perplexity"].get<double>();
  EXPECT_NEAR(perplexity(options(GetParam(), "float32")) / want, 1.0, 0.002);
  EXPECT_NEAR(perplexity(options(GetParam(), "bfloat16")) / want, 1.0, 0.01);
}

// 8-bit weights; on a GPU also 8-bit activations and cache.
TEST_P(Minnow, PerplexityInFp8) {
  if (kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer";
  const Json reference = read_json_file(kGoldens + "reference.json");
  EngineOptions o = options(GetParam(), "bfloat16");
  o.quantization = "fp8";
  o.kv_cache_dtype = "fp8";
  const double ratio = perplexity(o) / reference[GetParam()]["chat_test_perplexity"].get<double>();
  fmt::print("{}: perplexity in fp8 {:.5f} of the reference's\n", GetParam(), ratio);
  EXPECT_NEAR(ratio, 1.0, 0.005);
}

// 8-bit keys and values; everything else in bf16.
TEST_P(Minnow, PerplexityWithNarrowCaches) {
  if (kSanitized) GTEST_SKIP() << "takes minutes under a sanitizer";
  EngineOptions o = options(GetParam(), "bfloat16");
  const double plain = perplexity(o);
  for (const std::string type : {"int8", "fp8", "fp8_e5m2"}) {
    o.kv_cache_dtype = type;
    const double narrow = perplexity(o);
    fmt::print("{}: perplexity {:.4f} with a cache of bfloat16, {:.4f} of {}\n", GetParam(), plain, narrow, type);
    EXPECT_NEAR(narrow / plain, 1.0, type == "int8" ? 0.001 : type == "fp8" ? 0.005 : 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Minnow, ::testing::Values("minnow-6m", "minnow-1m-draft"),
                         [](const auto& info) { return std::string(info.param) == "minnow-6m" ? "base" : "draft"; });

}  // namespace
}  // namespace sluice::minnow_test
