// Apertus: Llama's graph with query and key norms and a plain xIELU MLP (arXiv:2509.14233).
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::apertus {
namespace {

constexpr const char* kRope = R"({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8,
    "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})";

// Returns the value of a tensor of shape [1] or [].
float scalar(const Weights& w, const char* name, const Shape& shape) {
  const std::vector<float> values = w.vector(name, shape);
  return values.empty() ? 0.0f : values[0];
}

float softplus(float x) { return static_cast<float>(x > 20 ? x : std::log1p(std::exp(double{x}))); }

ops::Xielu read_xielu(const Weights& w) {
  ops::Xielu x;
  x.beta = scalar(w, "beta", {});
  x.eps = scalar(w, "eps", {});
  x.alpha_p = softplus(scalar(w, "alpha_p", {1}));
  x.alpha_n = x.beta + softplus(scalar(w, "alpha_n", {1}));
  return x;
}

// down(xielu(up(x))) with an activation that is learned per layer (tensors act_fn.*).
class XieluMlp final : public FeedForward {
 public:
  XieluMlp(const Weights& w, int inner, int hidden)
      : up_(w, {{"up_proj", inner}}, hidden, false),
        down_(w, {{"down_proj", hidden}}, inner, false),
        xielu_(read_xielu(w / "act_fn")) {}

  void operator()(ops::Ctx& c, std::span<const Tensor>, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const Tensor inner = up_(c, x);
    ops::xielu(c, inner, xielu_);
    down_.into(c, out, inner, accumulate);
  }
  DType input_type(const ops::Ctx& c, int64_t rows) const override { return up_.input_type(c, rows); }
  int64_t floats_per_token() const override { return up_.outputs(); }

 private:
  Linear up_, down_;
  ops::Xielu xielu_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "apertus");
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-5));
  s.tied_head = config.get("tie_word_embeddings", false);
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = 12000000.0, .parameters = kRope})};
  read_attention_bias(config, s, true);
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  if (config.get("hidden_act", std::string("xielu")) == "xielu") {
    for (LayerSpec& layer : s.layers) {
      layer.feed_forward = [inner = s.mlp.inner](const Weights& w, int hidden) {
        return std::make_unique<XieluMlp>(w / "mlp", inner, hidden);
      };
    }
  } else {
    s.mlp.activation = read_activation(config, "hidden_act", "xielu");
    s.mlp.gated = false;
    s.mlp.in = {"up_proj"};
  }
  s.names.attention_norm = "attention_layernorm";
  s.names.mlp_norm = "feedforward_layernorm";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "apertus",
    .architectures = {"ApertusForCausalLM"},
    .build = build,
    .ignored =
        {
            {"post_norm", "false"},
            {"qk_norm", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::apertus
