// VaultGemma: Gemma 2 without norms of the sublayers' results (arXiv:2510.15001).
#include "models/gemma.h"

namespace sluice::models::vaultgemma {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "vaultgemma", "hidden_activation");
  use_gemma2_blocks(config, s, 50.0, 30.0);
  s.names.attention_post_norm = "";
  s.names.mlp_post_norm = "";
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  read_windows(config, s, window, [](int layer) { return layer % 2 == 0; });
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "vaultgemma", .architectures = {"VaultGemmaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::vaultgemma
