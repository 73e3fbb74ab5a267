// Llama 1 to 3, and the many checkpoints with the same graph that use its name.
#include "nn/decoder_config.h"

namespace sluice::models::llama {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "llama");
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "llama",
    .architectures = {"LlamaForCausalLM", "LLaMAForCausalLM", "AquilaModel", "AquilaForCausalLM", "XverseForCausalLM",
                      "IQuestCoderForCausalLM", "TeleChat3ForCausalLM"},
    .build = build,
    .ignored = {{"activation", "\"swiglu\""}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::llama
