// RoBERTa (arXiv:1907.11692), XLM-RoBERTa (arXiv:1911.02116) and CamemBERT: BERT with other positions.
#include "models/bert.h"

namespace sluice {

EncoderSpec roberta_like(const Config& c, const LoadContext& context, std::string family, const std::string& prefix) {
  EncoderSpec s = bert_like(c, context, std::move(family), prefix);
  s.position_offset = c.get("pad_token_id", 1) + 1;
  s.max_positions -= s.position_offset;
  if (s.position_offset < 0 || s.max_positions < 1) c.refuse("max_position_embeddings", "leaves no positions");
  return s;
}

std::vector<DenseSpec> roberta_head(int hidden, ops::Activation activation) {
  return {{.name = "classifier.dense", .outputs = hidden, .activation = activation}, {.name = "classifier.out_proj"}};
}

}  // namespace sluice

namespace sluice::models::roberta {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = roberta_like(config, context, "roberta", "roberta");
  const int hidden = s.hidden;
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst,
                          roberta_head(hidden, ops::Activation::kTanh), {"pooler.", "roberta.pooler.", "lm_head."});
}

const ModelFamily family{
    .name = "roberta",
    .architectures = {"RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification", "XLMRobertaModel",
                      "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification", "CamembertModel",
                      "CamembertForMaskedLM", "CamembertForSequenceClassification"},
    .build = build,
    .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::roberta
