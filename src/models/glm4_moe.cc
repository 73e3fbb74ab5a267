// GLM-4.5 and 4.6: DeepSeek-V3's experts; rotates half of each head (arXiv:2508.06471).
#include "nn/decoder_config.h"
#include "nn/next_token_layers.h"

namespace sluice::models::glm4_moe {
namespace {

DecoderSpec read(const Config& config) {
  DecoderSpec s = llama_like(config, "glm4_moe", {.norm_eps = 1e-5, .rope = {.partial = 0.5}});
  read_attention_bias(config, s, false);
  if (config.get("use_qk_norm", false)) s.attention.qk_norm = QkNorm::kHead;
  read_deepseek_experts(config, s, true, {.default_shared = 1, .default_dense = 1});
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

const ModelFamily family{
    .name = "glm4_moe", .architectures = {"Glm4MoeForCausalLM"}, .build = build, .build_predictor = build_predictor};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::glm4_moe
