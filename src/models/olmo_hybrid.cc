// OLMo Hybrid: OLMo 3's attention with norms after its sublayers, and gated delta nets with norms before theirs.
#include <fmt/core.h>

#include "base/json.h"
#include "models/mamba.h"
#include "nn/recurrent/delta_net.h"

namespace sluice::models::olmo_hybrid {
namespace {

DeltaNetSpec read_delta_net(const Config& config, const DecoderSpec& s) {
  const auto positive = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  DeltaNetSpec d;
  d.heads = positive("linear_num_value_heads", s.attention.heads);
  d.key_heads = positive("linear_num_key_heads", s.attention.heads);
  if (d.heads % d.key_heads != 0) {
    config.refuse("linear_num_key_heads",
                  fmt::format("{} does not divide linear_num_value_heads {}", d.key_heads, d.heads));
  }
  d.key_dim = positive("linear_key_head_dim", static_cast<int>(0.75 * s.hidden / d.key_heads));
  d.value_dim = positive("linear_value_head_dim", 2 * d.key_dim);
  d.conv_width = read_conv_width(config, "linear_conv_kernel_dim", 4);
  d.activation = s.mlp.activation;
  d.norm_eps = 1e-5f;
  d.beta_scale = config.get("linear_allow_neg_eigval", true) ? 2.0f : 1.0f;
  d.layout = DeltaNetLayout::kApart;
  return d;
}

// Published files ask for no rotation by a null: as rope_parameters, as rope_type or as rope_theta.
bool rotates(const Config& config) {
  const Json& values = config.values();
  if (!values.contains("rope_parameters")) return !values.contains("rope_theta") || config.has("rope_theta");
  const Config rope = config.object("rope_parameters");
  if (config.has("rope_theta") || rope.has("rope_theta")) return true;
  return rope.has("rope_type") && !rope.values().contains("rope_theta");
}

// Returns the stored name of a layer's norm; the first checkpoints and transformers' own use different names.
std::string stored_name(const LoadContext& context, const DecoderSpec& s, int layer, const char* name,
                        const char* other) {
  const std::string full = fmt::format("{}.{}.{}.{}.weight", s.names.body, s.names.layers, layer, other);
  return context.checkpoint.find(full) != nullptr ? other : name;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "olmo_hybrid");
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kProjection;
  use_post_norms(s);
  const DeltaNetSpec delta = read_delta_net(config, s);
  std::vector<std::string> kinds(s.layers.size(), "linear_attention");
  for (size_t i = 3; i < kinds.size(); i += 4) kinds[i] = "full_attention";
  if (kinds.size() < 4) kinds.back() = "full_attention";
  kinds = config.get("layer_types", kinds);
  const std::vector<bool> recurrent = read_recurrent_layers(config, kinds, "layer_types", s.depth());
  const bool rotated = rotates(config);
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    if (!rotated) layer.rope = -1;
    layer.names = s.names;
    const std::string second = stored_name(context, s, i, "post_attention_layernorm", "feedforward_layer_norm");
    if (!recurrent[i]) {
      layer.names->attention_post_norm = second;
      continue;
    }
    layer.mixer = mixer_of<DeltaNet>("linear_attn", delta);
    layer.names->attention_norm = stored_name(context, s, i, "input_layernorm", "attention_layer_norm");
    layer.names->attention_post_norm = "";
    layer.names->mlp_norm = second;
    layer.names->mlp_post_norm = "";
  }
  for (const char* key :
       {"linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"}) {
    config.ignore(key);  // concerns initialization
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "olmo_hybrid", .architectures = {"OlmoHybridForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::olmo_hybrid
