// GLM-4.7 Flash: DeepSeek-V3's latent attention with GLM-4.5's experts.
#include "models/deepseek.h"
#include "nn/next_token_layers.h"

namespace sluice::models::glm4_moe_lite {
namespace {

DecoderSpec read(const Config& config) {
  DecoderSpec s = latent_llama_like(config, "glm4_moe_lite", {.norm_eps = 1e-5});
  read_deepseek_experts(config, s, true, {.default_shared = 1, .default_scale = 1.8f});
  const auto kinds = config.get("mlp_layer_types", std::vector<std::string>{});
  if (kinds.empty()) {
    s.layers.front().moe = false;
  } else if (kinds.size() != s.layers.size()) {
    config.refuse("mlp_layer_types", "must have one entry per layer");
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != "dense" && kinds[i] != "sparse")
      config.refuse("mlp_layer_types", "must list only dense and sparse");
    s.layers[i].moe = kinds[i] == "sparse";
  }
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read(config);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build_predictor(const Config& config, LoadContext& context, const Model& model, int max_len) {
  return next_token_layer(config, read, context, model, max_len);
}

const ModelFamily family{.name = "glm4_moe_lite",
                         .architectures = {"Glm4MoeLiteForCausalLM"},
                         .build = build,
                         .build_predictor = build_predictor};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::glm4_moe_lite
