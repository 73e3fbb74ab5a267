// Llama 4, text: attention within chunks, except in every fourth layer. Those layers are not rotated and scale queries
// by position. Each row takes one routed expert and a shared one.
#include <fmt/core.h>

#include "base/json.h"
#include "nn/decoder_config.h"

namespace sluice::models::llama4_text {
namespace {

// Reads a boolean that some checkpoints store as a number.
bool read_flag(const Config& config, const char* key, bool fallback) {
  const Json* value = config.find(key);
  return value != nullptr && value->is_number() ? *value != 0 : config.get(key, fallback);
}

// Rotated layers attend within chunks; the others see the whole text.
void read_layers(const Config& config, DecoderSpec& s) {
  const int interval = read_positive(config, "no_rope_layer_interval", config.get("no_rope_layer_interval", 4));
  std::vector<int> rotated;
  for (int i = 0; i < s.depth(); ++i) rotated.push_back((i + 1) % interval != 0 ? 1 : 0);
  if (const auto given = config.get("no_rope_layers", std::vector<int>{}); !given.empty()) rotated = given;
  std::vector<std::string> kinds;
  for (const int rope : rotated) kinds.emplace_back(rope != 0 ? "chunked_attention" : "full_attention");
  kinds = config.get("layer_types", kinds);
  for (const auto& [key, size] : {std::pair{"no_rope_layers", rotated.size()}, {"layer_types", kinds.size()}}) {
    if (size != s.layers.size()) {
      config.refuse(key, fmt::format("has {} entries for {} layers", size, s.layers.size()));
    }
  }
  const int chunk = static_cast<int>(read_or_off(config, "attention_chunk_size", 8192));
  if (chunk < 0) config.refuse("attention_chunk_size", "must not be negative");
  RopeSpec temperature;
  temperature.type = "none";
  temperature.rotary_dim = s.attention.head_dim;
  temperature.temperature = config.get("attn_scale", 0.1);
  temperature.temperature_period = config.get("floor_scale", 8192.0);
  temperature.temperature_shift = 1;
  if (!(temperature.temperature_period > 0)) config.refuse("floor_scale", "must be positive");
  const bool tuned = read_flag(config, "attn_temperature_tuning", true) && temperature.temperature != 0;
  if (tuned) s.ropes.push_back(temperature);
  AttentionSpec normed = s.attention;
  if (config.get("use_qk_norm", true)) {
    normed.qk_norm = QkNorm::kHeadAfterRope;
    normed.qk_norm_spec.weight = false;
  }
  for (int i = 0; i < s.depth(); ++i) {
    if (kinds[i] != "chunked_attention" && kinds[i] != "full_attention") {
      config.refuse("layer_types",
                    fmt::format("unknown type '{}' (expected full_attention or chunked_attention)", kinds[i]));
    }
    LayerSpec& layer = s.layers[i];
    AttentionSpec attention = rotated[i] != 0 ? normed : s.attention;
    attention.chunk = kinds[i] == "chunked_attention" ? chunk : 0;
    if (rotated[i] == 0) layer.rope = -1;
    if (rotated[i] == 0 && tuned) layer.query_rope = 1;
    layer.mixer = [attention](const Weights& w, int hidden) {
      return std::make_unique<Attention>(w / "self_attn", attention, hidden);
    };
  }
}

void read_mlp(const Config& config, DecoderSpec& s) {
  const int inner = s.mlp.inner;  // width of the experts; dense layers have their own
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", inner);
  s.mlp.inner = read_positive(config, "intermediate_size_mlp", config.get("intermediate_size_mlp", 16384));
  s.names.mlp = "feed_forward";
  s.moe.score = ops::Routing::Score::kSigmoid;
  s.moe.scaled_inputs = true;
  s.moe.layout = ExpertLayout::kTransposedHalves;
  s.moe.router = "router";
  s.moe.gate = "experts.gate_up_proj";
  s.moe.down = "experts.down_proj";
  s.moe.shared = "shared_expert";
  s.moe.shared_inner = inner;
  const int step = read_positive(config, "interleave_moe_layer_step", config.get("interleave_moe_layer_step", 1));
  std::vector<int> sparse;
  for (int i = step - 1; i < s.depth(); i += step) sparse.push_back(i);
  if (config.has("moe_layers")) sparse = config.at<std::vector<int>>("moe_layers");
  for (LayerSpec& layer : s.layers) layer.moe = false;
  for (const int i : sparse) {
    if (i < 0 || i >= s.depth())
      config.refuse("moe_layers", fmt::format("layer {} does not exist in a model of {} layers", i, s.depth()));
    s.layers[i].moe = true;
  }
  for (const char* key : {"router_jitter_noise", "for_llm_compressor"}) config.ignore(key);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "llama4_text", {.norm_eps = 1e-5, .rope = {.theta = 500000.0}});
  read_attention_bias(config, s, true);
  s.attention.interleaved_rope = true;
  read_layers(config, s);
  read_mlp(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "llama4_text", .architectures = {"Llama4ForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::llama4_text
