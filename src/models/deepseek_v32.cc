// DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5: DeepSeek-V3 whose layers see only the index_topk tokens that an indexer
// chooses. A text of at most that many tokens is seen in full. Contexts are limited to that length, and indexers are
// not loaded.
#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "models/deepseek.h"
#include "nn/next_token_layers.h"

namespace sluice::models::deepseek_v32 {
namespace {

int read_chosen(const Config& config) { return read_positive(config, "index_topk", config.get("index_topk", 2048)); }

void check_layer_types(const Config& config) {
  for (const std::string& kind : config.get("layer_types", std::vector<std::string>{})) {
    // The first name is that of transformers 5.17, the other one that of later versions.
    if (kind == "deepseek_sparse_attention" || kind == "indexed_attention") continue;
    config.refuse("layer_types",
                  fmt::format("unknown type '{}' (expected deepseek_sparse_attention or indexed_attention)", kind));
  }
}

DecoderSpec read_as(const char* name, double norm_eps, int groups, int top_groups, const Config& config) {
  DecoderSpec s = latent_llama_like(config, name, {.norm_eps = norm_eps});
  if (s.mlp.bias = config.get("mlp_bias", false); s.mlp.bias) config.refuse("mlp_bias", "true is not supported");
  const auto only = [&](const char* key, const std::string& wanted) {
    const auto value = config.get(key, wanted);
    if (value != wanted) config.refuse(key, "must be " + wanted + ", not '" + value + "'");
  };
  only("scoring_func", "sigmoid");
  only("topk_method", "noaux_tc");
  read_deepseek_experts(config, s, true,
                        {.default_shared = 1,
                         .default_dense = 3,
                         .default_scale = 2.5f,
                         .default_groups = groups,
                         .default_top_groups = top_groups});
  if (!config.has("mlp_layer_types") && config.has("first_k_dense_replace")) read_deepseek_layers(config, s);
  read_mlp_layer_types(config, s);
  for (const char* key : {"aux_loss_alpha", "ep_size", "moe_layer_freq", "seq_aux"}) config.ignore(key);
  for (const char* key : {"index_head_dim", "index_n_heads", "index_skip_topk_offset", "index_topk_freq",
                          "index_topk_pattern", "indexer_rope_interleave", "indexer_types"}) {
    config.ignore(key);
  }
  check_layer_types(config);
  s.max_positions = std::min(s.max_positions, read_chosen(config));
  return s;
}

DecoderSpec read(const Config& config) { return read_as("deepseek_v32", 1e-6, 8, 4, config); }
DecoderSpec read_glm(const Config& config) { return read_as("glm_moe_dsa", 1e-5, 1, 1, config); }

std::unique_ptr<Model> build_from(DecoderSpec s, const Config& config, LoadContext& context, int max_len) {
  const int positions = config.get("max_position_embeddings", s.max_positions);
  if (positions > s.max_positions && context.dry) {
    log::warning("{}: sparse attention is not supported; the context is limited to {} tokens (index_topk)",
                 config.origin(), s.max_positions);
  }
  for (int i = 0; i < s.depth(); ++i) {
    ignore_tensors(context, fmt::format("{}.{}.{}.self_attn.indexer.", s.names.body, s.names.layers, i));
  }
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return build_from(read(config), config, context, max_len);
}
std::unique_ptr<Model> build_glm(const Config& config, LoadContext& context, int max_len) {
  return build_from(read_glm(config), config, context, max_len);
}

std::unique_ptr<Model> build_predictor(const Config& config, LoadContext& context, const Model& model, int max_len) {
  return next_token_layer(config, read, context, model, max_len);
}
std::unique_ptr<Model> build_glm_predictor(const Config& config, LoadContext& context, const Model& model,
                                           int max_len) {
  return next_token_layer(config, read_glm, context, model, max_len);
}

const ModelFamily family{.name = "deepseek_v32",
                         .architectures = {"DeepseekV32ForCausalLM"},
                         .build = build,
                         .build_predictor = build_predictor};
const ModelFamily glm{.name = "glm_moe_dsa",
                      .architectures = {"GlmMoeDsaForCausalLM"},
                      .build = build_glm,
                      .build_predictor = build_glm_predictor};
const Registry<ModelFamily> registered{family}, registered_glm{glm};

}  // namespace
}  // namespace sluice::models::deepseek_v32
