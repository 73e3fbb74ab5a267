// Rnj-1 (Essential AI): Gemma 3 without windows.
#include <fmt/core.h>

#include "models/gemma.h"

namespace sluice::models::rnj1 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma_like(config, context, "rnj1", "hidden_activation", {.layer_type = "full_attention"});
  use_gemma2_blocks(config, s, 0.0, 0.0);
  s.attention.soft_cap = 0.0f;  // as in Gemma 3
  s.attention.qk_norm = QkNorm::kHead;
  s.attention.qk_norm_spec = s.norm;
  for (const std::string& kind : config.get("layer_types", std::vector<std::string>{})) {
    if (kind != "full_attention") config.refuse("layer_types", fmt::format("'{}' is not supported", kind));
  }
  // Without sliding layers, these have no influence.
  for (const char* key :
       {"sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "rnj1", .architectures = {"Rnj1ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::rnj1
