// Muse Glimmer, text (Meta): norms around both sublayers, gated attention whose queries and keys are normed without
// weights, and layers with a window that alone rotate.
#include <fmt/core.h>

#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::muse_glimmer {
namespace {

// Norms the embeddings without a weight.
class EmbeddingNorm final : public AuxiliaryStream {
 public:
  EmbeddingNorm(const LoadContext& context, float eps) : norm_(context, {}, {.eps = eps, .weight = false}) {}

  int64_t floats_per_token() const override { return 0; }
  size_t tensors() const override { return 0; }
  std::vector<Shape> shapes(int64_t) const override { return {}; }
  Tensors begin(ops::Ctx& c, const BatchView&, const Tensor& x) override {
    norm_.in_place(c, x);
    return {};
  }
  void before_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void after_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  Norm norm_;
};

// Reads "layer_rope_theta": 0 for layers that do not rotate, else the theta of all others.
void read_rotations(const Config& config, DecoderSpec& s) {
  const auto thetas = config.get("layer_rope_theta", std::vector<double>{});
  if (!thetas.empty() && thetas.size() != s.layers.size()) {
    config.refuse("layer_rope_theta", fmt::format("has {} entries for {} layers", thetas.size(), s.depth()));
  }
  for (int i = 0; i < s.depth(); ++i) {
    const bool rotates = thetas.empty() ? (s.depth() - 1 - i) % 4 != 0 : thetas[i] != 0;
    if (!thetas.empty() && rotates && thetas[i] != s.ropes[0].theta) {
      config.refuse("layer_rope_theta", fmt::format("{} differs from rope_theta {}", thetas[i], s.ropes[0].theta));
    }
    s.layers[i].rope = rotates ? 0 : -1;
  }
}

float read_factor(const Config& config, const char* key, double fallback) {
  const double value = config.get(key, fallback);
  if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
  return static_cast<float>(value);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      llama_like(config, "muse_glimmer", {.head_dim = 128, .norm_eps = 1e-5, .activation_key = "hidden_activation"});
  const float eps = s.norm.eps;
  s.norm.offset = 1.0f;
  s.final_norm = NormSpec{.eps = eps};
  s.attention_post_norm = s.mlp_post_norm =
      NormSpec{.eps = static_cast<float>(config.get("post_norm_eps", 1e-8)), .offset = 1.0f};
  s.names.attention_post_norm = "post_attention_layernorm";
  s.names.mlp_norm = "pre_feedforward_layernorm";
  s.names.mlp_post_norm = "post_feedforward_layernorm";
  AttentionSpec& a = s.attention;
  read_attention_bias(config, s, true);
  if (a.qkv_bias) config.refuse("attention_bias", "true is not supported");
  a.output_gate = true;
  a.gate = "gate_proj";
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = {.eps = eps, .weight = false};
  a.scale *= read_factor(config, "qk_scale_factor", 3.87);
  s.logit_scale = read_factor(config, "output_multiplier", 0.19611613513818404);
  s.logit_soft_cap = read_factor(config, "final_logit_softcapping", 20.0);
  const auto window = static_cast<int>(read_or_off(config, "sliding_window", 2048));
  read_windows(config, s, window, [depth = s.depth()](int layer) { return (depth - 1 - layer) % 4 != 0; });
  read_rotations(config, s);
  s.auxiliary_stream = [eps](const Weights& body, const DecoderSpec&) {
    return std::make_unique<EmbeddingNorm>(body.context(), eps);
  };
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "muse_glimmer", .architectures = {"MuseGlimmerForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::muse_glimmer
