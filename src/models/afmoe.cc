// AFMoE (Trinity): gated attention, rotated only in sliding layers; norms before and after both sublayers; experts
// chosen by sigmoid scores with corrections.
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::afmoe {
namespace {

void read_routing(const Config& config, DecoderSpec& s) {
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1408));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  MoeSpec& m = s.moe;
  m.router = "router.gate";
  m.score = ops::Routing::Score::kSigmoid;
  m.correction = "expert_bias";
  m.correction_shape = {m.experts};
  m.normalize = true;
  m.smallest_sum = 1e-20f;
  m.scale = config.get("route_scale", 1.0f);
  m.shared_inner = inner * config.get("num_shared_experts", 2);
  const int dense = config.get("num_dense_layers", 1);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense;
  // These keys occur in configurations that were published with their own code.
  if (config.get("score_func", std::string("sigmoid")) != "sigmoid") config.refuse("score_func", "must be sigmoid");
  if (!config.get("route_norm", true)) config.refuse("route_norm", "false is not supported");
  for (const char* key : {"n_group", "topk_group", "num_expert_groups", "num_limited_groups"}) {
    if (config.get(key, 1) != 1) config.refuse(key, "must be 1");
  }
  for (const char* key : {"load_balance_coeff", "use_grouped_mm"}) config.ignore(key);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "afmoe", {.head_dim = 128, .norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.attention.output_gate = true;
  s.attention.gate_bias = false;
  s.attention.gate = "gate_proj";
  s.attention.qk_norm = QkNorm::kHead;
  const int every = read_positive(config, "global_attn_every_n_layers", config.get("global_attn_every_n_layers", 4));
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 1024));
  const auto sliding = read_windows(config, s, window, [=](int layer) { return (layer + 1) % every != 0; });
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = sliding[i] ? 0 : -1;
  if (config.get("mup_enabled", false)) s.embedding_scale = std::sqrt(static_cast<float>(s.hidden));
  s.names.attention_post_norm = "post_attention_layernorm";
  s.names.mlp_norm = "pre_mlp_layernorm";
  s.names.mlp_post_norm = "post_mlp_layernorm";
  read_routing(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "afmoe", .architectures = {"AfmoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::afmoe
