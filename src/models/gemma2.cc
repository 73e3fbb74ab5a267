// Gemma 2: norms before and after both sublayers, soft caps, a window in every other layer (arXiv:2408.00118).
#include "models/gemma.h"

namespace sluice::models::gemma2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "gemma2", "hidden_activation");
  use_gemma2_blocks(config, s, 50.0, 30.0);
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  read_windows(config, s, window, [](int layer) { return layer % 2 == 0; });
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "gemma2",
    .architectures = {"Gemma2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"hidden_act"},           // hidden_activation is read instead
            {"sliding_window_size"},  // sliding_window is read instead
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gemma2
