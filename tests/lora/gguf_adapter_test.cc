// Reading adapters in GGUF, and the names that their modules get; what is refused by key or tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "base/json.h"
#include "formats/gguf/architecture.h"
#include "formats/gguf/outline.h"
#include "lora/adapter.h"
#include "sluice/error.h"
#include "support/gguf_writer.h"
#include "support/temp_folder.h"

namespace sluice::gguf_adapter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The bytes of an adapter. The values of a tensor are 0, 1, 2, ...
struct File {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first
  };
  std::string type = "adapter", kind = "lora", architecture = "llama";
  float alpha = 6;
  std::string key = "general.name";  // one that may be there
  std::vector<uint32_t> invocation{};
  std::vector<Tensor> tensors{{"blk.0.attn_q.weight.lora_a", {8, 2}}, {"blk.0.attn_q.weight.lora_b", {2, 8}}};

  std::string bytes() const {
    sluice::testing::GgufWriter out;
    out.header(tensors.size(), invocation.empty() ? 5 : 6);
    out.key_text("general.type", type).key_text("adapter.type", kind).key_text("general.architecture", architecture);
    out.key_f32("adapter.lora.alpha", alpha).key_text(key, "x");
    if (!invocation.empty()) {
      out.key("adapter.alora.invocation_tokens", 9).number(uint32_t{4}).number(uint64_t{invocation.size()});
      for (const uint32_t token : invocation) out.number(token);
    }
    uint64_t offset = 0;
    const auto count = [](const Tensor& tensor) {
      uint64_t elements = 1;
      for (const uint64_t dim : tensor.dims) elements *= dim;
      return elements;
    };
    for (const Tensor& tensor : tensors) {
      out.tensor(tensor.name, tensor.dims, 0, offset);
      offset += (count(tensor) * 4 + 31) / 32 * 32;
    }
    for (const Tensor& tensor : tensors) {
      out.data(0);
      for (uint64_t i = 0; i < count(tensor); ++i) out.number(static_cast<float>(i));
    }
    return out.data(0).bytes;
  }
};

std::shared_ptr<Adapter> read(const File& file) {
  const sluice::testing::TempFolder folder;
  return read_adapter(folder.write("adapter.gguf", file.bytes()));
}

class Model : public Checkpoint {
 public:
  explicit Model(const Json& changes = Json::object()) {
    Json values = {{"architectures", {"LlamaForCausalLM"}},
                   {"hidden_size", 8},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 2},
                   {"num_key_value_heads", 1},
                   {"intermediate_size", 16},
                   {"vocab_size", 10}};
    values.update(changes);
    config = Config(values, "config.json");
  }
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string refusal_of(const File& file) {
  return refusal([&] { read(file); });
}

TEST(GgufAdapter, ScalesAsLlamaCppDoes) {
  File file;
  const auto adapter = read(file);
  EXPECT_EQ(adapter->rank, 2);
  EXPECT_EQ(adapter->gguf, "llama");
  EXPECT_FLOAT_EQ(adapter->modules.at(0).scale, 3.0f);
  file.alpha = 0;
  EXPECT_FLOAT_EQ(read(file)->modules.at(0).scale, 1.0f);
  EXPECT_NE(adapter->digest, read(file)->digest);
}

TEST(GgufAdapter, HasAnInvocation) {
  File file;
  file.invocation = {7, 9};
  EXPECT_THAT(read(file)->invocation, ElementsAre(7, 9));
  EXPECT_EQ(adapter_from(*read(file), std::vector<int32_t>{7, 9, 7, 9, 1}), 2);
  file.invocation = {1u << 31};
  EXPECT_THAT(refusal_of(file), HasSubstr("\"adapter.alora.invocation_tokens\": 2147483648 is not a token"));
}

TEST(GgufAdapter, TurnsTheTable) {
  File file;
  file.tensors = {{"token_embd.weight.lora_a", {2, 3}}, {"token_embd.weight.lora_b", {2, 4}}};
  const Adapter::Module module = read(file)->modules.at(0);
  EXPECT_TRUE(module.embedding);
  EXPECT_EQ(module.inputs, 3);
  EXPECT_EQ(module.outputs, 4);
  EXPECT_THAT(module.a, ElementsAre(0, 2, 4, 1, 3, 5));
}

// The converter pairs the rows of Llama's queries and keys, and leaves those of others as they are.
TEST(GgufAdapter, HasTheRowsOfTheModel) {
  File file;
  file.tensors = {{"blk.1.attn_q.weight.lora_a", {8, 1}}, {"blk.1.attn_q.weight.lora_b", {1, 8}}};
  auto adapter = read(file);
  name_modules(*adapter, Model());
  ASSERT_EQ(adapter->modules.size(), 1u);
  EXPECT_EQ(adapter->modules[0].name, "model.layers.1.self_attn.q_proj");
  EXPECT_THAT(adapter->modules[0].b, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  name_modules(*adapter, Model());  // has its names
  EXPECT_EQ(adapter->modules[0].name, "model.layers.1.self_attn.q_proj");
  file.architecture = "qwen2";
  adapter = read(file);
  name_modules(*adapter, Model(Json{{"architectures", {"Qwen2ForCausalLM"}}}));
  EXPECT_THAT(adapter->modules[0].b, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  file.architecture = "llama";
  adapter = read(file);
  name_modules(*adapter, Model(Json{{"architectures", {"MistralForCausalLM"}}}));
  EXPECT_THAT(adapter->modules[0].b, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

TEST(GgufAdapter, HasModulesOfExperts) {
  File file;
  file.architecture = "qwen3moe";
  file.tensors = {{"blk.0.ffn_down_exps.weight.lora_a", {3, 1, 2}}, {"blk.0.ffn_down_exps.weight.lora_b", {1, 2, 2}}};
  auto adapter = read(file);
  EXPECT_EQ(adapter->modules.at(0).experts, 2);
  EXPECT_THAT(adapter->modules[0].b, ElementsAre(0, 2, 1, 3));
  name_modules(*adapter, Model(Json{{"architectures", {"Qwen3MoeForCausalLM"}},
                                    {"num_experts", 2},
                                    {"num_experts_per_tok", 1},
                                    {"moe_intermediate_size", 3}}));
  ASSERT_EQ(adapter->modules.size(), 2u);
  EXPECT_EQ(adapter->modules[1].name, "model.layers.0.mlp.experts.1.down_proj");
  EXPECT_EQ(adapter->modules[1].experts, 1);
  EXPECT_THAT(adapter->modules[1].a, ElementsAre(3, 4, 5));
  EXPECT_THAT(adapter->modules[1].b, ElementsAre(2, 3));
}

// Sets every byte before the tensors' values to some extremes. The result is an error or an adapter.
TEST(GgufAdapter, NoByteBreaksIt) {
  File file;
  file.invocation = {7, 9};
  const std::string good = file.bytes();
  const sluice::testing::TempFolder folder;
  const Model model;
  int read_ones = 0;
  for (size_t at = 0; at + 2 * 64 < good.size(); ++at) {
    for (const int value : {0, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(value);
      try {
        const auto adapter = read_adapter(folder.write("adapter.gguf", bytes));
        name_modules(*adapter, model);
        ++read_ones;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(read_ones, 0);
}

TEST(GgufAdapter, IsRefusedByKey) {
  File file;
  file.type = "model";
  EXPECT_THAT(refusal_of(file), HasSubstr("\"general.type\": \"model\" is not supported"));
  file = {};
  file.kind = "ia3";
  EXPECT_THAT(refusal_of(file), HasSubstr("\"adapter.type\": \"ia3\""));
  file = {};
  file.alpha = NAN;
  EXPECT_THAT(refusal_of(file), HasSubstr("\"adapter.lora.alpha\": expected a finite number"));
  file = {};
  file.key = "adapter.lora.new_key";
  EXPECT_THAT(refusal_of(file), HasSubstr("\"adapter.lora.new_key\": is not supported"));
}

TEST(GgufAdapter, IsRefusedByTensor) {
  const auto with = [](std::vector<File::Tensor> tensors) {
    File file;
    file.tensors = std::move(tensors);
    return refusal_of(file);
  };
  const std::string a = "blk.0.attn_q.weight.lora_a", b = "blk.0.attn_q.weight.lora_b";
  EXPECT_THAT(with({{a, {8, 2}}}), HasSubstr("\"blk.0.attn_q.weight\" has no lora_b"));
  EXPECT_THAT(with({{a, {8, 2}}, {b, {3, 8}}}), HasSubstr("matrices [2, 8] and [8, 3], whose rank must be equal"));
  EXPECT_THAT(with({{a, {1, 2000}}, {b, {2000, 1}}}), HasSubstr("at most 1024"));
  EXPECT_THAT(with({{a, {8, 2, 2}}, {b, {2, 8, 2}}}), HasSubstr("(expected 2 dimensions)"));
  EXPECT_THAT(with({{"blk.0.ffn_up_exps.weight.lora_a", {8, 2}}, {"blk.0.ffn_up_exps.weight.lora_b", {2, 8}}}),
              HasSubstr("(expected 3 dimensions)"));
  EXPECT_THAT(with({{"blk.0.ffn_up_exps.weight.lora_a", {8, 2, 3}}, {"blk.0.ffn_up_exps.weight.lora_b", {2, 8, 4}}}),
              HasSubstr("but lora_a has 3 experts"));
  EXPECT_THAT(with({{"blk.0.attn_norm.weight", {8}}}),
              HasSubstr("\"blk.0.attn_norm.weight\" is not one that adapters"));
  EXPECT_THAT(with({}), HasSubstr("has no tensors"));
}

// Whatever an architecture asks of a file that is not there, the result is an error or names.
TEST(GgufAdapter, OfEveryArchitectureIsReadOrRefused) {
  std::set<std::string_view> named;
  for (const GgufArchitecture* one : Registry<GgufArchitecture>::all()) {
    File file;
    file.architecture = one->name;
    for (const int experts : {0, 4}) {
      Json changes = {{"num_experts", experts}, {"num_experts_per_tok", 2}};
      const auto adapter = read(file);
      GgufOutline outline(Model(changes).config, one->name);
      GgufConfig config(outline.file(), one->name);
      try {
        one->configure(config);
        changes["architectures"] = config.hf.at("architectures");
        name_modules(*adapter, Model(changes));
        named.insert(one->name);
      } catch (const Error&) {
      }
    }
  }
  for (const char* usual : {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "mistral3", "phi3"}) {
    EXPECT_TRUE(named.contains(usual)) << usual;
  }
}

TEST(GgufAdapter, IsRefusedForAnotherModel) {
  const auto with = [](const File& file, const Json& changes) {
    const auto adapter = read(file);
    return refusal([&] { name_modules(*adapter, Model(changes)); });
  };
  File file;
  EXPECT_EQ(with(file, Json::object()), "");
  EXPECT_THAT(with(file, {{"architectures", {"Qwen2ForCausalLM"}}}),
              HasSubstr("the adapter is for \"llama\", but the model is Qwen2ForCausalLM"));
  EXPECT_THAT(with(file, {{"num_attention_heads", 4}, {"head_dim", 4}}), HasSubstr("expected 4 heads of 4 rows"));
  file.architecture = "no-such";
  EXPECT_THAT(with(file, Json::object()), HasSubstr("the adapter is for \"no-such\""));
  file = {};
  file.tensors[0].name = "blk.0.attn_x.weight.lora_a", file.tensors[1].name = "blk.0.attn_x.weight.lora_b";
  EXPECT_THAT(with(file, Json::object()), HasSubstr("\"blk.0.attn_x.weight\" is not one that this architecture has"));
}

}  // namespace
}  // namespace sluice::gguf_adapter_test
