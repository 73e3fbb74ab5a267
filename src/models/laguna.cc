// Laguna (Poolside, 2026): a gate per head, each kind of layers with its own rotation, each layer with its own number
// of heads; experts chosen by sigmoid scores with corrections.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "nn/decoder_config.h"

namespace sluice::models::laguna {
namespace {

// Reads "gating": one gate per head (true or "per-head") or one per value ("per-element").
void read_gates(const Config& config, AttentionSpec& a) {
  a.output_gate = a.softplus_gate = true;
  a.gate_bias = false;
  a.gate = "g_proj";
  const Json* gating = config.find("gating");
  a.head_gates = gating == nullptr || *gating == true || *gating == "per-head";
  if (!a.head_gates && *gating != "per-element")
    config.refuse("gating", "must be true, \"per-head\" or \"per-element\"");
}

// Rotations of layers without and with a window, at the indices 0 and 1.
std::vector<RopeSpec> read_ropes(const Config& config, const DecoderSpec& s) {
  const auto of = [&](const char* kind, double theta, double partial) {
    return read_rope(config, s.attention.head_dim, s.max_positions,
                     {.theta = theta, .partial = partial, .layer_type = kind});
  };
  return {of("full_attention", 500000.0, 0.5), of("sliding_attention", 10000.0, 1.0)};
}

void read_layers(const Config& config, DecoderSpec& s) {
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 512));
  const std::vector<bool> sliding = read_windows(config, s, window, [](int) { return false; });
  const char* const key = "num_attention_heads_per_layer";
  const auto heads = config.get(key, std::vector<int>(s.layers.size(), s.attention.heads));
  if (heads.size() != s.layers.size())
    config.refuse(key, fmt::format("has {} entries for {} layers", heads.size(), s.depth()));
  for (int i = 0; i < s.depth(); ++i) {
    AttentionSpec attention = s.attention;
    attention.heads = heads[i];
    if (heads[i] < 1 || heads[i] % attention.kv_heads != 0)
      config.refuse(key, fmt::format("{} is no multiple of {} kv heads", heads[i], attention.kv_heads));
    attention.window = s.layers[i].window;
    s.layers[i].rope = sliding[i] ? 1 : 0;
    s.layers[i].mixer = [attention](const Weights& w, int hidden) {
      return std::make_unique<Attention>(w / "self_attn", attention, hidden);
    };
  }
}

void read_routing(const Config& config, DecoderSpec& s, bool older_names) {
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 512));
  read_experts(config, s, "num_experts", "num_experts_per_tok", inner);
  MoeSpec& m = s.moe;
  m.score = ops::Routing::Score::kSigmoid;
  m.correction = older_names ? "experts.e_score_correction_bias" : "gate.e_score_correction_bias";
  m.correction_shape = {m.experts};
  m.normalize = true;
  m.scale = config.get("moe_routed_scaling_factor", 1.0f);
  m.logit_cap = config.get("moe_router_logit_softcapping", 0.0f);
  m.shared_inner = config.get("shared_expert_intermediate_size", 512);
  if (m.shared_inner < 0) config.refuse("shared_expert_intermediate_size", "must not be negative");
  if (older_names) m.shared = "shared_expert";
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i > 0;
  read_mlp_layer_types(config, s);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "laguna", {.heads_divide_hidden = false});
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", 128));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = config.get("rms_norm_eps", 1e-6f);
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  read_attention_bias(config, s, true);
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  read_gates(config, a);
  s.ropes = read_ropes(config, s);
  read_layers(config, s);
  // Published files have other names for the corrections and the shared expert than transformers' own.
  const auto& tensors = context.checkpoint.tensors();
  read_routing(config, s, std::ranges::any_of(tensors, [](const auto& entry) {
                 return entry.first.ends_with("mlp.experts.e_score_correction_bias");
               }));
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "laguna",
    .architectures = {"LagunaForCausalLM"},
    .build = build,
    .ignored =
        {
            {"decoder_sparse_step", "1"},
            {"mlp_only_layers", "[0]"},  // mlp_layer_types is read instead; this is its default
            {"moe_apply_router_weight_on_input", "false"},
            {"norm_topk_prob", "true"},
            {"swa_attention_sink_enabled", "false"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::laguna
