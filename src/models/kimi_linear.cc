// Kimi Linear (arXiv:2510.26692): delta attention with some latent-attention layers, which are not rotated, and
// DeepSeek-V3's experts.
#include <fmt/core.h>

#include "models/deepseek.h"
#include "models/mamba.h"
#include "nn/recurrent/kimi_delta.h"

namespace sluice::models::kimi_linear {
namespace {

// Key names in published checkpoints, each with DeepSeek's name for the same setting.
constexpr std::pair<const char*, const char*> kAliases[] = {{"model_max_length", "max_position_embeddings"},
                                                            {"moe_renormalize", "norm_topk_prob"},
                                                            {"num_expert_group", "n_group"},
                                                            {"num_experts_per_token", "num_experts_per_tok"},
                                                            {"num_shared_experts", "n_shared_experts"},
                                                            {"num_local_experts", "num_experts"}};

// Reads the kinds of layers: "layer_types", or lists of layer numbers from 1, or latent attention in every fourth
// layer except the first.
std::vector<std::string> read_kinds(const Config& config, const Config& own, int depth) {
  std::vector<std::string> kinds;
  for (int i = 0; i < depth; ++i) kinds.emplace_back(i > 0 && i % 4 == 0 ? "full_attention" : "linear_attention");
  const auto full = own.get("full_attn_layers", std::vector<int>{}), delta = own.get("kda_layers", std::vector<int>{});
  if (!full.empty() || !delta.empty()) {
    std::ranges::fill(kinds, "");
    for (const auto& [list, kind] : {std::pair{&full, "full_attention"}, {&delta, "linear_attention"}}) {
      for (const int layer : *list) {
        if (layer < 1 || layer > depth || !kinds[layer - 1].empty()) {
          own.refuse("full_attn_layers",
                     fmt::format("and kda_layers must name each of {} layers once; wrong layer: {}", depth, layer));
        }
        kinds[layer - 1] = kind;
      }
    }
    if (std::ranges::count(kinds, "") > 0) own.refuse("full_attn_layers", "and kda_layers must name every layer");
  }
  return config.get("layer_types", kinds);
}

DeltaSpec read_delta(const Config& config, const Config& own, const DecoderSpec& s) {
  const auto size = [&](const char* nested, const char* flat, int fallback) {
    const Config& from = own.has(nested) ? own : config;
    const char* key = own.has(nested) ? nested : flat;
    config.ignore(flat);
    return read_positive(from, key, from.get(key, fallback));
  };
  DeltaSpec d;
  d.heads = d.key_heads = size("num_heads", "linear_num_heads", 32);
  d.key_dim = d.value_dim = size("head_dim", "linear_head_dim", 128);
  d.conv_width = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4);
  d.activation = s.mlp.activation;
  d.norm_eps = s.norm.eps;
  if (d.conv_width > ops::kMaxConvWidth) {
    config.refuse("linear_conv_kernel_dim",
                  fmt::format("must be at most {1}, not {0}", d.conv_width, ops::kMaxConvWidth));
  }
  return d;
}

void read_routing(const Config& config, const LoadContext& context, DecoderSpec& s) {
  const auto scoring = config.get("moe_router_activation_func", std::string("sigmoid"));
  if (scoring != "sigmoid") config.refuse("moe_router_activation_func", "must be sigmoid, not '" + scoring + "'");
  if (config.get("moe_layer_freq", 1) != 1) config.refuse("moe_layer_freq", "must be 1");
  config.ignore("use_grouped_topk");  // n_group says the same
  read_deepseek_experts(config, s, true,
                        {.experts = "num_experts", .default_shared = 1, .default_dense = 1, .default_scale = 2.446f});
  read_mlp_layer_types(config, s);
  s.moe.gate = "w1";
  s.moe.up = "w3";
  s.moe.down = "w2";
  for (int i = 0; i < s.depth(); ++i) {
    // transformers writes dense layers, too, under the name of the experts.
    const std::string dense =
        fmt::format("{}.{}.{}.block_sparse_moe.gate_proj.weight", s.names.body, s.names.layers, i);
    if (!s.layers[i].moe && context.checkpoint.find(dense) == nullptr) continue;
    s.layers[i].names = s.names;
    s.layers[i].names->mlp = "block_sparse_moe";
  }
}

std::unique_ptr<Model> build(const Config& published, LoadContext& context, int max_len) {
  const Config config = with_usual_names(published, kAliases);
  const Config own = config.object("linear_attn_config");
  DecoderSpec s = latent_llama_like(config, "kimi_linear", {.norm_eps = 1e-5, .q_rank = 0});
  s.max_positions = config.get("max_position_embeddings", kNoPositionLimit);
  if (!config.get("mla_use_nope", true)) config.refuse("mla_use_nope", "false is not supported");
  s.ropes[0].type = "none";
  const DeltaSpec delta = read_delta(config, own, s);
  const std::vector<bool> recurrent =
      read_recurrent_layers(config, read_kinds(config, own, s.depth()), "layer_types", s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    if (recurrent[i]) s.layers[i].mixer = mixer_of<KimiDelta>("self_attn", delta);
  }
  read_routing(config, context, s);
  ignore_prediction_layers(config, context, s);
  refuse_unread(own);
  note_reads(published, config, kAliases);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "kimi_linear", .architectures = {"KimiLinearForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::kimi_linear
