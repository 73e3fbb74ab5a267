// InternLM 1 and 3: Llama's graph with biases.
#include "nn/decoder_config.h"

namespace sluice::models::internlm3 {
namespace {

std::unique_ptr<Model> build_first(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "internlm");
  s.attention.qkv_bias = s.attention.out_bias = config.get("bias", true);
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "internlm3");
  s.attention.qkv_bias = config.get("qkv_bias", false);
  s.attention.out_bias = s.mlp.bias = config.get("bias", false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily first{.name = "internlm", .architectures = {"InternLMForCausalLM"}, .build = build_first};
const ModelFamily family{.name = "internlm3", .architectures = {"InternLM3ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{first}, Registry<ModelFamily>{family}};

}  // namespace
}  // namespace sluice::models::internlm3
