// Ouro (ByteDance, arXiv:2510.25741): Llama with norms around both sublayers, whose layers run several times. The final
// norm ends every loop, and every loop has its own keys and values.
#include <fmt/core.h>

#include "nn/decoder_config.h"

namespace sluice::models::ouro {
namespace {

// Norms the stream after every loop but the last, which the decoder itself norms.
class LoopNorm final : public AuxiliaryStream {
 public:
  LoopNorm(const Weights& body, const DecoderSpec& spec, int per_loop)
      : norm_(body, spec.names.norm, spec.hidden, spec.norm), per_loop_(per_loop), last_(spec.depth() - 1) {}

  int64_t floats_per_token() const override { return 0; }
  size_t tensors() const override { return 0; }
  std::vector<Shape> shapes(int64_t) const override { return {}; }
  Tensors begin(ops::Ctx&, const BatchView&, const Tensor&) override { return {}; }
  void before_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void after_layer(ops::Ctx& c, int layer, const Tensors&, const Tensor& x) const override {
    if ((layer + 1) % per_loop_ == 0 && layer != last_) norm_.in_place(c, x);
  }
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  Norm norm_;
  int per_loop_, last_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "ouro");
  s.names.attention_post_norm = "input_layernorm_2";
  s.names.mlp_post_norm = "post_attention_layernorm_2";
  read_qwen_windows(config, s, s.depth());
  for (const LayerSpec& layer : s.layers) {
    if (layer.window > 0) config.refuse("use_sliding_window", "windows are not supported");
  }
  // A lower threshold lets a token leave the loops early.
  if (const double threshold = config.get("early_exit_threshold", 1.0); threshold < 1.0) {
    config.refuse("early_exit_threshold", fmt::format("must be 1, not {}", threshold));
  }
  ignore_tensors(context, "model.early_exit_gate.");
  const int per_loop = s.depth();
  const int loops = read_positive(config, "total_ut_steps", config.get("total_ut_steps", 4));
  constexpr int kMostLoops = 64;
  if (loops > kMostLoops) config.refuse("total_ut_steps", fmt::format("must be at most {}", kMostLoops));
  for (int i = per_loop; i < loops * per_loop; ++i) s.layers.push_back({.same_as = i % per_loop});
  s.auxiliary_stream = [per_loop](const Weights& body, const DecoderSpec& spec) {
    return std::make_unique<LoopNorm>(body, spec, per_loop);
  };
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "ouro", .architectures = {"OuroForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::ouro
