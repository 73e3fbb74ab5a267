// Youtu LLM: Llama's graph with DeepSeek-V3's latent attention (arXiv:2512.24618).
#include "models/deepseek.h"

namespace sluice::models::youtu {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = latent_llama_like(config, "youtu", {.tied_head = true});
  config.ignore("embedding_initializer_range");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "youtu", .architectures = {"YoutuForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::youtu
