// Falcon-H1: every layer runs Mamba 2 beside attention; multipliers scale every projection (arXiv:2507.22448).
#include <fmt/core.h>

#include "models/mamba.h"
#include "nn/token_mixer_sum.h"

namespace sluice::models::falcon_h1 {
namespace {

float read_multiplier(const Config& config, const char* key) {
  const float value = config.get(key, 1.0f);
  if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
  return value;
}

std::vector<float> read_multipliers(const Config& config, const char* key, size_t count) {
  const std::vector<double> values = config.get(key, std::vector<double>(count, 1.0));
  if (values.size() != count) config.refuse(key, fmt::format("has {} values, expected {}", values.size(), count));
  for (const double value : values) {
    if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
  }
  return {values.begin(), values.end()};
}

Mamba2Spec read_state_space(const Config& config, const DecoderSpec& s) {
  Mamba2Keys keys = kBambaKeys;
  keys.inner = "mamba_d_ssm";
  Mamba2Spec m = read_mamba2(config, s, keys);
  m.out_bias = config.get("projectors_bias", false);
  m.norm = config.get("mamba_rms_norm", false);
  m.norm_before_gate = m.norm && config.get("mamba_norm_before_gate", true);
  config.ignore("mamba_norm_before_gate");  // there is no norm
  m.norm_groups = m.groups;
  const float in = read_multiplier(config, "ssm_in_multiplier");
  if (in != 1.0f && m.in_bias) config.refuse("ssm_in_multiplier", "is not supported with mamba_proj_bias");
  const std::vector<float> scales = read_multipliers(config, "ssm_multipliers", m.scales.size());
  for (size_t i = 0; i < scales.size(); ++i) m.scales[i] = in * scales[i];
  return m;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "falcon_h1", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  s.embedding_scale = read_multiplier(config, "embedding_multiplier");
  s.logit_scale = read_multiplier(config, "lm_head_multiplier");
  const std::vector<float> mlp = read_multipliers(config, "mlp_multipliers", 2);
  s.mlp.gate_scale = mlp[0];
  const Mamba2Spec mamba = read_state_space(config, s);
  const float mamba_scale = read_multiplier(config, "ssm_out_multiplier");
  // The multiplier of attention's input applies to queries, keys and values.
  const float in = read_multiplier(config, "attention_in_multiplier");
  if (in != 1.0f && s.attention.qkv_bias) {
    config.refuse("attention_in_multiplier", "is not supported with attention_bias");
  }
  AttentionSpec attention = s.attention;
  attention.scale *= read_multiplier(config, "key_multiplier") * in * in;
  const float attention_scale = in * read_multiplier(config, "attention_out_multiplier");
  for (LayerSpec& layer : s.layers) {
    layer.mlp_blend.added = mlp[1];
    layer.mixer = [=](const Weights& w, int hidden) {
      std::vector<TokenMixerSum::Part> parts;
      parts.push_back({std::make_unique<Mamba2>(w / "mamba", mamba, hidden), mamba_scale});
      parts.push_back({std::make_unique<Attention>(w / "self_attn", attention, hidden), attention_scale});
      return std::make_unique<TokenMixerSum>(std::move(parts), hidden);
    };
  }
  s.names.norm = "final_layernorm";
  s.names.mlp = "feed_forward";
  s.names.mlp_norm = "pre_ff_layernorm";
  for (const char* key : {"num_logits_to_keep", "layers_block_type", "layer_types"}) config.ignore(key);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "falcon_h1",
    .architectures = {"FalconH1ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"mamba_use_mlp", "true"},
            {"mlp_expansion_factor"},  // mlp_expansion_factor: intermediate_size is read instead
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::falcon_h1
