// MiMo 7B (Xiaomi, arXiv:2505.07608): Qwen 2's graph.
#include "nn/decoder_config.h"
#include "nn/next_token_layers.h"

namespace sluice::models::mimo {
namespace {

DecoderSpec read(const Config& config) {
  DecoderSpec s = llama_like(config, "mimo");
  read_attention_bias(config, s, false, true);
  read_qwen_windows(config, s, 28);
  if (config.get("use_mrope", false)) config.refuse("use_mrope", "true is not supported");
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  config.ignore("num_nextn_predict_layers");
  ignore_tensors(context, "model.mtp_layers.");
  return decoder_lm(read(config), context, max_len);
}

std::unique_ptr<Model> build_predictor(const Config& config, LoadContext& context, const Model& model, int max_len) {
  return next_token_layer(config, read, context, model, max_len,
                          {.path = "mtp_layers.0",
                           .norm = "final_layernorm",
                           .input = {.path = {},
                                     .embedding_norm = "token_layernorm",
                                     .hidden_norm = "hidden_layernorm",
                                     .projection = "input_proj",
                                     .hidden_first = true}});
}

const ModelFamily family{
    .name = "mimo", .architectures = {"MiMoForCausalLM"}, .build = build, .build_predictor = build_predictor};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mimo
