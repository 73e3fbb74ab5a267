// BitNet b1.58: Llama's graph with a norm inside both sublayers and squared ReLU (arXiv:2504.12285).
#include "nn/decoder_config.h"

namespace sluice::models::bitnet {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "bitnet", {.norm_eps = 1e-5, .activation = "relu2", .rope = {.theta = 500000.0}});
  read_attention_bias(config, s, true);
  s.attention.sub_norm = s.mlp.sub_norm = true;
  s.attention.sub_norm_spec = s.mlp.sub_norm_spec = s.norm;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "bitnet", .architectures = {"BitNetForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::bitnet
