// EXAONE 4: norms of what the halves of a block add, and of queries and keys; rotation in sliding layers only.
#include "nn/decoder_config.h"

namespace sluice {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "exaone4", {.norm_eps = 1e-5});
  s.attention.qk_norm = QkNorm::kHead;
  use_post_norms(s);
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const bool given = config.has("layer_types");
  // Checkpoints spell the pattern as "LLLG" as well; with layer_types it says nothing new.
  const int pattern = given ? 0 : config.get("sliding_window_pattern", 4);
  if (given) config.ignore("sliding_window_pattern");
  const auto sliding =
      read_windows(config, s, window, [=](int layer) { return pattern > 0 && (layer + 1) % pattern != 0; });
  for (int i = 0; i < s.depth(); ++i) s.layers[i].rope = window == 0 || sliding[i] ? 0 : -1;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "exaone4", .architectures = {"Exaone4ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice
