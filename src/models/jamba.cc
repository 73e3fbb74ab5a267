// Jamba: Mamba with some attention layers, and experts in some layers (arXiv:2403.19887).
#include "models/mamba.h"

namespace sluice::models::jamba {
namespace {

// Tells whether layer i is one of every `period` layers, counted from `offset`.
struct Every {
  int period, offset;
  Every(const Config& config, const char* period_key, const char* offset_key, int default_period, int default_offset)
      : period(read_positive(config, period_key, config.get(period_key, default_period))),
        offset(config.get(offset_key, default_offset)) {
    if (offset < 0 || offset >= period) config.refuse(offset_key, "must be in [0, period)");
  }
  bool operator()(int i) const { return i % period == offset; }
};

MambaSpec read_layer(const Config& config, const DecoderSpec& s) {
  MambaSpec m;
  m.inner = static_cast<int>(config.get("mamba_expand", 2.0) * s.hidden);
  m.state = read_positive(config, "mamba_d_state", config.get("mamba_d_state", 16));
  m.dt_rank = read_dt_rank(config, "mamba_dt_rank", s.hidden);
  m.conv_width = read_conv_width(config, "mamba_d_conv", 4);
  m.conv_bias = config.get("mamba_conv_bias", true);
  m.bias = config.get("mamba_proj_bias", false);
  m.activation = s.mlp.activation;
  m.norms = true;
  m.norm = s.norm;
  return m;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "jamba", {.default_max_positions = 262144});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-6));
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  const int experts = config.get("num_experts", 16);
  if (experts > 1) {
    read_experts(config, s, "num_experts", "num_experts_per_tok", s.mlp.inner);
    s.moe.router = "router";
  }
  config.ignore("num_experts_per_tok");  // meaningless with a single expert
  const Every attention(config, "attn_layer_period", "attn_layer_offset", 8, 4);
  const Every sparse(config, "expert_layer_period", "expert_layer_offset", 2, 1);
  const MambaSpec mamba = read_layer(config, s);
  for (int i = 0; i < s.depth(); ++i) {
    s.layers[i].moe = experts > 1 && sparse(i);
    if (!attention(i)) s.layers[i].mixer = mixer_of<Mamba>("mamba", mamba);
  }
  s.names.norm = "final_layernorm";
  s.names.mlp = "feed_forward";
  s.names.mlp_norm = "pre_ff_layernorm";
  for (const char* key :
       {"use_mamba_kernels", "use_associative_scan", "use_mambapy", "num_logits_to_keep",
        "calc_logits_for_entire_prompt", "layers_block_type", "mamba_inner_layernorms", "sliding_window"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "jamba", .architectures = {"JambaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::jamba
