// A.X K1 (SK Telecom): DeepSeek-V3 with a norm of the experts' result.
#include <fmt/core.h>

#include "models/deepseek.h"

namespace sluice::models::axk1 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = latent_llama_like(config, "axk1");
  for (const auto& [key, wanted] : {std::pair{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}}) {
    if (config.get(key, std::string(wanted)) != wanted) config.refuse(key, fmt::format("must be {}", wanted));
  }
  read_deepseek_experts(
      config, s, true,
      {.default_shared = 1, .default_dense = 1, .default_scale = 2.5f, .default_groups = 8, .default_top_groups = 4});
  if (!config.has("mlp_layer_types") && config.has("first_k_dense_replace")) read_deepseek_layers(config, s);
  read_mlp_layer_types(config, s);
  bool corrected = false;
  for (int i = 0; i < s.depth(); ++i) {
    const std::string layer = fmt::format("{}.{}.{}.", s.names.body, s.names.layers, i);
    if (!s.layers[i].moe) {
      ignore_tensors(context, layer + "post_mlp_layernorm.");  // stored, but not computed
      continue;
    }
    s.layers[i].names = s.names;
    s.layers[i].names->mlp_post_norm = "post_mlp_layernorm";
    corrected |= context.checkpoint.find(layer + "mlp." + s.moe.correction) != nullptr;
  }
  if (!corrected) s.moe.correction = "";  // the published checkpoint has none
  for (const char* key : {"aux_loss_alpha", "ep_size", "moe_layer_freq", "seq_aux"}) config.ignore(key);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "axk1", .architectures = {"AXK1ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::axk1
