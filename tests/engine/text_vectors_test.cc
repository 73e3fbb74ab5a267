// Vectors from an engine that generates text, against transformers' last hidden states, whatever runs beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>

#include "base/json.h"
#include "base/mmap.h"
#include "engine/collect.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice::text_vectors_test {
namespace {

namespace fs = std::filesystem;
using testing::Choice, testing::Collector;

const fs::path kGoldens = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens";

std::vector<float> normalized(std::vector<double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  std::vector<float> out;
  for (const double value : values) out.push_back(static_cast<float>(value / std::sqrt(squares)));
  return out;
}

PoolingRequest request_of(std::vector<std::vector<TokenId>> texts) {
  PoolingRequest out;
  for (std::vector<TokenId>& tokens : texts) out.texts.push_back({.tokens = std::move(tokens)});
  return out;
}

std::future<PoolingResult> begin(Engine& engine, PoolingRequest request) {
  const auto promise = std::make_shared<std::promise<PoolingResult>>();
  engine.embed(std::move(request), [promise](PoolingResult result) { promise->set_value(std::move(result)); });
  return promise->get_future();
}

std::vector<std::vector<float>> vectors_of(Engine& engine, std::vector<std::vector<TokenId>> texts) {
  const PoolingResult result = begin(engine, request_of(std::move(texts))).get();
  EXPECT_EQ(result.reason, FinishReason::kStop) << result.message;
  return result.vectors;
}

std::vector<TokenId> random_text(int length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(3 + random() % 190));
  return tokens;
}

class TextVectorsTest : public ::testing::TestWithParam<std::string> {
 protected:
  TextVectorsTest() {
    options.model = testing::demo_model();
    options.dtype = "float32";
    options.threads = 2;
    options.deterministic = true;
    options.kv_cache_memory_bytes = int64_t{16} << 20;
    options.embedding_pooling = GetParam();
  }
  static bool mean() { return GetParam() == "mean"; }

  EngineOptions options;
};

// Makes the golden's Qwen3Model one that generates, with the embedding table as its head.
void give_head(const fs::path& folder) {
  const std::string path = (folder / "config.json").string();
  Json config = read_config(path).values();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["tie_word_embeddings"] = true;
  std::ofstream(path) << dump_json(config);
  const std::string weights = (folder / "model.safetensors").string();
  const MappedFile file(weights);
  std::vector<NamedTensor> tensors;
  for (const TensorEntry& entry : read_safetensors(file.bytes(), weights)) {
    tensors.push_back({"model." + entry.name, entry.view()});
  }
  write_safetensors(weights, tensors);
}

TEST_P(TextVectorsTest, AreTransformersLastHiddenStates) {
  const testing::TempFolder folder;
  const fs::path golden = kGoldens / "embedding/qwen3_embedding";
  testing::write_hashed_checkpoint(golden.string(), folder.path());
  fs::copy_file(kGoldens / "tokenizer/wordpiece-bert-uncased/tokenizer.json",
                fs::path(folder.path()) / "tokenizer.json");
  give_head(folder.path());
  const MappedFile file((golden / "golden.safetensors").string());
  std::map<std::string, TensorEntry> tensors;
  for (TensorEntry& entry : read_safetensors(file.bytes(), "golden")) tensors.emplace(entry.name, entry);
  options.model = folder.path();
  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    const auto engine = Engine::load(options);
    EXPECT_EQ(engine->model().vector_size, 64);
    for (const std::string text : {"0", "1", "2"}) {
      const TensorEntry& ids = tensors.at("ids_" + text);
      const auto* first = reinterpret_cast<const int32_t*>(ids.data);
      const auto vector = vectors_of(*engine, {{first, first + ids.shape[0]}}).at(0);
      const Tensor hidden = tensors.at("hidden_" + text).view();
      std::vector<double> sum(64, 0.0);
      for (int64_t row = mean() ? 0 : hidden.rows() - 1; row < hidden.rows(); ++row) {
        for (int64_t i = 0; i < 64; ++i) sum[static_cast<size_t>(i)] += hidden.f32()[row * hidden.row_stride + i];
      }
      const std::vector<float> expected = normalized(sum);
      for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(vector[i], expected[i], 2e-5) << "text " << text << " value " << i;
    }
  }
}

// Chunks, other texts, answers and a cache that is too small for all of them leave every vector's bits as they are.
TEST_P(TextVectorsTest, DoNotDependOnCompany) {
  std::vector<std::vector<TokenId>> texts;
  for (int i = 0; i < 12; ++i) texts.push_back(random_text(1 + i * 37 % 300, static_cast<unsigned>(i)));
  std::vector<std::vector<float>> alone;
  {
    EngineOptions whole = options;
    whole.max_num_batched_tokens = 512;
    const auto engine = Engine::load(whole);
    for (const auto& text : texts) alone.push_back(vectors_of(*engine, {text}).at(0));
  }
  options.max_num_batched_tokens = 48;
  options.max_num_seqs = 5;
  options.max_model_len = 320;
  options.kv_cache_memory_bytes = int64_t{2} << 20;
  const auto engine = Engine::load(options);
  std::vector<Request> chats(4);
  std::vector<std::vector<TokenId>> answers;
  for (unsigned i = 0; i < 4; ++i) {
    chats[i].prompt = random_text(20, 90 + i);
    chats[i].sampling.max_tokens = 150;
    chats[i].sampling.ignore_eos = true;
    chats[i].sampling.seed = 7;
    answers.push_back(testing::run_alone(*engine, chats[i]).tokens);
  }
  Collector collector(*engine);
  for (const Request& chat : chats) collector.submit(chat);
  std::future<PoolingResult> together = begin(*engine, request_of(texts));
  std::vector<std::future<PoolingResult>> one_by_one;
  for (const auto& text : texts) one_by_one.push_back(begin(*engine, request_of({text})));
  EXPECT_EQ(together.get().vectors, alone);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(one_by_one[i].get().vectors.at(0), alone[i]) << i;
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(collector.answer(i)[0].tokens, answers[i]);
  EXPECT_TRUE(testing::settles(*engine, "vllm:num_requests_running", 0));
  EXPECT_GT(testing::metric(*engine, "vllm:num_preemptions"), 0);
  EXPECT_EQ(vectors_of(*engine, texts), alone) << "with their prefixes cached";
}

TEST_P(TextVectorsTest, AreTheSameWithReplicasAndDrafts) {
  std::vector<std::vector<TokenId>> texts;
  for (int i = 0; i < 5; ++i) texts.push_back(random_text(1 + i * 31, static_cast<unsigned>(i)));
  const std::vector<std::vector<float>> plain = vectors_of(*Engine::load(options), texts);
  EngineOptions replicas = options;
  replicas.data_parallel_size = 2;
  EXPECT_EQ(vectors_of(*Engine::load(replicas), texts), plain);
  EngineOptions drafts = options;
  drafts.speculative_config = R"({"method": "draft_model", "model": ")" + testing::draft_model() + "\"}";
  EXPECT_EQ(vectors_of(*Engine::load(drafts), texts), plain);
}

TEST_P(TextVectorsTest, CountTokensAndTakeWholeContexts) {
  options.max_model_len = 64;
  options.matryoshka = true;
  const auto engine = Engine::load(options);
  PoolingRequest request = request_of({random_text(64, 1), random_text(5, 2)});
  request.normalize = false;
  const PoolingResult raw = begin(*engine, request).get();
  ASSERT_EQ(raw.vectors.size(), 2u);
  EXPECT_EQ(raw.prompt_tokens, 69);
  request.dimensions = 7;
  EXPECT_EQ(begin(*engine, request).get().vectors.at(1),
            std::vector<float>(raw.vectors[1].begin(), raw.vectors[1].begin() + 7));
}

TEST_P(TextVectorsTest, EveryRequestEndsOnce) {
  options.max_num_queued_reqs = 50;
  options.max_num_batched_tokens = 32;
  auto engine = Engine::load(options);
  std::atomic<int> open = 0;
  for (int i = 0; i < 200; ++i) {
    PoolingRequest request = request_of({random_text(1 + i % 64, 1), random_text(5, 2)});
    if (i % 7 == 0) request.deadline = std::chrono::steady_clock::now();
    ++open;
    try {
      const RequestId id = engine->embed(request, [&open](const PoolingResult& result) {
        EXPECT_EQ(result.vectors.size(), result.reason == FinishReason::kStop ? 2u : 0u);
        --open;
      });
      if (i % 5 == 0) engine->cancel(id);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kOverloaded);
      --open;
    }
  }
  engine.reset();
  EXPECT_EQ(open, 0);
}

INSTANTIATE_TEST_SUITE_P(Poolings, TextVectorsTest, ::testing::Values("last", "mean"));

template <class Call>
void expect_refused(Call&& call, const std::string& param, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "was not refused: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.param, param) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(TextVectors, AreRefusedByName) {
  EngineOptions options;
  options.model = testing::demo_model();
  options.max_model_len = 64;
  options.kv_cache_memory_bytes = int64_t{4} << 20;
  const auto wish = [](Engine& engine, std::vector<std::vector<TokenId>> texts, int dimensions = 0) {
    PoolingRequest request = request_of(std::move(texts));
    request.dimensions = dimensions;
    engine.embed(request, [](const PoolingResult&) {});
  };
  {
    const auto engine = Engine::load(options);
    EXPECT_FALSE(engine->model().embeds());
    expect_refused([&] { wish(*engine, {{5}}); }, "input", "--embedding-pooling");
  }
  options.embedding_pooling = "last";
  const auto engine = Engine::load(options);
  expect_refused([&] { wish(*engine, {}); }, "input", "no texts");
  expect_refused([&] { wish(*engine, {{5}, {}}); }, "input[1]", "no tokens");
  expect_refused([&] { wish(*engine, {random_text(65, 1)}); }, "input", "64 tokens");
  expect_refused([&] { wish(*engine, {{1 << 20}}); }, "input", "vocabulary");
  expect_refused([&] { wish(*engine, {{5}}, 3); }, "dimensions", "may be cut");
  options.embedding_pooling = "median";
  expect_refused([&] { Engine::load(options); }, "", "median");
  options.embedding_pooling = "mean";
  options.task = "embed";
  expect_refused([&] { Engine::load(options); }, "", "--task embed");
}

}  // namespace
}  // namespace sluice::text_vectors_test
