// DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5: DeepSeek-V3 whose layers see only the index_topk tokens that an indexer
// chooses. A text of at most that many tokens is seen in full. Contexts are limited to that length, and indexers are
// not loaded.
#include <fmt/core.h>

#include <algorithm>

#include "base/log.h"
#include "models/deepseek.h"

namespace sluice::models::deepseek_v32 {
namespace {

void end_where_choosing_begins(const Config& config, LoadContext& context, DecoderSpec& s) {
  const int chosen = read_positive(config, "index_topk", config.get("index_topk", 2048));
  if (s.max_positions > chosen && context.dry) {
    log::warning("{}: sparse attention is not supported; the context is limited to {} tokens (index_topk)",
                 config.origin(), chosen);
  }
  s.max_positions = std::min(s.max_positions, chosen);
  for (int i = 0; i < s.depth(); ++i) {
    ignore_tensors(context, fmt::format("{}.{}.{}.self_attn.indexer.", s.names.body, s.names.layers, i));
  }
  for (const char* key : {"index_head_dim", "index_n_heads", "index_skip_topk_offset", "index_topk_freq",
                          "index_topk_pattern", "indexer_rope_interleave", "indexer_types"}) {
    config.ignore(key);
  }
  for (const std::string& kind : config.get("layer_types", std::vector<std::string>{})) {
    // The first name is that of transformers 5.17, the other one that of later versions.
    if (kind == "deepseek_sparse_attention" || kind == "indexed_attention") continue;
    config.refuse("layer_types",
                  fmt::format("unknown type '{}' (expected deepseek_sparse_attention or indexed_attention)", kind));
  }
}

std::unique_ptr<Model> build_as(const char* name, double norm_eps, int groups, int top_groups, const Config& config,
                                LoadContext& context, int max_len) {
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
  end_where_choosing_begins(config, context, s);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return build_as("deepseek_v32", 1e-6, 8, 4, config, context, max_len);
}
std::unique_ptr<Model> build_glm(const Config& config, LoadContext& context, int max_len) {
  return build_as("glm_moe_dsa", 1e-5, 1, 1, config, context, max_len);
}

const ModelFamily family{.name = "deepseek_v32", .architectures = {"DeepseekV32ForCausalLM"}, .build = build};
const ModelFamily glm{.name = "glm_moe_dsa", .architectures = {"GlmMoeDsaForCausalLM"}, .build = build_glm};
const Registry<ModelFamily> registered{family}, registered_glm{glm};

}  // namespace
}  // namespace sluice::models::deepseek_v32
