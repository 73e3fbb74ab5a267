// EuroBERT (arXiv:2503.05500): Llama's graph with bidirectional attention.
#include "nn/decoder_config.h"
#include "sluice/error.h"

namespace sluice::models::eurobert {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  if (context.task != Task::kEmbed) config.refuse("architectures", "EuroBERT is supported for --task embed only");
  DecoderSpec s = llama_like(config, "eurobert", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  s.attention.causal = false;
  for (const char* key : {"classifier_pooling", "mask_token", "mask_token_id"}) config.ignore(key);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "eurobert", .architectures = {"EuroBertModel", "EuroBertForMaskedLM"}, .build = build, .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::eurobert
