// Solar Open: Llama's attention, with DeepSeek-V3's experts in all layers (arXiv:2601.07022).
#include "nn/decoder_config.h"

namespace sluice::models::solar_open {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "solar_open",
                             {.head_dim = 128, .norm_eps = 1e-5, .only_experts = true, .rope = {.theta = 1000000.0}});
  read_attention_bias(config, s, false);
  if (config.get("use_qk_norm", false)) config.refuse("use_qk_norm", "true is not supported");
  read_deepseek_experts(config, s, true, {.default_shared = 1});
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "solar_open", .architectures = {"SolarOpenForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::solar_open
