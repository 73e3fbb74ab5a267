// DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5: DeepSeek-V3 whose layers see only the index_topk tokens of a text that an
// indexer selects (nn/attention/token_indexer.h).
#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "models/deepseek.h"
#include "nn/next_token_layers.h"

namespace sluice::models::deepseek_v32 {
namespace {

void check_layer_types(const Config& config) {
  for (const std::string& kind : config.get("layer_types", std::vector<std::string>{})) {
    // The first name is that of transformers 5.17, the other one that of later versions.
    if (kind == "deepseek_sparse_attention" || kind == "indexed_attention") continue;
    config.refuse("layer_types",
                  fmt::format("unknown type '{}' (expected deepseek_sparse_attention or indexed_attention)", kind));
  }
}

// What differs between the families.
struct Defaults {
  const char* name;
  double norm_eps;
  int groups, top_groups;
  int index_heads;
  bool interleaved_index;
};
constexpr Defaults kDeepseek{"deepseek_v32", 1e-6, 8, 4, 64, false}, kGlm{"glm_moe_dsa", 1e-5, 1, 1, 32, true};

// The pattern of index_topk_pattern: a letter for each layer, or a list of indexer_types.
std::vector<std::string> read_pattern(const Config& config) {
  const char* key = "index_topk_pattern";
  if (!config.values().at(key).is_string()) return config.get(key, std::vector<std::string>{});
  std::vector<std::string> types;
  for (const char letter : config.get(key, std::string())) {
    if (letter != 'F' && letter != 'S')
      config.refuse(key, fmt::format("unknown letter '{}' (expected F or S)", letter));
    types.emplace_back(letter == 'F' ? "full" : "shared");
  }
  return types;
}

// Whether each layer shares the selection of the layer before it.
std::vector<bool> read_shared(const Config& config, int layers) {
  const char* key = config.has("indexer_types") ? "indexer_types" : "index_topk_pattern";
  const int every = std::max(config.get("index_topk_freq", 1), 1), skipped = config.get("index_skip_topk_offset", 2);
  std::vector<bool> shared;
  if (!config.has(key)) {
    key = "index_skip_topk_offset";
    for (int i = 0; i < layers; ++i) shared.push_back(std::max(i - skipped + 1, 0) % every != 0);
  } else {
    config.ignore("index_topk_pattern");
    const auto types = config.has("indexer_types") ? config.get(key, std::vector<std::string>{}) : read_pattern(config);
    if (static_cast<int>(types.size()) < layers) {
      config.refuse(key, fmt::format("has {} entries for {} layers", types.size(), layers));
    }
    for (int i = 0; i < layers; ++i) {
      if (types[i] != "full" && types[i] != "shared") {
        config.refuse(key, fmt::format("unknown type '{}' (expected full or shared)", types[i]));
      }
      shared.push_back(types[i] == "shared");
    }
  }
  if (shared[0]) config.refuse(key, "the first layer cannot share a selection (expected full)");
  return shared;
}

TokenIndexerSpec read_indexer(const Config& config, const LatentAttentionSpec& a, const Defaults& d) {
  const auto size = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  if (a.q_rank == 0) config.refuse("q_lora_rank", "must not be 0: the indexer reads the queries' latent vector");
  TokenIndexerSpec s{.top_k = size("index_topk", 2048),
                     .heads = size("index_n_heads", d.index_heads),
                     .dim = size("index_head_dim", 128),
                     .interleaved_rope = config.get("indexer_rope_interleave", d.interleaved_index)};
  if (s.dim < a.rope_dim) {
    config.refuse("index_head_dim", fmt::format("{} is less than qk_rope_head_dim {}", s.dim, a.rope_dim));
  }
  return s;
}

DecoderSpec read_as(const Defaults& d, const Config& config) {
  LatentAttentionSpec attention;
  DecoderSpec s = latent_llama_like(config, d.name, {.norm_eps = d.norm_eps}, &attention);
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
                         .default_groups = d.groups,
                         .default_top_groups = d.top_groups});
  if (!config.has("mlp_layer_types") && config.has("first_k_dense_replace")) read_deepseek_layers(config, s);
  read_mlp_layer_types(config, s);
  for (const char* key : {"aux_loss_alpha", "ep_size", "moe_layer_freq", "seq_aux"}) config.ignore(key);
  config.ignore("index_share_for_mtp_iteration");  // concerns the layers that draft, which have indexers of their own
  check_layer_types(config);
  attention.indexer = read_indexer(config, attention, d);
  const std::vector<bool> shared = read_shared(config, s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    attention.indexer.shared = s.layers[i].follows = shared[i];
    s.layers[i].mixer = latent_attention(attention);
  }
  return s;
}

DecoderSpec read(const Config& config) { return read_as(kDeepseek, config); }
DecoderSpec read_glm(const Config& config) { return read_as(kGlm, config); }

// The layer that predicts further tokens has an indexer of its own.
template <DecoderSpec (*Read)(const Config&)>
DecoderSpec read_with_own_indexer(const Config& config) {
  Json values = config.values();
  for (const char* key : {"indexer_types", "index_topk_pattern", "index_topk_freq"}) values.erase(key);
  return Read(Config(std::move(values), config.origin()));
}

std::unique_ptr<Model> build_from(DecoderSpec s, const Config& config, LoadContext& context, int max_len) {
  for (int i = 0; i < s.depth(); ++i) {  // some checkpoints have indexers that no layer uses
    if (!s.layers[i].follows) continue;
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
  return next_token_layer(config, read_with_own_indexer<read>, context, model, max_len);
}
std::unique_ptr<Model> build_glm_predictor(const Config& config, LoadContext& context, const Model& model,
                                           int max_len) {
  return next_token_layer(config, read_with_own_indexer<read_glm>, context, model, max_len);
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
