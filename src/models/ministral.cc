// Ministral: Mistral with a window per layer.
#include "nn/decoder_config.h"

namespace sluice::models::ministral {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "ministral");
  read_windows(config, s, static_cast<int>(read_or_off(config, "sliding_window", 4096)), [](int) { return true; });
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "ministral", .architectures = {"MinistralForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::ministral
