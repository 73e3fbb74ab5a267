// ELECTRA (arXiv:2003.10555): BERT whose embeddings may be narrower than its layers.
#include "models/bert.h"

namespace sluice::models::electra {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = bert_like(config, context, "electra", "electra");
  s.embedding_width = read_positive(config, "embedding_size", config.get("embedding_size", 128));
  if (s.embedding_width != s.hidden) s.names.projection = "embeddings_project";
  for (const char* key : {"summary_type", "summary_use_proj", "summary_activation"}) config.ignore(key);
  const int hidden = s.hidden;
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst,
                          roberta_head(hidden, ops::Activation::kGelu),
                          {"discriminator_predictions.", "generator_predictions.", "generator_lm_head."});
}

const ModelFamily family{.name = "electra",
                         .architectures = {"ElectraModel", "ElectraForPreTraining", "ElectraForSequenceClassification"},
                         .build = build,
                         .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::electra
