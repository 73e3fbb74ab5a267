// The engine for embedding models, on a tiny BERT. A text's embedding does not depend on its batch, every request ends
// once, and errors name the value that is out of range.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "sluice/engine.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice::pooling_test {
namespace {

namespace fs = std::filesystem;

class PoolingEngineTest : public ::testing::Test {
 protected:
  PoolingEngineTest() {
    options.model = folder.path();
    options.dtype = "float32";
    options.threads = 2;
    options.deterministic = true;  // batch-invariant even if a GPU is the default backend
    checkpoint("bert");
  }
  // A golden test's model with a tokenizer beside it.
  void checkpoint(const std::string& golden) const {
    const fs::path goldens = fs::path(SLUICE_SOURCE_DIR) / "tests/goldens";
    testing::write_hashed_checkpoint((goldens / "embedding" / golden).string(), folder.path());
    fs::copy_file(goldens / "tokenizer/wordpiece-bert-uncased/tokenizer.json",
                  fs::path(folder.path()) / "tokenizer.json", fs::copy_options::overwrite_existing);
  }
  void file(const std::string& name, const std::string& text) const {
    const fs::path path = fs::path(folder.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  static PooledText text(int length, unsigned seed) {
    std::mt19937 random(seed);
    PooledText out;
    for (int i = 0; i < length; ++i) {
      out.tokens.push_back(static_cast<TokenId>(random() % 200));
      out.types.push_back(static_cast<int32_t>(random() % 2));
    }
    return out;
  }
  static PoolingRequest request(std::vector<PooledText> texts) {
    PoolingRequest out;
    out.texts = std::move(texts);
    return out;
  }
  static PoolingResult pool(Engine& engine, PoolingRequest request) {
    std::promise<PoolingResult> promise;
    engine.embed(std::move(request), [&](PoolingResult result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }
  static double length(const std::vector<float>& vector) {
    double squares = 0;
    for (const float x : vector) squares += static_cast<double>(x) * x;
    return std::sqrt(squares);
  }
  template <class Call>
  static void expect_refused(Call&& call, const std::string& param, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "was not refused: " << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_EQ(e.param, param) << e.what();
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  testing::TempFolder folder;
  EngineOptions options;
};

// Wordpieces between [CLS] and [SEP], which stay.
TEST_F(PoolingEngineTest, LongTextsAreCutAtEitherEnd) {
  const auto engine = Engine::load(options);
  const std::vector<TokenId> whole = engine->encode("one two three four five six", {}, {}).tokens;
  ASSERT_EQ(whole.size(), 8u);
  const auto cut = [&](int tokens, bool keep_end) {
    return engine->encode("one two three four five six", {}, {.tokens = tokens, .keep_end = keep_end}).tokens;
  };
  EXPECT_EQ(cut(5, false), (std::vector<TokenId>{whole[0], whole[1], whole[2], whole[3], whole[7]}));
  EXPECT_EQ(cut(5, true), (std::vector<TokenId>{whole[0], whole[4], whole[5], whole[6], whole[7]}));
  EXPECT_EQ(cut(8, true), whole);
  EXPECT_EQ(cut(2, true), (std::vector<TokenId>{whole[0], whole[7]}));
}

TEST_F(PoolingEngineTest, VectorsDoNotDependOnCompany) {
  options.max_num_batched_tokens = 90;
  options.max_num_seqs = 5;
  const auto engine = Engine::load(options);
  EXPECT_EQ(engine->model().task, Task::kEmbed);
  EXPECT_EQ(engine->model().vector_size, 64);
  std::vector<PooledText> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(text(1 + i * 7 % 64, static_cast<unsigned>(i)));
  std::vector<std::vector<float>> alone;
  for (const PooledText& one : texts) alone.push_back(pool(*engine, request({one})).vectors.at(0));
  const PoolingResult together = pool(*engine, request(texts));
  EXPECT_EQ(together.vectors, alone);
  int tokens = 0;
  for (const PooledText& one : texts) tokens += static_cast<int>(one.tokens.size());
  EXPECT_EQ(together.prompt_tokens, tokens);
  std::vector<std::promise<PoolingResult>> open(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    engine->embed(request({texts[i]}), [&open, i](PoolingResult result) { open[i].set_value(std::move(result)); });
  }
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(open[i].get_future().get().vectors.at(0), alone[i]) << i;
}

// Leading dimensions of a model that was not trained for it are a worse vector without a word of warning.
TEST_F(PoolingEngineTest, DimensionsNeedAModelThatDeclaresThem) {
  PoolingRequest wish = request({text(9, 1)});
  const auto expect_only = [&](const EngineOptions& o, std::initializer_list<int> allowed) {
    const auto engine = Engine::load(o);
    for (const int dimensions : {16, 32, 64}) {
      wish.dimensions = dimensions;
      if (std::ranges::find(allowed, dimensions) != allowed.end()) {
        EXPECT_EQ(pool(*engine, wish).vectors.at(0).size(), static_cast<size_t>(dimensions));
      } else {
        expect_refused([&] { engine->embed(wish, [](const PoolingResult&) {}); }, "dimensions", "may be cut");
      }
    }
  };
  expect_only(options, {64});
  EngineOptions said = options;
  said.matryoshka = true;
  expect_only(said, {16, 32, 64});
  const std::string path = options.model + "/config.json";
  Json config = read_config(path).values();
  config["matryoshka_dimensions"] = {32, 64};
  file("config.json", dump_json(config));
  expect_only(options, {32, 64});
  config.erase("matryoshka_dimensions");
  config["is_matryoshka"] = true;
  file("config.json", dump_json(config));
  expect_only(options, {16, 32, 64});
}

TEST_F(PoolingEngineTest, DimensionsAndLength) {
  options.matryoshka = true;
  const auto engine = Engine::load(options);
  PoolingRequest wish = request({text(9, 1)});
  const std::vector<float> whole = pool(*engine, wish).vectors.at(0);
  EXPECT_NEAR(length(whole), 1, 1e-6);  // the default without sentence-transformers files
  wish.normalize = false;
  const std::vector<float> raw = pool(*engine, wish).vectors.at(0);
  EXPECT_GT(std::abs(length(raw) - 1), 1e-3);
  wish.dimensions = 10;
  EXPECT_EQ(pool(*engine, wish).vectors.at(0), std::vector<float>(raw.begin(), raw.begin() + 10));
  wish.normalize = true;
  const std::vector<float> first = pool(*engine, wish).vectors.at(0);
  EXPECT_NEAR(length(first), 1, 1e-6);
  EXPECT_NEAR(first[0] / first[1], raw[0] / raw[1], 1e-4);
}

TEST_F(PoolingEngineTest, SentenceTransformersFiles) {
  file("modules.json", R"([{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
    {"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
    {"idx":2,"name":"2","path":"2_Dense","type":"sentence_transformers.models.Dense"}])");
  file("1_Pooling/config.json", R"({"word_embedding_dimension":64,"pooling_mode_cls_token":true,
    "pooling_mode_mean_tokens":false})");
  file("2_Dense/config.json", R"({"in_features":64,"out_features":3,"bias":true,
    "activation_function":"torch.nn.modules.activation.Tanh"})");
  std::vector<float> weight(3 * 64), bias = {0.25f, -0.5f, 0};
  for (int i = 0; i < 3; ++i) weight[static_cast<size_t>(i * 64 + i)] = 0.5f;
  const std::vector<NamedTensor> tensors{{"linear.weight", Tensor(weight.data(), &kFloat32, {3, 64})},
                                         {"linear.bias", Tensor(bias.data(), &kFloat32, {3})}};
  write_safetensors((fs::path(folder.path()) / "2_Dense/model.safetensors").string(), tensors);
  file("config_sentence_transformers.json", R"({"prompts":{"query":"find: "},"default_prompt_name":"query"})");
  file("sentence_bert_config.json", R"({"max_seq_length":20,"do_lower_case":false})");
  const auto engine = Engine::load(options);
  EXPECT_EQ(engine->model().vector_size, 3);
  EXPECT_EQ(engine->model().max_model_len, 20);
  EXPECT_EQ(engine->model().prompts.at("query"), "find: ");
  EXPECT_EQ(engine->model().default_prompt, "query");
  const std::vector<float> dense = pool(*engine, request({text(9, 1)})).vectors.at(0);
  fs::remove(fs::path(folder.path()) / "2_Dense/config.json");
  file("modules.json", R"([{"path":"","type":"sentence_transformers.models.Transformer"},
    {"path":"1_Pooling","type":"sentence_transformers.models.Pooling"}])");
  const std::vector<float> first = pool(*Engine::load(options), request({text(9, 1)})).vectors.at(0);
  ASSERT_EQ(first.size(), 64u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(dense[i], std::tanh(0.5f * first[i] + bias[i]), 1e-5);
}

TEST_F(PoolingEngineTest, UnsupportedFilesAreRefusedByName) {
  const auto expect = [&](const std::string& part) {
    try {
      Engine::load(options);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  const std::string head = R"([{"path":"","type":"sentence_transformers.models.Transformer"},)";
  file("modules.json", head + R"({"path":"1","type":"sentence_transformers.models.LSTM"}])");
  expect("LSTM");
  file("modules.json", head + R"({"path":"../../etc","type":"sentence_transformers.models.Pooling"}])");
  expect("leaves the model's folder");
  file("modules.json", head + R"({"path":"1","type":"sentence_transformers.models.Pooling"}])");
  file("1/config.json", R"({"pooling_mode_mean_tokens":true,"pooling_mode_max_tokens":true})");
  expect("pooling_mode_max_tokens");
  file("1/config.json", R"({"pooling_mode":"median"})");
  expect("median");
  file("1/config.json", R"({"pooling_mode":"cls","surprise":1})");
  expect("surprise");
  file("modules.json", "{}");
  expect("modules.json");
}

TEST_F(PoolingEngineTest, ScoresAreActivated) {
  checkpoint("bert_classifier");
  const auto engine = Engine::load(options);
  EXPECT_EQ(engine->model().task, Task::kScore);
  EXPECT_EQ(engine->model().vector_size, 3);
  PoolingRequest wish = request({text(9, 1)});
  const std::vector<float> shares = pool(*engine, wish).vectors.at(0);
  EXPECT_NEAR(shares[0] + shares[1] + shares[2], 1, 1e-6);
  wish.activate = false;
  const std::vector<float> logits = pool(*engine, wish).vectors.at(0);
  EXPECT_NEAR(std::log(shares[0] / shares[1]), logits[0] - logits[1], 1e-4);
}

TEST_F(PoolingEngineTest, OutOfRange) {
  const auto engine = Engine::load(options);
  const auto submit = [&](PoolingRequest wrong) {
    return [&engine, wrong] { engine->embed(wrong, [](const PoolingResult&) {}); };
  };
  expect_refused(submit(request({})), "input", "no texts");
  expect_refused(submit(request({text(3, 1), {}})), "input[1]", "no tokens");
  expect_refused(submit(request({text(65, 1)})), "input", "64 tokens");
  PooledText unknown = text(3, 1);
  unknown.tokens[1] = 200;
  expect_refused(submit(request({unknown})), "input", "200");
  PoolingRequest wide = request({text(3, 1)});
  wide.dimensions = 65;
  expect_refused(submit(wide), "dimensions", "64 dimensions");
  Request prompt;
  prompt.prompt = {1};
  expect_refused([&] { engine->submit(prompt, [](const Event&) {}); }, "prompt", "does not generate text");
}

TEST_F(PoolingEngineTest, EveryRequestEndsOnce) {
  options.max_num_queued_reqs = 50;
  auto engine = Engine::load(options);
  std::atomic<int> open = 0, refused = 0;
  for (int i = 0; i < 400; ++i) {
    PoolingRequest wish = request({text(1 + i % 64, 1), text(5, 2)});
    if (i % 7 == 0) wish.deadline = std::chrono::steady_clock::now();
    ++open;
    try {
      const RequestId id = engine->embed(wish, [&open](PoolingResult result) {
        EXPECT_EQ(result.vectors.size(), result.reason == FinishReason::kStop ? 2u : 0u);
        --open;
      });
      if (i % 5 == 0) engine->cancel(id);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kOverloaded);
      --open;
      ++refused;
    }
  }
  engine.reset();
  EXPECT_EQ(open, 0);
}

}  // namespace
}  // namespace sluice::pooling_test
