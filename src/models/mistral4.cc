// Mistral 4 (Small 4) and Mistral Large 3: DeepSeek's latent attention, queries scaled by a factor that grows with the
// position, and experts chosen by softmax.
#include "base/json.h"
#include "models/deepseek.h"

namespace sluice::models::mistral4 {
namespace {

constexpr const char* kRope = R"({"rope_type": "yarn", "rope_theta": 10000, "factor": 128, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 8192})";

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
  DecoderSpec s = latent_llama_like(config, "mistral4",
                                    {.q_rank = 1024,
                                     .kv_rank = 256,
                                     .nope_dim = 64,
                                     .rope_is_part = true,
                                     .rope = {.temperature = true, .parameters = kRope}});
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

// Large 3's rotation in the spelling of Mistral 4. YaRN does not scale cosines and sines, and scales the scores only
// with "apply_yarn_scaling". The scaling of queries has an object of its own.
Json small4_rope(const Config& config) {
  if (!config.has("rope_parameters")) config.refuse("rope_parameters", "is missing");
  const Config published = config.object("rope_parameters");
  Json rope = published.values();
  if (published.get("apply_yarn_scaling", true)) {
    if (!rope.contains("mscale")) rope["mscale"] = 1.0;
  } else {
    rope.erase("mscale_all_dim");
    rope["attention_factor"] = 1.0;
  }
  rope.erase("apply_yarn_scaling");
  const Config scaling = config.object("llama_4_scaling");
  rope["llama_4_scaling_beta"] = scaling.at<double>("beta");
  const int period = scaling.at<int>("original_max_position_embeddings");
  if (period != published.get("original_max_position_embeddings", 0)) {
    scaling.refuse("original_max_position_embeddings", "must be that of rope_parameters");
  }
  refuse_unread(scaling);
  return rope;
}

std::unique_ptr<Model> build_large3(const Config& published, LoadContext& context, int max_len) {
  Json values = published.values();
  values["rope_parameters"] = small4_rope(published);
  values.erase("llama_4_scaling");
  for (const auto& [key, value] : published.values().items()) published.ignore(key);
  const Config config(std::move(values), published.origin());
  DecoderSpec s = latent_llama_like(config, "mistral_large3", {.rope = {.temperature = true}});
  if (s.ropes[0].temperature != 0) {
    s.ropes.push_back(take_temperature(s.ropes[0]));
    for (LayerSpec& layer : s.layers) layer.query_rope = 1;
  }
  if (config.get("scoring_func", std::string("softmax")) != "softmax") config.refuse("scoring_func", "must be softmax");
  if (config.has("topk_method")) config.refuse("topk_method", "must be null");
  read_deepseek_experts(config, s, true, {.default_shared = 1});
  s.moe.score = ops::Routing::Score::kSoftmax;
  s.moe.correction = "";
  read_deepseek_layers(config, s);
  refuse_unread(config);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mistral4", .architectures = {"Mistral4ForCausalLM"}, .build = build};
const ModelFamily large3{
    .name = "mistral_large3", .architectures = {"MistralLarge3ForCausalLM"}, .build = build_large3};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{family}, Registry<ModelFamily>{large3}};

}  // namespace
}  // namespace sluice::models::mistral4
