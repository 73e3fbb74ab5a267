// ALBERT (arXiv:1909.11942): BERT whose layers share their weights in groups, with narrower embeddings.
#include <fmt/core.h>

#include "models/bert.h"

namespace sluice::models::albert {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = bert_like(config, context, "albert", "albert");
  s.embedding_width = read_positive(config, "embedding_size", config.get("embedding_size", 128));
  s.mlp.activation = read_activation(config, "hidden_act", "gelu_new");
  s.mlp.in = {"ffn"};
  s.mlp.out = "ffn_output";
  s.attention.qkv = {"attention.query", "attention.key", "attention.value"};
  s.attention.out = "attention.dense";
  s.names.projection = "encoder.embedding_hidden_mapping_in";
  s.names.attention_norm = "attention.LayerNorm";
  s.names.mlp_norm = "full_layer_layer_norm";
  const int groups = read_positive(config, "num_hidden_groups", config.get("num_hidden_groups", 1));
  const int inner = read_positive(config, "inner_group_num", config.get("inner_group_num", 1));
  const int depth = static_cast<int>(s.layers.size());
  if (groups > depth) config.refuse("num_hidden_groups", fmt::format("{} is more than the {} layers", groups, depth));
  s.layers.clear();
  for (int i = 0; i < depth; ++i) {
    const int group = static_cast<int>(i / (static_cast<double>(depth) / groups));
    for (int j = 0; j < inner; ++j) {
      s.layers.push_back({.name = fmt::format("encoder.albert_layer_groups.{}.albert_layers.{}", group, j)});
    }
  }
  const DenseSpec pooler{.name = s.names.body.empty() ? "pooler" : "albert.pooler",
                         .outputs = s.hidden,
                         .activation = ops::Activation::kTanh};
  for (const char* key : {"net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"}) {
    config.ignore(key);  // only in configurations written for TensorFlow; no code reads them
  }
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst, {pooler, {.name = "classifier"}},
                          {"pooler.", "albert.pooler.", "predictions.", "sop_classifier."});
}

const ModelFamily family{
    .name = "albert",
    .architectures = {"AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining", "AlbertForSequenceClassification"},
    .build = build,
    .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::albert
