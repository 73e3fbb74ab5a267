// Tele-FLM and FLM-2 (arXiv:2404.16645): Llama with muP's factors on embeddings and logits (arXiv:2304.06875).
#include <fmt/core.h>

#include "nn/decoder_config.h"

namespace sluice::models::teleflm {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "teleflm");
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  if (config.at<bool>("use_mup")) {
    const auto factor = [&](const char* key) {
      const double value = config.at<double>(key);
      if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
      return value;
    };
    s.embedding_scale = static_cast<float>(factor("input_mult"));
    s.logit_scale = static_cast<float>(factor("output_mult") / factor("mup_scale_factor"));
  } else {
    for (const char* key : {"input_mult", "output_mult", "mup_scale_factor"}) config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "teleflm", .architectures = {"TeleFLMForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::teleflm
