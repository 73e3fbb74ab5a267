// Jina Embeddings 3 (arXiv:2409.10173) without its adapters, as stored by transformers: XLM-RoBERTa with rotations.
#include <fmt/core.h>

#include "models/bert.h"

namespace sluice::models::jina_embeddings_v3 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = bert_like(config, context, "jina_embeddings_v3", "roberta");
  s.norm.eps = static_cast<float>(config.get("layer_norm_eps", 1e-5));
  use_fused_qkv(s, "mixer.Wqkv", "mixer.out_proj", true);
  s.mlp.in = {"mlp.fc1"};
  s.mlp.out = "mlp.fc2";
  s.names.positions = "";
  s.names.embedding_norm = "emb_ln";
  s.names.attention_norm = "norm1";
  s.names.mlp_norm = "norm2";
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].name = fmt::format("encoder.layers.{}", i);
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, {.theta = 20000.0})};
  const int hidden = s.hidden;
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst,
                          roberta_head(hidden, ops::Activation::kTanh), {"pooler.", "roberta.pooler.", "lm_head."});
}

const ModelFamily family{.name = "jina_embeddings_v3",
                         .architectures = {"JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForSequenceClassification"},
                         .build = build,
                         .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::jina_embeddings_v3
