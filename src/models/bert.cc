// BERT (arXiv:1810.04805) and families with exactly the same graph.
#include "models/bert.h"

#include <fmt/core.h>

#include <cmath>

namespace sluice {

EncoderSpec bert_like(const Config& c, const LoadContext& context, std::string family, const std::string& prefix) {
  const DecoderSpec sizes = read_sizes(c, family, {.kv_heads = nullptr, .default_max_positions = 512});
  EncoderSpec s;
  s.family = std::move(family);
  s.vocab = sizes.vocab;
  s.hidden = sizes.hidden;
  s.max_positions = sizes.max_positions;
  s.types = c.get("type_vocab_size", 2);
  if (s.types < 0) c.refuse("type_vocab_size", "must not be negative");
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = static_cast<float>(c.get("layer_norm_eps", 1e-12)), .bias = true};
  s.attention = sizes.attention;
  s.attention.qkv_bias = s.attention.out_bias = true;
  s.attention.qkv = {"attention.self.query", "attention.self.key", "attention.self.value"};
  s.attention.out = "attention.output.dense";
  s.mlp = {.inner = sizes.mlp.inner,
           .gated = false,
           .bias = true,
           .activation = read_activation(c, "hidden_act", "gelu"),
           .in = {"intermediate.dense"},
           .out = "output.dense"};
  s.names.body = below_body(context, prefix, s.names.words);
  s.names.attention_norm = "attention.output.LayerNorm";
  s.names.mlp_norm = "output.LayerNorm";
  for (int i = 0; i < sizes.depth(); ++i) s.layers.push_back({.name = fmt::format("encoder.layer.{}", i)});
  const auto positions = c.get("position_embedding_type", std::string("absolute"));
  if (positions != "absolute") c.refuse("position_embedding_type", fmt::format("'{}' is not supported", positions));
  if (c.get("is_decoder", false)) c.refuse("is_decoder", "is not supported");
  if (c.get("add_cross_attention", false)) c.refuse("add_cross_attention", "is not supported");
  return s;
}

void use_fused_qkv(EncoderSpec& s, std::string qkv, std::string out, bool bias) {
  s.attention.qkv = {std::move(qkv)};
  s.attention.out = std::move(out);
  s.attention.qkv_bias = s.attention.out_bias = bias;
}

}  // namespace sluice

namespace sluice::models::bert {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = bert_like(config, context, "bert", "bert");
  const std::string pooler = s.names.body.empty() ? "pooler.dense" : "bert.pooler.dense";
  const DenseSpec dense{.name = pooler, .outputs = s.hidden, .activation = ops::Activation::kTanh};
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst, {dense, {.name = "classifier"}},
                          {"pooler.", "bert.pooler.", "cls."});
}

const ModelFamily family{
    .name = "bert",
    .architectures = {"BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"},
    .build = build,
    .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::bert
