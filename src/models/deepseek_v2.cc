// DeepSeek-V2 (arXiv:2405.04434): latent attention; experts chosen by softmax, among all or in the best groups.
#include "models/deepseek.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace sluice {

Config with_usual_names(const Config& config, KeyAliases aliases) {
  Json values = config.values();
  for (const auto& [own, usual] : aliases) {
    if (!values.contains(own)) continue;
    if (values.contains(usual) && values[usual] != values[own])
      config.refuse(own, fmt::format("contradicts {}", usual));
    values[usual] = values[own];
    values.erase(own);
  }
  return Config(std::move(values), config.origin());
}

void note_reads(const Config& config, const Config& copy, KeyAliases aliases) {
  const std::vector<std::string> unread = copy.unread();
  for (const auto& item : config.values().items()) {
    const std::string& key = item.key();
    const auto alias = std::ranges::find_if(aliases, [&](const auto& pair) { return pair.first == key; });
    const std::string usual = alias != aliases.end() ? alias->second : key;
    if (std::ranges::count(unread, usual) == 0) config.ignore(key);
  }
}

void refuse_scaled_rope(const Config& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Config rope = config.object(key);
    const auto type = rope.get("rope_type", rope.get("type", std::string("default")));
    if (type != "default") config.refuse(key, "must be of the type default, not '" + type + "'");
  }
}

LatentAttentionSpec read_latent_attention(const Config& config, DecoderSpec& s, const LatentDefaults& d) {
  const auto size = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  LatentAttentionSpec a;
  a.heads = s.attention.heads;
  a.q_rank = static_cast<int>(read_or_off(config, "q_lora_rank", d.q_rank));
  if (a.q_rank < 0) config.refuse("q_lora_rank", "must not be negative");
  a.kv_rank = size("kv_lora_rank", d.kv_rank);
  a.nope_dim = size("qk_nope_head_dim", d.nope_dim);
  a.rope_dim = size("qk_rope_head_dim", d.rope_dim);
  a.value_dim = size("v_head_dim", d.value_dim > 0 ? d.value_dim : s.attention.head_dim);
  a.bias = config.get("attention_bias", false);
  a.interleaved_rope = config.get("rope_interleave", d.interleaved_rope);
  // These follow from other keys; transformers writes them anyway. Every head has its own keys and values.
  for (const char* key : {"head_dim", "qk_head_dim", "num_key_value_heads"}) config.ignore(key);
  const int head_dim = (d.rope_is_part ? a.nope_dim : 0) + a.rope_dim;
  RopeDefaults rope_defaults = d.rope;
  if (d.rope_is_part) rope_defaults.partial = static_cast<double>(a.rope_dim) / head_dim;
  const RopeSpec rope = read_rope(config, head_dim, s.max_positions, rope_defaults);
  if (rope.rotary_dim != a.rope_dim) {
    config.refuse("partial_rotary_factor", "rotates a part of qk_rope_head_dim; only rotating all of it is supported");
  }
  a.scale = static_cast<float>(rope.score_scale / std::sqrt(static_cast<double>(a.nope_dim + a.rope_dim)));
  s.ropes = {rope};
  return a;
}

MakeTokenMixer latent_attention(const LatentAttentionSpec& spec) {
  return
      [spec](const Weights& w, int hidden) { return std::make_unique<LatentAttention>(w / "self_attn", spec, hidden); };
}

DecoderSpec latent_llama_like(const Config& config, std::string family, const LatentDefaults& d,
                              LatentAttentionSpec* attention) {
  DecoderSpec s = read_sizes(config, std::move(family), {.heads_divide_hidden = false});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", d.norm_eps));
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", d.tied_head);
  const LatentAttentionSpec a = read_latent_attention(config, s, d);
  for (LayerSpec& layer : s.layers) layer.mixer = latent_attention(a);
  if (attention != nullptr) *attention = a;
  return s;
}

void read_deepseek_layers(const Config& config, DecoderSpec& s, int default_dense) {
  const int dense = config.get("first_k_dense_replace", default_dense);
  const int every = read_positive(config, "moe_layer_freq", config.get("moe_layer_freq", 1));
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense && i % every == 0;
  // These keys concern the training loss and its distribution over machines.
  for (const char* key : {"aux_loss_alpha", "seq_aux", "ep_size"}) config.ignore(key);
}

}  // namespace sluice

namespace sluice::models::deepseek_v2 {
namespace {

void read_routing(const Config& config, MoeSpec& m) {
  const auto scoring = config.get("scoring_func", std::string("softmax"));
  if (scoring != "softmax") config.refuse("scoring_func", "must be softmax, not '" + scoring + "'");
  const auto method = config.get("topk_method", std::string("greedy"));
  if (method == "group_limited_greedy") {
    read_expert_groups(config, m);
    m.group_best = 1;
  } else if (method == "greedy" || method == "gready") {  // DeepSeek-V2-Lite's spelling
    for (const char* key : {"n_group", "topk_group"}) config.ignore(key);
  } else {
    config.refuse("topk_method", "unknown value '" + method + "' (expected greedy or group_limited_greedy)");
  }
  if (config.get("norm_topk_prob", false))
    config.refuse("norm_topk_prob", "true is not supported: implementations disagree on it");
  m.scale = config.get("routed_scaling_factor", 1.0f);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = latent_llama_like(config, "deepseek_v2");
  s.mlp.bias = config.get("mlp_bias", false);
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1407));
  read_experts(config, s, "n_routed_experts", "num_experts_per_tok", inner);
  read_routing(config, s.moe);
  s.moe.shared_inner = inner * config.get("n_shared_experts", 2);
  s.moe.shared_bias = s.mlp.bias;
  read_deepseek_layers(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "deepseek_v2", .architectures = {"DeepseekV2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::deepseek_v2
