// Apertus: Llama's graph with query and key norms and a plain xIELU MLP (arXiv:2509.14233).
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "apertus");
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-5));
  s.tied_head = config.get("tie_word_embeddings", false);
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = 12000000.0})};
  if (!config.has("rope_parameters") && !config.has("rope_scaling")) {
    s.ropes[0].type = "llama3";
    s.ropes[0].factor = 8.0;
    s.ropes[0].original_max_positions = 8192;
  }
  read_attention_bias(config, s, true);
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  s.mlp.xielu = config.get("hidden_act", std::string("xielu")) == "xielu";
  if (!s.mlp.xielu) s.mlp.activation = read_activation(config, "hidden_act", "xielu");
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  s.names.attention_norm = "attention_layernorm";
  s.names.mlp_norm = "feedforward_layernorm";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "apertus",
    .architectures = {"ApertusForCausalLM"},
    .build = build,
    .ignored =
        {
            {"post_norm", "false"},
            {"qk_norm", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
