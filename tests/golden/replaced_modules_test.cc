// Tests adapters that replace whole modules (modules_to_save): the logits are those of a model with the new weights.
#include <gtest/gtest.h>

#include "engine/rank_adapters.h"
#include "golden/goldens.h"
#include "golden/stored_model.h"
#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice::replaced_modules_test {
namespace {

std::vector<int32_t> text() {
  std::vector<int32_t> ids(20);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(3 + i * 7 % 50);
  return ids;
}

std::vector<float> adapted_logits(const testing::TempFolder& model_folder, const std::string& adapter_folder) {
  EngineOptions options;
  options.model = model_folder.path();
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.enable_lora = true;
  ThreadPool pool(2, /*pin=*/false);
  LoadedModel model = load_model(options, pool);
  Runner runner(model);
  const std::shared_ptr<Adapter> adapter = read_adapter(adapter_folder);
  name_modules(*adapter, *model.plan.checkpoint);
  check_adapter(*adapter, *model.adapters, *model.plan.checkpoint);
  prepare_apart(*adapter, model);
  runner.place_adapter(*adapter, 0);
  std::vector<float> out;
  for_each_logits(
      runner, model.plan, model.plan.block_size, text(), 7,
      [&](int, std::span<const float> row) { out.insert(out.end(), row.begin(), row.end()); }, 0, 0);
  return out;
}

struct Replacement {
  const char* golden;
  std::string module;
  std::string tensor{};  // the model's name of the module, if it is another one
  bool untie = false;    // the model with the new weights has a head of its own
};

class ReplacedModules : public ::testing::TestWithParam<Replacement> {};

TEST_P(ReplacedModules, GiveTheLogitsOfTheirWeights) {
  const auto& [golden, module, tensor, untie] = GetParam();
  StoredModel model = read_stored_model(golden);
  const testing::TempFolder before, after, adapter;
  write(model, before);

  std::vector<NamedTensor> saved;
  if (untie) {
    model.set({{"tie_word_embeddings", false}});
    model.tensors["lm_head.weight"] = model.tensors.at("model.embed_tokens.weight");
  }
  for (const char* kind : {".weight", ".bias"}) {
    const auto found = model.tensors.find((tensor.empty() ? module : tensor) + kind);
    if (found == model.tensors.end()) continue;
    StoredMatrix& matrix = found->second;
    std::ranges::rotate(matrix.values, matrix.values.begin() + 5);
    saved.push_back({"base_model.model." + module + kind, Tensor(matrix.values.data(), &kFloat32, matrix.shape)});
  }
  write(model, after);
  write_safetensors(adapter / "adapter_model.safetensors", saved);
  adapter.write("adapter_config.json", dump_json({{"peft_type", "LORA"}, {"r", 2}, {"modules_to_save", {module}}}));

  const std::vector<float> want = logits_of(after, text()).values, got = adapted_logits(before, adapter.path());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(relative_error(got.data(), want.data(), static_cast<int64_t>(want.size())), 1e-5);
}

// A Llama 3.2 Vision whose second layer attends to images, so that the next one is the second of its text decoder. The
// adapter also has a module of the part for images, which texts do not reach.
struct VisionModel {
  const testing::TempFolder folder, decoder, adapter;
  Json modules = Json::array();

  void write_models() {
    StoredModel model = read_stored_model("llama");
    const int depth = model.config.at("num_hidden_layers");
    write(model, decoder);
    for (int i = depth - 1; i > 0; --i) {
      model.rename(fmt::format("model.layers.{}.", i), fmt::format("model.layers.{}.", i + 1));
    }
    model.rename("model.", "language_model.model.");
    model.rename("lm_head.", "language_model.lm_head.");
    model.tensors["language_model.model.layers.1.cross_attn.q_proj.weight"] = {.shape = {1, 2}, .values = {1, 2}};
    model.tensors["vision_model.transformer.layers.0.mlp.fc1.weight"] = {.shape = {1, 2}, .values = {1, 2}};
    model.set({{"model_type", "mllama_text_model"}, {"num_hidden_layers", depth + 1}, {"cross_attention_layers", {1}}});
    model.config = {{"architectures", {"MllamaForConditionalGeneration"}}, {"text_config", model.config}};
    write(model, folder);
  }

  void write_adapter(const std::vector<std::pair<std::string, StoredMatrix>>& saved) {
    std::vector<NamedTensor> tensors;
    for (const auto& [module, matrix] : saved) {
      tensors.push_back({"base_model.model." + module + ".weight",
                         Tensor(const_cast<float*>(matrix.values.data()), &kFloat32, matrix.shape)});
      modules.push_back(module);
    }
    write_safetensors(adapter / "adapter_model.safetensors", tensors);
    adapter.write("adapter_config.json", dump_json({{"peft_type", "LORA"}, {"r", 2}, {"modules_to_save", modules}}));
  }
};

TEST(AdaptersOfMultimodalModels, ChangeTheirTextDecoders) {
  VisionModel model;
  model.write_models();
  StoredModel decoder = read_stored_model("llama");
  StoredMatrix& matrix = decoder.tensors.at("model.layers.1.mlp.down_proj.weight");
  std::ranges::rotate(matrix.values, matrix.values.begin() + 5);
  model.write_adapter({{"model.language_model.layers.2.mlp.down_proj", matrix},
                       {"model.vision_model.transformer.layers.0.mlp.fc1", {.shape = {1, 2}, .values = {1, 2}}}});
  write(decoder, model.decoder);

  const std::vector<float> want = logits_of(model.decoder, text()).values;
  const std::vector<float> got = adapted_logits(model.folder, model.adapter.path());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(relative_error(got.data(), want.data(), static_cast<int64_t>(want.size())), 1e-5);
}

TEST(AdaptersOfMultimodalModels, AreRefusedIfNothingIsLeft) {
  VisionModel model;
  model.write_models();
  model.write_adapter({{"model.language_model.layers.1.cross_attn.q_proj", {.shape = {1, 2}, .values = {1, 2}}},
                       {"model.vision_model.transformer.layers.0.mlp.fc1", {.shape = {1, 2}, .values = {1, 2}}}});
  try {
    adapted_logits(model.folder, model.adapter.path());
    ADD_FAILURE() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kUnsupportedModel);
    EXPECT_NE(std::string(e.what()).find("changes only parts of the model that are not loaded"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ReplacedModules,
    ::testing::Values(Replacement{"gpt2", "transformer.h.0.attn.c_proj"},  // stored as [inputs, outputs], both equal
                      Replacement{"gpt2", "transformer.h.1.attn.c_attn"},  // stored as [inputs, outputs]
                      Replacement{"llama", "model.layers.1.mlp.down_proj"},
                      Replacement{"gpt_neox", "lm_head", "embed_out"},
                      Replacement{"nemotron_h-bias", "model.layers.0.mixer.shared_experts.up_proj",
                                  "backbone.layers.0.mixer.shared_experts.up_proj"},
                      Replacement{"qwen2", "model.embed_tokens", "", true},  // tied: only the embedding changes
                      Replacement{"qwen2", "lm_head", "", true}),            // tied: only the head changes
    [](const auto& info) { return test_name(info.param.golden, info.param.module); });

}  // namespace
}  // namespace sluice::replaced_modules_test
