// MPNet (arXiv:2004.09297): RoBERTa's positions, and biases by distance that all layers share.
#include "models/bert.h"

namespace sluice::models::mpnet {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  EncoderSpec s = roberta_like(config, context, "mpnet", "mpnet");
  constexpr int kPad = 1;  // transformers uses 1, whatever pad_token_id says
  s.max_positions += s.position_offset - (kPad + 1);
  s.position_offset = kPad + 1;
  s.types = 0;
  s.attention.qkv = {"attention.attn.q", "attention.attn.k", "attention.attn.v"};
  s.attention.out = "attention.attn.o";
  s.names.attention_norm = "attention.LayerNorm";
  s.relative_bias = "encoder.relative_attention_bias";
  s.relative_buckets = config.get("relative_attention_num_buckets", 32);
  // The reference always uses 32 buckets, whatever the table's size.
  if (s.relative_buckets != 32) config.refuse("relative_attention_num_buckets", "must be 32");
  const int hidden = s.hidden;
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kFirst,
                          roberta_head(hidden, ops::Activation::kTanh), {"pooler.", "mpnet.pooler.", "lm_head."});
}

const ModelFamily family{.name = "mpnet",
                         .architectures = {"MPNetModel", "MPNetForMaskedLM", "MPNetForSequenceClassification"},
                         .build = build,
                         .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mpnet
