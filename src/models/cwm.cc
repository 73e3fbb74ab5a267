// Code World Model (arXiv:2510.02387): Llama 3's graph with a sliding window in three of four layers.
#include "nn/decoder_config.h"

namespace sluice::models::cwm {
namespace {

constexpr const char* kRope = R"({"rope_type": "llama3", "rope_theta": 1e6, "factor": 16,
    "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})";

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "cwm", {.head_dim = 128, .norm_eps = 1e-5, .rope = {.theta = 1e6, .parameters = kRope}});
  s.mlp.bias = config.get("mlp_bias", false);
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 8192));
  read_windows(config, s, window, [](int layer) { return layer % 4 != 0; });
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "cwm", .architectures = {"CwmForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::cwm
