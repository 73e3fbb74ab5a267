// Mistral 4 (Small 4): DeepSeek's latent attention, queries scaled by a factor that grows with the position, and
// experts chosen by softmax.
#include "models/deepseek.h"

namespace sluice::models::mistral4 {
namespace {

// Moves the position scaling of whole queries into a rotation of the queries alone that turns nothing.
RopeSpec take_temperature(RopeSpec& rope) {
  RopeSpec temperature;
  temperature.type = "none";
  temperature.rotary_dim = 2;
  temperature.temperature = rope.temperature;
  temperature.temperature_period = rope.temperature_period;
  rope.temperature = 0;
  return temperature;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  if (!config.has("rope_parameters")) config.refuse("rope_parameters", "is missing");
  DecoderSpec s = latent_llama_like(
      config, "mistral4",
      {.q_rank = 1024, .kv_rank = 256, .nope_dim = 64, .rope_is_part = true, .rope = {.temperature = true}});
  if (s.ropes[0].temperature != 0) {
    s.ropes.push_back(take_temperature(s.ropes[0]));
    for (LayerSpec& layer : s.layers) layer.query_rope = 1;
  }
  read_deepseek_experts(config, s, true, {.default_shared = 1});
  s.moe.score = ops::Routing::Score::kSoftmax;
  s.moe.correction = "";
  s.moe.layout = ExpertLayout::kStackedParameters;
  s.moe.gate = "experts.gate_up_proj";
  s.moe.down = "experts.down_proj";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mistral4", .architectures = {"Mistral4ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mistral4
