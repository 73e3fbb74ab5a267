// Command R7B and A: Command R with sliding windows; only sliding layers are rotated (arXiv:2504.00698).
#include "models/cohere.h"

namespace sluice::models::cohere2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = cohere_like(config, "cohere2", {});
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const int pattern = read_positive(config, "sliding_window_pattern", config.get("sliding_window_pattern", 4));
  const auto sliding = read_windows(config, s, window, [=](int layer) { return (layer + 1) % pattern != 0; });
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = sliding[i] ? 0 : -1;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "cohere2",
    .architectures = {"Cohere2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"layer_switch"},  // sliding_window_pattern is read instead
            {"order_of_interleaved_layers", "\"local_attn_first\""},
            {"position_embedding_type", "\"rope_gptj\""},
            {"rotary_pct", "1.0"},
            {"use_embedding_sharding"},
            {"use_gated_activation", "true"},
            {"use_parallel_block", "true"},
            {"use_parallel_embedding"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::cohere2
