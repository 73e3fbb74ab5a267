// Tests adapters that replace whole modules (modules_to_save): the logits are those of a model with the new weights.
#include <gtest/gtest.h>

#include "engine/rank_adapters.h"
#include "golden/goldens.h"
#include "golden/stored_model.h"
#include "lora/adapter.h"

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
