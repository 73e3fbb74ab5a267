// ERNIE 4.5, dense: Llama's graph, rotating adjacent pairs.
#include "nn/decoder_config.h"

namespace sluice::models::ernie4_5 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "ernie4_5",
                             {.head_dim = 128, .norm_eps = 1e-5, .tied_head = true, .rope = {.theta = 500000.0}});
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = config.get("use_bias", false);
  s.attention.interleaved_rope = true;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "ernie4_5", .architectures = {"Ernie4_5ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::ernie4_5
