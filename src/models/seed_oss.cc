// Seed-OSS: Llama's graph with biases on q, k and v.
#include "nn/decoder_config.h"

namespace sluice::models::seed_oss {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "seed_oss", {.head_dim = 128});
  read_attention_bias(config, s, false, true);
  s.attention.out_bias = config.get("attention_out_bias", false);
  s.mlp.bias = config.get("mlp_bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "seed_oss", .architectures = {"SeedOssForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::seed_oss
