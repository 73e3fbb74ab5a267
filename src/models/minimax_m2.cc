// MiniMax M2: norms of whole projections; rotates a part of each head; experts chosen by sigmoid scores with
// corrections.
#include <cmath>

#include "models/mixtral.h"

namespace sluice::models::minimax_m2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "minimax_m2");
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", 128));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = config.get("rms_norm_eps", 1e-6f);
  a.qk_norm = QkNorm::kProjection;
  a.qk_norm_spec = s.norm;
  const int rotary = read_positive(config, "rotary_dim", config.get("rotary_dim", a.head_dim));
  // Checkpoints of transformers 5 store the partial factor only in rope_parameters.
  const double partial = config.has("rope_parameters") ? 1.0 : static_cast<double>(rotary) / a.head_dim;
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = 5000000.0, .partial = partial})};
  s.tied_head = config.get("tie_word_embeddings", false);
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  read_mixtral_experts(config, s);
  s.moe.score = ops::Routing::Score::kSigmoid;
  s.moe.correction = "e_score_correction_bias";
  s.moe.correction_shape = {s.moe.experts};
  for (const int kind : config.get("attn_type_list", std::vector<int>{})) {
    if (kind != 1) config.refuse("attn_type_list", "must list only 1 (softmax attention)");
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "minimax_m2",
    .architectures = {"MiniMaxM2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"layernorm_full_attention_beta", "1.0"},
            {"layernorm_linear_attention_beta", "1.0"},
            {"layernorm_mlp_beta", "1.0"},
            {"mlp_intermediate_size"},  // the width of shared experts, which the family does not have
            {"mtp_transformer_layers"},
            {"num_mtp_modules"},
            {"qk_norm_type", "\"per_layer\""},
            {"scoring_func", "\"sigmoid\""},
            {"shared_intermediate_size", "0"},
            {"shared_moe_mode"},
            {"use_mtp"},
            {"use_qk_norm", "true"},
            {"use_routing_bias", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::minimax_m2
