// openPangu Ultra MoE (Huawei, arXiv:2505.04519): DeepSeek-V3 with norms before and after both sublayers.
#include "models/deepseek.h"

namespace sluice::models::pangu_ultra_moe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    if (!config.has(key)) config.refuse(key, "must be given");
  }
  refuse_scaled_rope(config);
  DecoderSpec s = latent_llama_like(config, "pangu_ultra_moe", {.q_rank = 0});
  s.mlp.bias = config.get("mlp_bias", false);
  read_deepseek_experts(config, s, true);
  s.moe.correction = config.get("router_enable_expert_bias", false) ? "e_score_correction_bias" : "";
  if (config.get("sandwich_norm", false)) {
    s.names.attention_post_norm = "post_attention_layernorm";
    s.names.mlp_norm = "pre_mlp_layernorm";
    s.names.mlp_post_norm = "post_mlp_layernorm";
  }
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "pangu_ultra_moe",
    .architectures = {"PanguUltraMoEForCausalLM"},
    .build = build,
    .ignored =
        {
            {"num_mtp_layers"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::pangu_ultra_moe
