// Step-3.5 Flash (StepFun, 2026): three layers with a window for every one without, each kind with its own number of
// heads and its own rotation; a gate per head; experts chosen by sigmoid scores with corrections.
#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "models/step3.h"

namespace sluice::models::step3p5 {
namespace {

// Reads a list with one entry per layer. Published files append entries for the prediction layers. `fallback` without
// the key.
template <class T>
std::vector<T> read_list(const Config& config, const char* key, int layers, T fallback) {
  auto values = config.get(key, std::vector<T>(static_cast<size_t>(layers), fallback));
  const int predicting = config.get("num_nextn_predict_layers", 0), size = static_cast<int>(values.size());
  if (size != layers && size != layers + predicting)
    config.refuse(key, fmt::format("has {} entries for {} layers", size, layers));
  values.resize(static_cast<size_t>(layers), fallback);
  return values;
}

// The limits of the layers' experts: null and 0 mean none.
std::vector<float> read_limits(const Config& config, const char* key, int layers) {
  std::vector<float> limits;
  const Json* list = config.find(key);
  if (list != nullptr && !list->is_array()) config.refuse(key, "must be a list");
  for (const Json& value : list != nullptr ? *list : Json::array()) {
    if (!value.is_null() && !value.is_number()) config.refuse(key, "must list numbers");
    limits.push_back(value.is_null() ? 0.0f : value.get<float>());
    // The reference limits the activated gate only from above. SiLU is always above -0.28.
    if (limits.back() != 0 && !(limits.back() > 0.3f)) config.refuse(key, "limits must be above 0.3");
  }
  if (list != nullptr && limits.size() < static_cast<size_t>(layers))
    config.refuse(key, fmt::format("has {} entries for {} layers", limits.size(), layers));
  limits.resize(static_cast<size_t>(layers), 0.0f);
  return limits;
}

// Gives every layer its rotation: the lists rope_theta and partial_rotary_factors, and a scaling of the kinds of
// layers in "yarn_only_types".
void read_ropes(const Config& config, DecoderSpec& s, const std::vector<std::string>& kinds) {
  const Json* theta = config.find("rope_theta");
  const std::vector<double> thetas = theta != nullptr && theta->is_array()
                                         ? read_list(config, "rope_theta", s.depth(), 0.0)
                                         : std::vector<double>(s.layers.size(), config.get("rope_theta", 10000.0));
  const std::vector<double> partial = read_list(config, "partial_rotary_factors", s.depth(), 1.0);
  const auto scaled = config.get("yarn_only_types", std::vector<std::string>{});
  if (config.has("rope_scaling") && scaled.empty()) config.refuse("rope_scaling", "needs yarn_only_types");
  std::vector<Json> described;  // what s.ropes were read from
  for (int i = 0; i < s.depth(); ++i) {
    Json values{{"rope_theta", thetas[i]}, {"partial_rotary_factor", partial[i]}};
    if (config.has("rope_scaling") && std::ranges::count(scaled, kinds[i]) > 0)
      values["rope_scaling"] = *config.find("rope_scaling");
    const auto known = std::ranges::find(described, values);
    s.layers[i].rope = static_cast<int>(known - described.begin());
    if (known != described.end()) continue;
    described.push_back(values);
    const Config rope(std::move(values), config.origin());
    s.ropes.push_back(read_rope(rope, s.attention.head_dim, s.max_positions));
    refuse_unread(rope);
  }
}

// Layers of the kind that "attention_other_setting" names have their own numbers of heads.
void read_heads(const Config& config, DecoderSpec& s, const std::vector<std::string>& kinds) {
  const Config other = config.object("attention_other_setting");
  AttentionSpec own = s.attention;
  own.heads = read_positive(other, "num_attention_heads", other.get("num_attention_heads", own.heads));
  own.kv_heads = read_positive(other, "num_attention_groups", other.get("num_attention_groups", own.kv_heads));
  if (own.heads % own.kv_heads != 0) other.refuse("num_attention_groups", "does not divide num_attention_heads");
  if (other.get("head_dim", own.head_dim) != own.head_dim) other.refuse("head_dim", "must be that of other layers");
  const auto kind = other.get("attention_type", std::string("sliding_attention"));
  for (const char* key : {"head_dim", "true_head_dim"}) other.ignore(key);
  refuse_unread(other);
  for (int i = 0; i < s.depth(); ++i) {
    AttentionSpec attention = kinds[i] == kind ? own : s.attention;
    attention.window = s.layers[i].window;
    s.layers[i].mixer = [attention](const Weights& w, int hidden) {
      return std::make_unique<Attention>(w / "self_attn", attention, hidden);
    };
  }
}

void read_windows(const Config& config, DecoderSpec& s, const std::vector<std::string>& kinds) {
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 0));
  for (int i = 0; i < s.depth(); ++i) {
    if (kinds[i] == "full_attention") continue;
    if (kinds[i] != "sliding_attention")
      config.refuse("layer_types",
                    fmt::format("unknown type '{}' (expected full_attention or sliding_attention)", kinds[i]));
    if (window < 1) config.refuse("sliding_window", "must be positive: layer_types asks for sliding_attention");
    s.layers[i].window = window;
  }
}

void read_experts(const Config& config, DecoderSpec& s) {
  read_step_experts(config, s, 3);
  s.moe.score = ops::Routing::Score::kSigmoid;
  if (!config.get("norm_expert_weight", true)) config.refuse("norm_expert_weight", "false is not supported");
  s.moe.correction = "moe.router_bias";
  s.moe.correction_shape = {s.moe.experts};
  s.moe.smallest_sum = 1e-20f;
  s.moe.scale = config.get("moe_router_scaling_factor", 1.0f);
  const std::vector<float> limits = read_limits(config, "swiglu_limits", s.depth());
  const std::vector<float> shared = read_limits(config, "swiglu_limits_shared", s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    if (!layer.moe) {
      layer.mlp = s.mlp;
      layer.mlp->clamp = shared[i];
      continue;
    }
    MoeSpec moe = s.moe;
    moe.clamp = limits[i];
    moe.shared_clamp = shared[i];
    layer.feed_forward = experts_of("", moe);
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_step(config, "step3p5", "num_attention_groups");
  s.norm.offset = 1.0f;
  AttentionSpec& a = s.attention;
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  a.output_gate = a.head_gates = config.get("use_head_wise_attn_gate", true);
  a.gate = "g_proj";
  const std::vector<std::string> kinds = read_list<std::string>(config, "layer_types", s.depth(), "full_attention");
  read_windows(config, s, kinds);
  read_ropes(config, s, kinds);
  read_heads(config, s, kinds);
  read_experts(config, s);
  ignore_prediction_layers(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "step3p5",
    .architectures = {"Step3p5ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"att_impl_type", "\"GQA\""},
            {"max_seq_len"},        // max_position_embeddings is read instead
            {"moe_every_n_layer"},  // moe_layers_enum is read instead
            {"moe_layer_offset"},
            {"moe_router_activation", "\"sigmoid\""},
            {"need_fp32_gate"},  // routing is always computed in fp32
            {"share_expert_dims"},
            {"sink", "false"},
            {"use_moe", "true"},
            {"use_moe_router_bias", "true"},
            {"use_qk_norm", "true"},
            {"use_rope_layers", "[]"},
            {"zero_centered", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::step3p5
