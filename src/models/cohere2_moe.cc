// Cohere 2 with experts in all but the first layers.
#include "models/cohere.h"

namespace sluice::models::cohere2_moe {
namespace {

// Reads windows and rotations. Layers with a window are rotated, and so are dense layers if the pattern gives no dense
// layer a window.
void read_layers(const Config& config, DecoderSpec& s) {
  const int dense = config.get("first_k_dense_replace", 0);
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= dense;
  read_mlp_layer_types(config, s);
  const auto positive = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 4096));
  const int pattern = positive("sliding_window_pattern", 4);
  const int dense_pattern = positive("prefix_dense_sliding_window_pattern", 1);
  const auto sliding = read_windows(config, s, window, [=](int i) {
    return i < dense ? (i + 1) % dense_pattern != 0 : (i - dense + 1) % pattern != 0;
  });
  MlpSpec prefix = s.mlp;
  prefix.inner = positive("prefix_dense_intermediate_size", s.mlp.inner);
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.rope = sliding[i] || (!layer.moe && dense_pattern == 1) ? 0 : -1;
    if (!layer.moe) layer.mlp = prefix;
  }
}

void read_routing(const Config& config, DecoderSpec& s) {
  read_experts(config, s, "num_experts", "num_experts_per_tok", s.mlp.inner);
  const auto score = config.get("expert_selection_fn", std::string("softmax"));
  if (score != "softmax" && score != "sigmoid") {
    config.refuse("expert_selection_fn", "unknown value '" + score + "' (expected softmax or sigmoid)");
  }
  const bool normalize = config.get("norm_topk_prob", true);
  if (score == "sigmoid") s.moe.score = ops::Routing::Score::kSigmoid;
  s.moe.normalize = score == "softmax" || normalize;  // softmax over the chosen experts
  const int shared = config.get("num_shared_experts", 0);
  if (shared < 0) config.refuse("num_shared_experts", "must not be negative");
  const auto strategy = config.get("shared_expert_combination_strategy", std::string("average"));
  if (strategy != "average" && strategy != "sum") {
    config.refuse("shared_expert_combination_strategy", "unknown value '" + strategy + "' (expected average or sum)");
  }
  s.moe.shared_inner = shared * s.mlp.inner;
  if (shared == 0 || strategy == "sum") return;
  for (LayerSpec& layer : s.layers) layer.mlp_blend.added = 0.5f;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  if (!config.has("head_dim")) config.refuse("head_dim", "is missing");
  if (config.has("rope_scaling")) config.refuse("rope_scaling", "must be null: the reference does not read it");
  DecoderSpec s = cohere_like(config, "cohere2_moe", {.stray_theta = true});
  if (config.has("rms_norm_eps")) s.norm = {.eps = config.at<float>("rms_norm_eps")};
  read_routing(config, s);
  read_layers(config, s);
  for (LayerSpec& layer : s.layers) {
    if (!layer.moe) layer.mlp_blend = {};
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "cohere2_moe", .architectures = {"Cohere2MoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::cohere2_moe
