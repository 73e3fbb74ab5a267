// Reading adapters in peft's format: what is read, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "formats/safetensors.h"
#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice::peft_test {
namespace {

namespace fs = std::filesystem;

const std::string kPirate = std::string(SLUICE_SOURCE_DIR) + "/models/minnow-6m-lora-pirate";

// A folder with an adapter of rank 2 on one module [3, 4].
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "sluice-adapter-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
    write(config());
    write_tensors(
        {{"base_model.model.m.q_proj.lora_A.weight", {2, 4}}, {"base_model.model.m.q_proj.lora_B.weight", {3, 2}}});
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

  static Json config() { return {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}}; }
  void write(const Json& config) const { std::ofstream(path_ + "/adapter_config.json") << config.dump(); }
  void write_tensors(const std::vector<std::pair<std::string, Shape>>& tensors) const {
    std::vector<std::vector<float>> values;
    std::vector<NamedTensor> named;
    for (const auto& [name, shape] : tensors) {
      std::vector<float>& v = values.emplace_back(static_cast<size_t>(shape.elements()));
      for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
      named.push_back({name, Tensor(v.data(), &kFloat32, shape)});
    }
    write_safetensors(path_ + "/adapter_model.safetensors", named);
  }

 private:
  std::string path_;
};

std::string refusal(const Folder& folder) {
  try {
    read_adapter(folder.path());
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string refusal_of(const char* key, const Json& value) {
  const Folder folder;
  Json config = Folder::config();
  config[key] = value;
  folder.write(config);
  return refusal(folder);
}

TEST(Peft, ReadsTheDemoAdapter) {
  const auto adapter = read_adapter(kPirate);
  EXPECT_EQ(adapter->rank, 16);
  ASSERT_EQ(adapter->modules.size() % 7, 0u);
  for (const Adapter::Module& module : adapter->modules) {
    EXPECT_TRUE(module.name.starts_with("model.layers.")) << module.name;
    EXPECT_EQ(module.scale, 2.0f);
    EXPECT_EQ(static_cast<int64_t>(module.a.size()), module.rank * module.inputs);
    EXPECT_EQ(static_cast<int64_t>(module.b.size()), module.rank * module.outputs);
  }
  EXPECT_EQ(adapter->digest, read_adapter(kPirate)->digest);
}

TEST(Peft, ScalesAsPeftDoes) {
  const Folder folder;
  const auto scale = [&](const Json& changes) {
    Json config = Folder::config();
    config.update(changes);
    folder.write(config);
    return read_adapter(folder.path())->modules.at(0).scale;
  };
  EXPECT_FLOAT_EQ(scale(Json::object()), 3.0f);
  EXPECT_FLOAT_EQ(scale({{"use_rslora", true}}), 6.0f / std::sqrt(2.0f));
  EXPECT_FLOAT_EQ(scale({{"alpha_pattern", {{"q_proj", 8}}}}), 4.0f);
  EXPECT_FLOAT_EQ(scale({{"alpha_pattern", {{"proj", 8}}}}), 3.0f) << "a pattern begins after a dot";
  EXPECT_FLOAT_EQ(scale({{"alpha_pattern", {{"^m\\.q_proj", 8}}}}), 4.0f);
  EXPECT_FLOAT_EQ(scale({{"r", 7}, {"rank_pattern", {{"m.q_proj", 2}}}}), 3.0f);
}

// peft adds the weight that an adapter of an embedding or a head was trained on.
TEST(Peft, KeepsTheLengthsOfTheBaseLayersRows) {
  const Folder folder;
  const std::string module = "base_model.model.lm_head.";
  folder.write_tensors({{module + "lora_A.weight", {2, 2}},
                        {module + "lora_B.weight", {2, 2}},
                        {module + "base_layer.weight", {2, 2}},
                        {module + "base_layer.bias", {2}}});
  EXPECT_THAT(read_adapter(folder.path())->modules.at(0).base,
              ::testing::Pointwise(::testing::FloatEq(), {1.0f, std::sqrt(13.0f), 0.0f, 1.0f}));
  folder.write_tensors(
      {{module + "lora_A.weight", {2, 2}}, {module + "lora_B.weight", {2, 2}}, {module + "base_layer.weight", {4}}});
  EXPECT_THAT(refusal(folder), ::testing::HasSubstr("base_layer.weight"));
}

// peft wraps the module of several parameters once for each, from the first one that the module declares.
TEST(Peft, ReadsParametersOfExperts) {
  using ::testing::HasSubstr;
  const Folder folder;
  const std::string module = "base_model.model.m.experts.";
  folder.write_tensors({{module + "base_layer.lora_A.weight", {6, 4}},
                        {module + "base_layer.lora_B.weight", {10, 6}},
                        {module + "lora_A.weight", {9, 5}},
                        {module + "lora_B.weight", {4, 9}},
                        {"base_model.model.m.gate.lora_A.weight", {2, 4}},
                        {"base_model.model.m.gate.lora_B.weight", {3, 2}}});
  Json config = Folder::config();
  config["target_parameters"] = {"m.gate.weight", "experts.down_proj", "m.experts.gate_up_proj"};
  config["rank_pattern"] = {{"experts.down_proj", 3}};
  config["alpha_pattern"] = {{"gate.weight", 8}};
  folder.write(config);
  const auto adapter = read_adapter(folder.path());
  ASSERT_EQ(adapter->modules.size(), 3u);
  EXPECT_EQ(adapter->rank, 3);
  const Adapter::Module &down = adapter->modules[0], &up = adapter->modules[1], &gate = adapter->modules[2];
  EXPECT_EQ(down.name, "m.experts.down_proj");
  EXPECT_EQ(up.name, "m.experts.gate_up_proj");
  EXPECT_EQ(gate.name, "m.gate");
  EXPECT_EQ(down.experts, 3);
  EXPECT_EQ(up.experts, 3);
  EXPECT_EQ(gate.experts, 1);
  EXPECT_EQ(down.rank, 3);
  EXPECT_EQ(up.rank, 2);
  EXPECT_EQ(up.outputs, 10);
  EXPECT_FLOAT_EQ(down.scale, 2.0f);
  EXPECT_FLOAT_EQ(gate.scale, 4.0f);
  config["target_parameters"] = {"gate.weight", "down_proj", "gate_up_proj"};  // as peft converts older adapters
  folder.write(config);
  EXPECT_EQ(read_adapter(folder.path())->modules.at(1).name, "m.experts.gate_up_proj");
  config["rank_pattern"] = {{"experts.down_proj", 2}};
  folder.write(config);
  EXPECT_THAT(refusal(folder), HasSubstr("'m.experts.down_proj' has matrices [9, 5]"));
  config["target_parameters"] = {"experts.down_proj"};
  folder.write(config);
  EXPECT_THAT(refusal(folder), HasSubstr("has 1 parameters of 'm.experts', of which the adapter changes 2"));
  config["target_parameters"] = {"experts.down_proj", "experts.w1"};
  folder.write(config);
  EXPECT_THAT(refusal(folder), HasSubstr("'w1' cannot be beside others of 'm.experts'"));
  config.erase("target_parameters");
  folder.write(config);
  EXPECT_THAT(refusal(folder), HasSubstr("has 0 parameters of 'm.experts'"));
}

// A pattern that makes backtracking matchers take exponential time.
TEST(Peft, MatchesHostilePatternsInLinearTime) {
  const Folder folder;
  const std::string module(200, 'a');
  folder.write_tensors({{"base_model.model." + module + ".lora_A.weight", {2, 4}},
                        {"base_model.model." + module + ".lora_B.weight", {3, 2}}});
  Json config = Folder::config();
  config["alpha_pattern"] = {{"(a*)*b", 8}, {"(a|a)*", 10}};
  folder.write(config);
  EXPECT_FLOAT_EQ(read_adapter(folder.path())->modules.at(0).scale, 5.0f);
}

// Rows for some tokens of an embedding, and of a head.
TEST(Peft, ReadsTokens) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  const Folder folder;
  const std::string embedding = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";
  const std::string head = "base_model.model.lm_head.token_adapter.trainable_tokens_delta";
  Json config = Folder::config();
  const auto with = [&](const std::vector<std::pair<std::string, Shape>>& tensors, const Json& tokens) {
    folder.write_tensors(tensors);
    config["trainable_token_indices"] = tokens;
    folder.write(config);
    return refusal(folder);
  };
  EXPECT_EQ(with({{embedding, {2, 3}}}, {5, 1}), "");
  const Adapter::Module module = read_adapter(folder.path())->modules.at(0);
  EXPECT_EQ(module.name, "model.embed_tokens");
  EXPECT_EQ(module.inputs, 3);
  EXPECT_THAT(module.tokens, ElementsAre(5, 1));
  EXPECT_THAT(module.saved, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_FALSE(module.plain());
  const Json both = {{"embed_tokens", {5, 1}}, {"lm_head", {2}}};
  EXPECT_EQ(with({{embedding, {2, 3}}, {head, {1, 3}}}, both), "");
  EXPECT_THAT(read_adapter(folder.path())->modules.at(0).tokens, ElementsAre(2));
  EXPECT_THAT(with({{embedding, {2, 3}}}, both), HasSubstr("has tokens of 'lm_head', but the adapter has no rows"));
  EXPECT_THAT(with({{embedding, {2, 3}}, {head, {2, 3}}}, {5, 1}), HasSubstr("does not have the tokens of"));
  EXPECT_THAT(with({{embedding, {2, 3}}}, {5, 1, 2}), HasSubstr("trainable_token_indices has 3 tokens"));
  EXPECT_THAT(with({{embedding, {2, 3}}}, {5, 5}), HasSubstr("has a token twice"));
  EXPECT_THAT(with({{embedding, {2, 3}}}, {5, -1}), HasSubstr("must have lists of tokens"));
  EXPECT_THAT(with({{embedding, {2, 3}}}, nullptr), HasSubstr("trainable_token_indices"));
  const std::string a = "base_model.model.model.embed_tokens.lora_embedding_A";
  EXPECT_THAT(with({{embedding, {2, 3}}, {a, {2, 3}}}, {5, 1}), HasSubstr("replaced and changed at once"));
}

TEST(Peft, ReadsInvocations) {
  const Folder folder;
  Json config = Folder::config();
  config["alora_invocation_tokens"] = {4, 5};
  folder.write(config);
  const auto adapter = read_adapter(folder.path());
  const auto from = [&](const std::vector<int32_t>& prompt) { return adapter_from(*adapter, prompt); };
  EXPECT_EQ(from({1, 4, 5, 2}), 1);
  EXPECT_EQ(from({4, 5, 4, 4, 5}), 3);
  EXPECT_EQ(from({5, 4}), -1);
  EXPECT_EQ(from({}), -1);
  EXPECT_EQ(adapter_from(*read_adapter(kPirate), std::vector<int32_t>{1}), 0);
}

// In peft, what these keys name changes the tokens before the invocation, too.
TEST(Peft, RefusesInvocationsBesideReplacedModulesAndTokens) {
  using ::testing::HasSubstr;
  const Folder folder;
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"modules_to_save", {"m.q_proj"}}, {"trainable_token_indices", {1, 2}}}) {
    Json config = Folder::config();
    config["alora_invocation_tokens"] = {4, 5};
    config[key] = value;
    folder.write(config);
    EXPECT_THAT(refusal(folder), HasSubstr(std::string("cannot be beside '") + key)) << key;
  }
}

TEST(Peft, RefusesByKey) {
  using ::testing::HasSubstr;
  const std::pair<const char*, Json> keys[] = {{"peft_type", "IA3"},
                                               {"bias", "all"},
                                               {"use_dora", true},
                                               {"lora_bias", true},
                                               {"modules_to_save", {"lm_head"}},
                                               {"trainable_token_indices", {1, 2}},
                                               {"target_parameters", "experts.gate_up_proj"},
                                               {"layer_replication", {{0, 4}}},
                                               {"alora_invocation_tokens", {-1}},
                                               {"use_qalora", true},
                                               {"megatron_config", {{"a", 1}}},
                                               {"init_lora_weights", "pissa"},
                                               {"a_new_key", 1},
                                               {"alpha_pattern", {{"(", 1}}}};
  for (const auto& [key, value] : keys) EXPECT_THAT(refusal_of(key, value), HasSubstr(key)) << key;
  EXPECT_EQ(refusal_of("lora_dropout", 0.1), "");
  EXPECT_EQ(refusal_of("modules_to_save", nullptr), "");
  EXPECT_EQ(refusal_of("init_lora_weights", "gaussian"), "");
}

TEST(Peft, RefusesTensorsByName) {
  using ::testing::HasSubstr;
  const Folder folder;
  const std::string a = "base_model.model.m.q_proj.lora_A.weight", b = "base_model.model.m.q_proj.lora_B.weight";
  folder.write_tensors({{a, {2, 4}}});
  EXPECT_THAT(refusal(folder), HasSubstr("'m.q_proj' has no lora_B"));
  folder.write_tensors({{a, {2, 4}}, {b, {3, 1}}});
  EXPECT_THAT(refusal(folder), HasSubstr("its rank is 2"));
  folder.write_tensors({{a, {2, 4}}, {b, {3, 2}}, {"base_model.model.m.q_proj.lora_magnitude_vector.weight", {3}}});
  EXPECT_THAT(refusal(folder), HasSubstr("'m.q_proj' does not fit use_dora"));
  folder.write_tensors({{a, {2, 4}}, {b, {3, 2}}, {"base_model.model.lm_head.weight", {3, 4}}});
  EXPECT_THAT(refusal(folder), HasSubstr("lm_head.weight"));
  folder.write_tensors({{a, {2, 4}}, {b, {3, 2}}, {"base_model.model.m.q_proj.lora_C.weight", {3, 4}}});
  EXPECT_THAT(refusal(folder), HasSubstr("lora_C.weight"));
  folder.write_tensors({{a, {2, 4}}, {b, {3, 2}}, {"base_model.model.m.q_proj.weight", {3, 4}}});
  Json config = Folder::config();
  config["modules_to_save"] = {"q_proj"};
  folder.write(config);
  EXPECT_THAT(refusal(folder), HasSubstr("'m.q_proj' is replaced and changed at once"));
  folder.write_tensors({{"base_model.model." + std::string(100'000, 'm') + ".lora_A.weight", {2, 4}}});
  EXPECT_THAT(refusal(folder), HasSubstr("has too long a name"));
  fs::remove(folder.path() + "/adapter_model.safetensors");
  EXPECT_THAT(refusal(folder), HasSubstr("no such file"));
}

}  // namespace
}  // namespace sluice::peft_test
