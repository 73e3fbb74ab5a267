// MiMo 7B (Xiaomi, arXiv:2505.07608): Qwen 2's graph. Its multi-token-prediction layers are not loaded.
#include "nn/decoder_config.h"

namespace sluice::models::mimo {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "mimo");
  read_attention_bias(config, s, false, true);
  read_qwen_windows(config, s, 28);
  if (config.get("use_mrope", false)) config.refuse("use_mrope", "true is not supported");
  config.ignore("num_nextn_predict_layers");
  ignore_tensors(context, "model.mtp_layers.");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mimo", .architectures = {"MiMoForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mimo
