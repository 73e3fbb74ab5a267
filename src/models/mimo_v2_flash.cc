// MiMo V2 Flash (Xiaomi, arXiv:2601.02780) and MiMo V2.5 Pro: keys wider than values; layers with a window have
// attention sinks and their own number of kv heads; experts chosen by sigmoid scores with corrections.
#include <fmt/core.h>

#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::mimo_v2_flash {
namespace {

// Reads the layers with a window: "layer_types", or the published spelling, a list with 1 for them.
std::vector<bool> read_sliding(const Config& config, DecoderSpec& s) {
  const auto pattern = config.get("hybrid_layer_pattern", std::vector<int>{});
  if (!pattern.empty() && pattern.size() != s.layers.size()) {
    config.refuse("hybrid_layer_pattern", fmt::format("has {} entries for {} layers", pattern.size(), s.depth()));
  }
  // Published files have both keys. transformers, vLLM and llama.cpp count a row's own token among them.
  const int window = config.get("sliding_window", config.get("sliding_window_size", 128));
  config.ignore("attention_chunk_size");
  return read_windows(config, s, window, [&](int i) {
    return pattern.empty() ? i > 0 && (i + 1) % 6 != 0 : pattern[static_cast<size_t>(i)] != 0;
  });
}

// Reads the published keys for layers with a window where they differ. transformers derives the same from rules.
AttentionSpec sliding_attention(const Config& config, const AttentionSpec& full) {
  AttentionSpec a = full;
  const auto same = [&](const char* key, int value) {
    if (config.get(key, value) != value)
      config.refuse(key, fmt::format("must be {}, as in layers without a window", value));
  };
  same("swa_num_attention_heads", full.heads);
  same("swa_head_dim", full.head_dim);
  same("swa_v_head_dim", full.value_dim);
  a.kv_heads =
      read_positive(config, "swa_num_key_value_heads", config.get("swa_num_key_value_heads", 2 * full.kv_heads));
  if (a.heads % a.kv_heads != 0) {
    config.refuse("swa_num_key_value_heads", fmt::format("{} does not divide {} heads", a.kv_heads, a.heads));
  }
  a.sinks = config.get("add_swa_attention_sink_bias", true);
  if (config.get("add_full_attention_sink_bias", false))
    config.refuse("add_full_attention_sink_bias", "true is not supported");
  return a;
}

// Reads the fused projection of MiMo V2.5: `parts` equal parts, each with its share of queries, keys and values.
void fuse_qkv(const Config& config, AttentionSpec& a, int parts) {
  if (a.kv_heads % parts != 0) {
    config.refuse("attention_projection_layout", fmt::format("{} kv heads are not {} equal parts", a.kv_heads, parts));
  }
  const int64_t q = a.q_width() / parts, k = a.kv_width() / parts, v = a.v_width() / parts, all = q + k + v;
  a.qkv = {"qkv_proj"};
  a.qkv_rows.clear();
  for (int64_t i = 0; i < parts; ++i) a.qkv_rows.push_back({i * all, q});
  for (int64_t i = 0; i < parts; ++i) a.qkv_rows.push_back({i * all + q, k});
  for (int64_t i = 0; i < parts; ++i) a.qkv_rows.push_back({i * all + q + k, v});
}

void read_layers(const Config& config, DecoderSpec& s) {
  const std::vector<bool> sliding = read_sliding(config, s);
  AttentionSpec own = sliding_attention(config, s.attention);
  if (config.has("attention_projection_layout")) {
    const auto layout = config.get("attention_projection_layout", std::string());
    if (layout != "fused_qkv") {
      config.refuse("attention_projection_layout", fmt::format("must be fused_qkv, not '{}'", layout));
    }
    const int parts = s.attention.kv_heads;
    fuse_qkv(config, s.attention, parts);
    fuse_qkv(config, own, parts);
  }
  for (int i = 0; i < s.depth(); ++i) {
    AttentionSpec attention = sliding[i] ? own : s.attention;
    attention.window = s.layers[i].window;
    s.layers[i].rope = sliding[i] ? 1 : 0;
    s.layers[i].mixer = [attention](const Weights& w, int hidden) {
      return std::make_unique<Attention>(w / "self_attn", attention, hidden);
    };
  }
}

void read_routing(const Config& config, DecoderSpec& s) {
  read_deepseek_experts(config, s, true, {.default_dense = 1});
  // The published spelling of mlp_layer_types, under a key that is a number in other families.
  const auto sparse = config.get("moe_layer_freq", std::vector<int>{});
  if (!sparse.empty() && sparse.size() != s.layers.size()) {
    config.refuse("moe_layer_freq", fmt::format("has {} entries for {} layers", sparse.size(), s.depth()));
  }
  for (size_t i = 0; i < sparse.size(); ++i) s.layers[i].moe = sparse[i] != 0;
  read_mlp_layer_types(config, s);
  const auto only = [&](const char* key, const std::string& wanted) {
    if (config.get(key, wanted) != wanted) config.refuse(key, "must be " + wanted);
  };
  only("scoring_func", "sigmoid");
  only("topk_method", "noaux_tc");
}

// Without rope_parameters, layers with a window differ only in "swa_rope_theta".
std::vector<RopeSpec> read_ropes(const Config& config, const DecoderSpec& s) {
  const auto of = [&](const char* layer_type) {
    return read_rope(config, s.attention.head_dim, s.max_positions,
                     {.theta = 5000000.0, .partial = 0.334, .layer_type = layer_type});
  };
  std::vector<RopeSpec> ropes{of("full_attention"), of("sliding_attention")};
  if (config.has("rope_parameters")) return ropes;
  ropes[1].theta = config.get("swa_rope_theta", 10000.0);
  if (!(ropes[1].theta > 1)) config.refuse("swa_rope_theta", "must be above 1");
  return ropes;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "mimo_v2_flash");
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", 192));
  a.value_dim = read_positive(config, "v_head_dim", config.get("v_head_dim", 128));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  a.value_scale = static_cast<float>(read_or_off(config, "attention_value_scale", 0.707));
  if (a.value_scale == 0) a.value_scale = 1.0f;
  a.sink = "attention_sink_bias";
  read_attention_bias(config, s, false);
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", config.get("layernorm_epsilon", 1e-5)));
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  s.ropes = read_ropes(config, s);
  for (const char* key : {"mlp_bias", "use_qk_norm"}) {
    if (config.get(key, false)) config.refuse(key, "true is not supported");
  }
  read_layers(config, s);
  read_routing(config, s);
  ignore_tensors(context, "model.mtp.");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "mimo_v2_flash", .architectures = {"MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mimo_v2_flash
