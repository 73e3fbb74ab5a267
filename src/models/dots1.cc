// dots.llm1: Qwen 3's attention with DeepSeek-V3's experts (arXiv:2506.05767).
#include "nn/decoder_config.h"

namespace sluice::models::dots1 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "dots1");
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const int first = config.get("max_window_layers", 62);
  read_windows(config, s, window, [=](int layer) { return layer >= first; });
  read_deepseek_experts(config, s, false);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "dots1",
    .architectures = {"Dots1ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"moe_layer_freq", "1"},
            {"scoring_func", "\"noaux_tc\""},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::dots1
