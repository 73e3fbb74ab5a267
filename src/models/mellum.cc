// Mellum 2 (JetBrains): Qwen 3 with experts, and a separate rotation for layers with a window.
#include "nn/decoder_config.h"

namespace sluice::models::mellum {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "mellum", {.head_dim = 128, .rope = {.theta = 500000.0, .layer_type = "full_attention"}});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  s.ropes.push_back(read_sliding_rope(config, s, 10000.0));
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 1024));
  const auto sliding = read_windows(config, s, window, [](int) { return false; });
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 896));
  read_experts(config, s, config.has("num_experts") ? "num_experts" : "num_local_experts", "num_experts_per_tok",
               inner);
  s.moe.normalize = config.get("norm_topk_prob", true);
  read_mlp_layer_types(config, s);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = sliding[i] ? 1 : 0;
  // Multi-token-prediction layers after the last one; results are the same without them.
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"}) {
    config.ignore(key);
  }
  ignore_tensors(context, "mtp.");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mellum", .architectures = {"MellumForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mellum
