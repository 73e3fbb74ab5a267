// ModernBERT (arXiv:2412.13663): norms before the sublayers, rotations, a gated MLP, and two-sided windows in two of
// three layers.
#include <fmt/core.h>

#include "models/bert.h"

namespace sluice::models::modernbert {
namespace {

// Sliding layers have their own rotation base, in either spelling of the configuration.
RopeSpec layer_rope(const Config& config, const EncoderSpec& s, const char* layer_type, const char* key, double theta) {
  return read_rope(config, s.attention.head_dim, s.max_positions,
                   {.theta = config.get(key, theta), .layer_type = layer_type});
}

void read_layers(const Config& config, EncoderSpec& s, int depth) {
  const int every = read_positive(config, "global_attn_every_n_layers", config.get("global_attn_every_n_layers", 3));
  // The key counts both sides; the window counts one side and the row itself.
  const int window = read_positive(config, "local_attention", config.get("local_attention", 128)) / 2 + 1;
  DecoderSpec layers;  // only to call the function that reads windows
  layers.layers.resize(static_cast<size_t>(depth));
  const std::vector<bool> local = read_windows(config, layers, window, [=](int i) { return i % every != 0; });
  for (int i = 0; i < depth; ++i) {
    s.layers.push_back({.name = fmt::format("layers.{}", i),
                        .window = local[i] ? window : 0,
                        .rope = local[i] ? 1 : 0,
                        .first_norm = i > 0});
  }
  s.ropes = {layer_rope(config, s, "full_attention", "global_rope_theta", 160000.0),
             layer_rope(config, s, "sliding_attention", "local_rope_theta", 10000.0)};
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const DecoderSpec sizes = read_sizes(config, "modernbert", {.kv_heads = nullptr, .default_max_positions = 8192});
  EncoderSpec s;
  s.family = sizes.family;
  s.vocab = sizes.vocab;
  s.hidden = sizes.hidden;
  s.max_positions = sizes.max_positions;
  s.placement = NormPlacement::kBefore;
  s.norm = read_layer_norm(config, "norm_eps", config.get("norm_bias", false));
  s.attention = sizes.attention;
  use_fused_qkv(s, "attn.Wqkv", "attn.Wo", config.get("attention_bias", false));
  s.mlp = {.inner = sizes.mlp.inner,
           .bias = config.get("mlp_bias", false),
           .activation = read_activation(config, "hidden_activation", "gelu"),
           .in = {"mlp.Wi"},
           .out = "mlp.Wo"};
  s.names = {.words = "embeddings.tok_embeddings",
             .positions = "",
             .embedding_norm = "embeddings.norm",
             .attention_norm = "attn_norm",
             .mlp_norm = "mlp_norm",
             .final_norm = "final_norm"};
  s.names.body = below_body(context, "model", s.names.words);
  read_layers(config, s, sizes.depth());
  const DenseSpec dense{.name = "head.dense",
                        .outputs = s.hidden,
                        .bias = config.get("classifier_bias", false),
                        .activation = read_activation(config, "classifier_activation", "gelu"),
                        .norm_name = "head.norm",
                        .norm = s.norm};
  const auto pooling = config.get("classifier_pooling", std::string("cls"));
  if (pooling != "cls" && pooling != "mean") {
    config.refuse("classifier_pooling", fmt::format("unknown value '{}' (expected cls or mean)", pooling));
  }
  // These keys concern training, the masked-word head, other kernels, or come from other classes.
  for (const char* key : {"decoder_bias", "layer_norm_eps", "position_embedding_type", "sparse_prediction",
                          "sparse_pred_ignore_index", "initializer_cutoff_factor", "deterministic_flash_attn",
                          "reference_compile", "repad_logits_with_grad", "cls_token_id"}) {
    config.ignore(key);
  }
  return encoder_for_task(std::move(s), context, max_len, pooling == "cls" ? ops::Pooling::kFirst : ops::Pooling::kMean,
                          {dense, {.name = "classifier"}}, {"head.", "decoder."});
}

const ModelFamily family{
    .name = "modernbert",
    .architectures = {"ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"},
    .build = build,
    .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::modernbert
