// Mistral: Llama's graph with a sliding window in every layer (Jiang et al. 2023, arXiv:2310.06825).
#include "nn/decoder_config.h"

namespace sluice::models::mistral {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "mistral");
  read_one_window(config, s, 0);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mistral", .architectures = {"MistralForCausalLM", "GritLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mistral
