// Hunyuan 3 (Hy3): norms of queries and keys; experts chosen by sigmoid scores with corrections; one shared expert.
#include "nn/decoder_config.h"

namespace sluice::models::hy_v3 {
namespace {

// Refuses settings that no released model uses.
void read_switches(const Config& config, const MoeSpec& m) {
  for (const char* key : {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"}) {
    if (!config.get(key, true)) config.refuse(key, "false is not supported");
  }
  if (config.get("expert_hidden_dim", m.inner) != m.inner) {
    config.refuse("expert_hidden_dim", "contradicts moe_intermediate_size");
  }
  // These keys set the precision of sums in the reference; Sluice uses fp32.
  for (const char* key : {"enable_moe_fp32_combine", "enable_attention_fp32_softmax", "enable_lm_head_fp32"}) {
    config.ignore(key);
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "hy_v3", {.head_dim = 128, .norm_eps = 1e-5, .rope = {.theta = 11158840.0}});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  s.mlp.bias = config.get("mlp_bias", false);
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1536));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  MoeSpec& m = s.moe;
  m.score = ops::Routing::Score::kSigmoid;
  m.router = "router.gate";
  m.correction = "expert_bias";
  m.correction_shape = {m.experts};
  m.normalize = true;
  m.smallest_sum = 1e-20f;
  m.scale = config.get("router_scaling_factor", 2.826f);
  m.shared = "shared_mlp";
  m.shared_bias = s.mlp.bias;
  m.shared_inner = inner * config.get("num_shared_experts", 1);
  const int dense = config.get("first_k_dense_replace", 1);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense;
  read_mlp_layer_types(config, s);
  read_switches(config, m);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "hy_v3",
    .architectures = {"HYV3ForCausalLM"},
    .build = build,
    .ignored = {{"use_grouped_mm"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::hy_v3
