// Reads the keys of config.json that many families share.
#include "nn/decoder_config.h"

#include <fmt/core.h>

#include <cmath>

#include "base/json.h"

namespace sluice {

void refuse_unread(const Config& config) {
  config.ignore("model_type");
  const std::vector<std::string> unread = config.unread();
  if (!unread.empty()) config.refuse(unread.front(), "is not supported");
}

void ignore_tensors(LoadContext& context, std::string_view prefix) {
  for (const auto& [name, entry] : context.checkpoint.tensors()) {
    if (name.starts_with(prefix)) context.used.insert(name);
  }
}

int read_positive(const Config& config, const char* key, int value) {
  if (value < 1) config.refuse(key, fmt::format("must be positive, not {}", value));
  return value;
}

ops::Activation read_activation(const Config& config, const char* key, const char* fallback) {
  const auto name = config.get(key, std::string(fallback));
  const std::optional<ops::Activation> activation = ops::parse_activation(name);
  if (!activation) config.refuse(key, fmt::format("unknown activation '{}'", name));
  return *activation;
}

NormSpec read_layer_norm(const Config& config, const char* eps_key, bool bias) {
  return {.kind = NormSpec::Kind::kLayer, .eps = static_cast<float>(config.get(eps_key, 1e-5)), .bias = bias};
}

double read_or_off(const Config& config, const char* key, double fallback) {
  const bool null = config.values().contains(key) && config.values()[key].is_null();
  return config.get(key, null ? 0.0 : fallback);
}

DecoderSpec read_sizes(const Config& c, std::string family, const SizeKeys& keys) {
  const auto required = [&](const char* key) { return read_positive(c, key, c.at<int>(key)); };
  DecoderSpec s;
  s.family = std::move(family);
  s.vocab = required(keys.vocab);
  s.hidden = required(keys.hidden);
  if (keys.layers != nullptr) s.layers.resize(static_cast<size_t>(required(keys.layers)));
  AttentionSpec& a = s.attention;
  a.heads = a.kv_heads = required(keys.heads);
  if (keys.kv_heads != nullptr) {
    a.kv_heads = read_positive(c, keys.kv_heads, c.get(keys.kv_heads, a.heads));
    if (a.heads % a.kv_heads != 0) {
      c.refuse(keys.kv_heads, fmt::format("{} does not divide {} {}", a.kv_heads, keys.heads, a.heads));
    }
  }
  if (keys.heads_divide_hidden && !c.has("head_dim") && s.hidden % a.heads != 0) {
    c.refuse(keys.heads, fmt::format("{} does not divide {} {}", a.heads, keys.hidden, s.hidden));
  }
  a.head_dim = s.hidden / a.heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  if (keys.inner != nullptr) {
    s.mlp.inner = keys.inner_is_four_hidden ? read_positive(c, keys.inner, c.get(keys.inner, 4 * s.hidden))
                                            : required(keys.inner);
  }
  s.max_positions = keys.default_max_positions;
  if (keys.max_positions != nullptr) {
    s.max_positions = read_positive(c, keys.max_positions, c.get(keys.max_positions, s.max_positions));
  }
  return s;
}

DecoderSpec llama_like(const Config& c, std::string family, const LlamaDefaults& d) {
  SizeKeys keys;
  if (d.only_experts && !c.has(keys.inner)) keys.inner = nullptr;
  DecoderSpec s = read_sizes(c, std::move(family), keys);
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(c, "head_dim", c.get("head_dim", d.head_dim > 0 ? d.head_dim : a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = static_cast<float>(c.get(d.norm_eps_key, d.norm_eps));
  a.qk_norm_spec.eps = s.norm.eps;
  s.mlp.activation = read_activation(c, d.activation_key, d.activation);
  s.tied_head = c.get("tie_word_embeddings", d.tied_head);
  s.ropes = {read_rope(c, a.head_dim, s.max_positions, d.rope)};
  return s;
}

void read_attention_bias(const Config& config, DecoderSpec& spec, bool out, bool fallback) {
  spec.attention.qkv_bias = config.get("attention_bias", fallback);
  spec.attention.out_bias = out && spec.attention.qkv_bias;
}

std::vector<bool> read_windows(const Config& config, DecoderSpec& spec, int window,
                               const std::function<bool(int layer)>& by_default) {
  if (window < 0) config.refuse("sliding_window", "must not be negative");
  const auto kinds = config.get("layer_types", std::vector<std::string>{});
  if (!kinds.empty() && kinds.size() != spec.layers.size()) {
    config.refuse("layer_types", fmt::format("has {} entries for {} layers", kinds.size(), spec.layers.size()));
  }
  std::vector<bool> sliding(spec.layers.size());
  for (int i = 0; i < spec.depth(); ++i) {
    sliding[i] = window > 0 && by_default(i);
    if (!kinds.empty()) {
      if (kinds[i] != "full_attention" && kinds[i] != "sliding_attention") {
        config.refuse("layer_types",
                      fmt::format("unknown type '{}' (expected full_attention or sliding_attention)", kinds[i]));
      }
      sliding[i] = kinds[i] == "sliding_attention";
      if (sliding[i] && window == 0)
        config.refuse("layer_types", "asks for sliding_attention without a sliding_window");
    }
    if (sliding[i]) spec.layers[i].window = window;
  }
  return sliding;
}

void read_qwen_windows(const Config& config, DecoderSpec& spec, int max_window_layers) {
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const int first = config.get("max_window_layers", max_window_layers);
  const bool use = config.get("use_sliding_window", false);
  read_windows(config, spec, use ? window : 0, [=](int layer) { return layer >= first; });
}

void read_exaone_windows(const Config& config, DecoderSpec& spec) {
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const bool given = config.has("layer_types");
  // Some checkpoints also spell the pattern as "LLLG"; if layer_types is given, the pattern adds nothing.
  const int pattern = given ? 0 : config.get("sliding_window_pattern", 4);
  if (given) config.ignore("sliding_window_pattern");
  const auto sliding =
      read_windows(config, spec, window, [=](int layer) { return pattern > 0 && (layer + 1) % pattern != 0; });
  for (int i = 0; i < spec.depth(); ++i) spec.layers[i].rope = window == 0 || sliding[i] ? 0 : -1;
}

void read_one_window(const Config& config, DecoderSpec& spec, double fallback) {
  const int window = static_cast<int>(read_or_off(config, "sliding_window", fallback));
  if (window < 0) config.refuse("sliding_window", "must not be negative");
  for (LayerSpec& layer : spec.layers) layer.window = window;
}

void use_post_norms(DecoderSpec& spec) {
  spec.names.attention_norm = "";
  spec.names.attention_post_norm = "post_attention_layernorm";
  spec.names.mlp_norm = "";
  spec.names.mlp_post_norm = "post_feedforward_layernorm";
}

RopeSpec read_sliding_rope(const Config& config, const DecoderSpec& spec, double theta) {
  const int head_dim = spec.attention.head_dim;
  if (config.object("rope_parameters").has("sliding_attention")) {
    return read_rope(config, head_dim, spec.max_positions, {.layer_type = "sliding_attention"});
  }
  RopeSpec rope;
  rope.theta = theta;
  rope.rotary_dim = head_dim;
  return rope;
}

void read_experts(const Config& config, DecoderSpec& spec, const char* experts_key, const char* top_k_key, int inner) {
  MoeSpec& m = spec.moe;
  m.experts = read_positive(config, experts_key, config.at<int>(experts_key));
  m.top_k = read_positive(config, top_k_key, config.at<int>(top_k_key));
  if (m.top_k > m.experts) config.refuse(top_k_key, fmt::format("{} is more than the {} experts", m.top_k, m.experts));
  m.inner = inner;
  m.activation = spec.mlp.activation;
  for (LayerSpec& layer : spec.layers) layer.moe = true;
}

void read_sparse_layers(const Config& config, DecoderSpec& spec) {
  const int step = read_positive(config, "decoder_sparse_step", config.get("decoder_sparse_step", 1));
  for (int i = 0; i < spec.depth(); ++i) spec.layers[i].moe = (i + 1) % step == 0;
  for (int i : config.get("mlp_only_layers", std::vector<int>{})) {
    if (i >= 0 && i < spec.depth()) spec.layers[i].moe = false;
  }
}

void read_expert_groups(const Config& config, MoeSpec& m, int groups, int top_groups) {
  m.groups = read_positive(config, "n_group", config.get("n_group", groups));
  m.top_groups = read_positive(config, "topk_group", config.get("topk_group", top_groups));
  if (m.experts % m.groups != 0)
    config.refuse("n_group", fmt::format("{} does not divide {} experts", m.groups, m.experts));
  if (m.top_groups > m.groups)
    config.refuse("topk_group", fmt::format("{} is more than the {} groups", m.top_groups, m.groups));
  if (m.top_k > m.experts / m.groups * m.top_groups) {
    config.refuse("topk_group", fmt::format("{} groups have fewer than {} experts", m.top_groups, m.top_k));
  }
}

void read_deepseek_experts(const Config& config, DecoderSpec& spec, bool normalize, const DeepseekExpertKeys& keys) {
  const int inner = read_positive(config, "moe_intermediate_size", config.at<int>("moe_intermediate_size"));
  read_experts(config, spec, keys.experts, "num_experts_per_tok", inner);
  MoeSpec& m = spec.moe;
  m.score = ops::Routing::Score::kSigmoid;
  m.correction = "gate.e_score_correction_bias";
  m.correction_shape = {m.experts};
  read_expert_groups(config, m, keys.default_groups, keys.default_top_groups);
  m.normalize = config.get("norm_topk_prob", normalize);
  m.smallest_sum = 1e-20f;
  m.scale = config.get("routed_scaling_factor", keys.default_scale);
  m.shared_inner = inner * config.get(keys.shared, keys.default_shared);
  const int dense = config.get("first_k_dense_replace", keys.default_dense);
  for (int i = 0; i < spec.depth(); ++i) spec.layers[i].moe = i >= dense;
}

void read_mlp_layer_types(const Config& config, DecoderSpec& spec) {
  const auto kinds = config.get("mlp_layer_types", std::vector<std::string>{});
  if (kinds.empty()) return;
  if (kinds.size() != spec.layers.size()) {
    config.refuse("mlp_layer_types", fmt::format("has {} entries for {} layers", kinds.size(), spec.layers.size()));
  }
  for (int i = 0; i < spec.depth(); ++i) {
    if (kinds[i] != "dense" && kinds[i] != "sparse") {
      config.refuse("mlp_layer_types", fmt::format("unknown type '{}' (expected dense or sparse)", kinds[i]));
    }
    spec.layers[i].moe = kinds[i] == "sparse";
  }
}

void ignore_prediction_layers(const Config& config, LoadContext& context, const DecoderSpec& spec) {
  const int count = config.get("num_nextn_predict_layers", 0);
  for (int i = spec.depth(); i < spec.depth() + count; ++i) {
    ignore_tensors(context, fmt::format("{}.{}.{}.", spec.names.body, spec.names.layers, i));
  }
}

}  // namespace sluice
