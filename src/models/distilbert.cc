// DistilBERT (arXiv:1910.01108): BERT without token types, under its own names and configuration keys.
#include <fmt/core.h>

#include <cmath>

#include "models/bert.h"

namespace sluice::models::distilbert {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const DecoderSpec sizes = read_sizes(config, "distilbert",
                                       {.hidden = "dim",
                                        .layers = "n_layers",
                                        .heads = "n_heads",
                                        .kv_heads = nullptr,
                                        .inner = "hidden_dim",
                                        .default_max_positions = 512});
  EncoderSpec s;
  s.family = sizes.family;
  s.vocab = sizes.vocab;
  s.hidden = sizes.hidden;
  s.max_positions = sizes.max_positions;
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = 1e-12f, .bias = true};
  s.attention = sizes.attention;
  s.attention.qkv_bias = s.attention.out_bias = true;
  s.attention.qkv = {"attention.q_lin", "attention.k_lin", "attention.v_lin"};
  s.attention.out = "attention.out_lin";
  s.mlp = {.inner = sizes.mlp.inner,
           .gated = false,
           .bias = true,
           .activation = read_activation(config, "activation", "gelu"),
           .in = {"ffn.lin1"},
           .out = "ffn.lin2"};
  s.names.body = below_body(context, "distilbert", s.names.words);
  s.names.attention_norm = "sa_layer_norm";
  s.names.mlp_norm = "output_layer_norm";
  for (int i = 0; i < sizes.depth(); ++i) s.layers.push_back({.name = fmt::format("transformer.layer.{}", i)});
  config.ignore("sinusoidal_pos_embds");  // how the table was initialized; it is stored either way
  const DenseSpec dense{.name = "pre_classifier", .outputs = s.hidden, .activation = ops::Activation::kRelu};
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst, {dense, {.name = "classifier"}},
                          {"vocab_transform.", "vocab_layer_norm.", "vocab_projector."});
}

const ModelFamily family{
    .name = "distilbert",
    .architectures = {"DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"},
    .build = build,
    .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::distilbert
