// LFM2: gated short convolutions with a few attention layers (Liquid AI 2025, arXiv:2511.23404).
#include "models/lfm2.h"

#include <fmt/core.h>

#include <algorithm>

#include "models/mamba.h"
#include "nn/recurrent/short_conv.h"

namespace sluice {
namespace {

// Reads the attention layers from "layer_types", or by number from "full_attn_idxs".
std::vector<bool> read_attention_layers(const Config& config, int layers) {
  std::vector<bool> attends(static_cast<size_t>(layers));
  const auto indices = config.get("full_attn_idxs", std::vector<int>{});
  if (!config.has("layer_types")) {
    if (!config.has("full_attn_idxs")) attends.assign(attends.size(), true);
    for (const int i : indices) {
      if (i < 0 || i >= layers)
        config.refuse("full_attn_idxs", fmt::format("layer {} does not exist in a model of {} layers", i, layers));
      attends[i] = true;
    }
    return attends;
  }
  const auto kinds = config.at<std::vector<std::string>>("layer_types");
  if (static_cast<int>(kinds.size()) != layers) {
    config.refuse("layer_types", fmt::format("has {} entries for {} layers", kinds.size(), layers));
  }
  for (int i = 0; i < layers; ++i) {
    attends[i] = kinds[i] == "full_attention";
    if (!attends[i] && kinds[i] != "conv") {
      config.refuse("layer_types", fmt::format("unknown type '{}' (expected conv or full_attention)", kinds[i]));
    }
  }
  return attends;
}

}  // namespace

DecoderSpec lfm2_like(const Config& config, std::string family) {
  const char* inner = config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  config.ignore("intermediate_size");
  DecoderSpec s = read_sizes(config, std::move(family), {.inner = inner, .default_max_positions = 128000});
  s.norm.eps = static_cast<float>(config.get("norm_eps", 1e-5));
  s.tied_head = config.get("tie_word_embeddings", config.get("tie_embedding", true));
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, {.theta = 1000000.0})};
  s.attention.qk_norm = QkNorm::kHead;
  s.attention.qk_norm_spec.eps = s.norm.eps;
  s.attention.q_norm = "q_layernorm";
  s.attention.k_norm = "k_layernorm";
  s.attention.out = "out_proj";
  s.mlp.in = {"w1", "w3"};
  s.mlp.out = "w2";
  const int width = read_conv_width(config, "conv_L_cache", 3);
  const bool bias = config.get("conv_bias", false);
  const std::vector<bool> attends = read_attention_layers(config, s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    if (attends[i]) continue;
    s.layers[i].mixer = [=](const Weights& layer, int hidden) {
      return std::make_unique<ShortConv>(layer / "conv", width, bias, hidden);
    };
  }
  s.names.norm = "embedding_norm";
  s.names.mlp = "feed_forward";
  s.names.attention_norm = "operator_norm";
  s.names.mlp_norm = "ffn_norm";
  return s;
}

}  // namespace sluice

namespace sluice::models::lfm2 {
namespace {

int adjusted(const Config& config, int inner) {
  const bool adjust = config.get("block_auto_adjust_ff_dim", true);
  const double multiplier = read_or_off(config, "block_ffn_dim_multiplier", 1.0);
  const int multiple = read_positive(config, "block_multiple_of", config.get("block_multiple_of", 256));
  if (!adjust) return inner;
  inner = static_cast<int>(2 * int64_t{inner} / 3);
  if (multiplier == 0) return inner;
  inner = static_cast<int>(multiplier * inner);
  return (inner + multiple - 1) / multiple * multiple;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = lfm2_like(config, "lfm2");
  s.mlp.inner = read_positive(config, "intermediate_size", adjusted(config, s.mlp.inner));
  // The original code's names for sizes that must agree, and keys about initialization.
  for (const char* key : {"block_dim", "conv_dim", "conv_dim_out"}) {
    if (config.get(key, s.hidden) != s.hidden) config.refuse(key, "must equal hidden_size");
  }
  if (config.get("num_heads", s.attention.heads) != s.attention.heads) {
    config.refuse("num_heads", "must equal num_attention_heads");
  }
  if (!config.get("use_pos_enc", true)) config.refuse("use_pos_enc", "only true is supported");
  if (!config.get("block_use_swiglu", true)) config.refuse("block_use_swiglu", "only true is supported");
  config.get("block_norm_eps", 0.0);
  for (const char* key : {"block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_xavier_init",
                          "conv_use_xavier_init", "tie_embedding", "theta"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "lfm2", .architectures = {"Lfm2ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::lfm2
