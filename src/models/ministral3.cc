// Ministral 3: Mistral whose queries are scaled by a factor that grows with the position (arXiv:2601.08584).
#include "nn/decoder_config.h"

namespace sluice::models::ministral3 {
namespace {

constexpr const char* kRope = R"({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16384})";

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "ministral3", {.norm_eps = 1e-5, .rope = {.temperature = true, .parameters = kRope}});
  read_one_window(config, s, 0);
  s.ropes.push_back(s.ropes[0]);
  s.ropes[0].temperature = 0;
  for (LayerSpec& layer : s.layers) layer.query_rope = 1;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "ministral3", .architectures = {"Ministral3ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::ministral3
