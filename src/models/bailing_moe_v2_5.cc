// Bailing MoE 2.5: Ling 2.5 and Ring 2.5 of inclusionAI. Lightning attention with rotated, normed queries and keys in
// most layers, latent attention in every layer_group_size-th (arXiv:2510.19338), and the experts of Bailing MoE 2.
#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "models/deepseek.h"
#include "models/mamba.h"
#include "nn/recurrent/lightning.h"

namespace sluice::models::bailing_moe_v2_5 {
namespace {

constexpr std::pair<const char*, const char*> kAliases[] = {{"num_experts", "n_routed_experts"},
                                                            {"num_shared_experts", "n_shared_experts"},
                                                            {"score_function", "scoring_func"}};

// The decays as in the serving engines that inclusionAI names. Its own model file counts layers from -1 here.
std::vector<float> rates_of(int heads, int layer, int layers) {
  const double factor = 1.0 - static_cast<double>(layer) / (layers - 1) + 1e-5;
  std::vector<float> rates = alibi_slopes(heads);
  for (float& rate : rates) rate *= static_cast<float>(-factor);
  return rates;
}

LightningSpec read_lightning(const Config& config, const DecoderSpec& s) {
  LightningSpec l;
  l.heads = s.attention.heads;
  for (const char* key : {"num_key_value_heads", "num_kv_heads_for_linear_attn", "linear_key_value_heads"}) {
    if (config.get(key, l.heads) != l.heads) config.refuse(key, "must equal num_attention_heads");
  }
  l.head_dim = read_positive(config, "head_dim", config.get("head_dim", s.hidden / l.heads));
  const bool silu = config.get("linear_silu", config.get("use_linear_silu", false));
  l.activation = silu ? ops::Activation::kSilu : ops::Activation::kIdentity;
  l.norm_eps = s.norm.eps;
  l.by_head = false;
  l.out_bias = config.get("use_bias", false);
  l.qkv_bias = l.out_bias || config.get("use_qkv_bias", false);
  l.rotates = config.get("linear_rope", true);
  l.qk_norm = config.get("use_qk_norm", false);
  l.q_scale = 1.0f / std::sqrt(static_cast<float>(l.head_dim));
  l.norm_groups = read_positive(config, "group_norm_size", config.get("group_norm_size", 1));
  if (l.width() % l.norm_groups != 0)
    config.refuse("group_norm_size", fmt::format("{} does not divide {} columns", l.norm_groups, l.width()));
  l.qkv = "query_key_value";
  l.gate = "g_proj";
  l.out = "dense";
  l.norm = "g_norm";
  l.q_norm = "query_layernorm";
  l.k_norm = "key_layernorm";
  return l;
}

// Latent attention rotates all of its rotated dimensions, lightning attention the part of a head that
// "partial_rotary_factor" names: the ropes 0 and 1.
LatentAttentionSpec read_attention(const Config& config, DecoderSpec& s, int lightning_dim) {
  refuse_scaled_rope(config);
  Json values = config.values();
  values.erase("partial_rotary_factor");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (values.contains(key) && values[key].is_object()) values[key].erase("partial_rotary_factor");
  }
  const Config whole(std::move(values), config.origin());
  LatentAttentionSpec a = read_latent_attention(whole, s, {.q_rank = 0, .rope = {.theta = 600000.0}});
  note_reads(config, whole, {});
  a.out = "dense";
  s.ropes.push_back(read_rope(config, lightning_dim, s.max_positions, {.theta = 600000.0}));
  config.ignore("rotary_dim");  // follows from partial_rotary_factor
  return a;
}

void read_layers(const Config& config, DecoderSpec& s) {
  const LightningSpec lightning = read_lightning(config, s);
  const LatentAttentionSpec latent = read_attention(config, s, lightning.head_dim);
  const int group = read_positive(config, "layer_group_size", config.get("layer_group_size", 1));
  // Implementations disagree on the kind of layers after the last whole group.
  if (s.depth() % group != 0)
    config.refuse("layer_group_size", fmt::format("{} does not divide {} layers", group, s.depth()));
  if (s.depth() < 2) config.refuse("num_hidden_layers", "must be at least 2");
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    if ((i + 1) % group == 0) {
      layer.mixer = mixer_of<LatentAttention>("attention", latent);
      continue;
    }
    LightningSpec own = lightning;
    own.rates = rates_of(own.heads, i, s.depth());
    layer.rope = 1;
    layer.mixer = mixer_of<Lightning>("attention", own);
  }
}

void read_routing(const Config& config, DecoderSpec& s) {
  const auto scoring = config.get("scoring_func", std::string("sigmoid"));
  if (scoring != "sigmoid") config.refuse("score_function", "must be sigmoid, not '" + scoring + "'");
  read_deepseek_experts(config, s, true);
  s.moe.correction = config.get("moe_router_enable_expert_bias", true) ? "gate.expert_bias" : "";
  const int width = config.get("moe_shared_expert_intermediate_size", s.moe.inner);
  s.moe.shared_inner = s.moe.shared_inner / s.moe.inner * width;
}

std::unique_ptr<Model> build(const Config& published, LoadContext& context, int max_len) {
  const Config config = with_usual_names(published, kAliases);
  DecoderSpec s = read_sizes(config, "bailing_moe_v2_5", {.kv_heads = nullptr, .heads_divide_hidden = false});
  s.norm.eps = config.get("rms_norm_eps", 1e-6f);
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  s.names.embedding = "word_embeddings";
  read_layers(config, s);
  read_routing(config, s);
  ignore_prediction_layers(config, context, s);
  ignore_tensors(context, "model.mtp");
  note_reads(published, config, kAliases);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "bailing_moe_v2_5",
    .architectures = {"BailingMoeV2_5ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"block"},  // of the reference's kernel
            {"embedding_dropout"},
            {"max_window_layers"},
            {"moe_router_topk_scaling_factor"},  // routed_scaling_factor is read
            {"mtp_loss_scaling_factor"},
            {"mtp_use_repeated_layer"},
            {"norm_head", "false"},
            {"norm_softmax", "false"},
            {"output_dropout"},
            {"rotary_type"},
            {"router_dtype"},  // routing is always computed in fp32
            {"sliding_window"},
            {"use_rmsnorm", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::bailing_moe_v2_5
