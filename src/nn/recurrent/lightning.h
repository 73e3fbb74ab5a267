// Lightning attention: linear attention whose memory decays at a fixed rate per head (Qin et al. 2024,
// arXiv:2401.04658), normed and gated as in MiniMax-01 (arXiv:2501.08313).
#pragma once

#include <optional>

#include "nn/layers.h"
#include "nn/token_mixer.h"

namespace sluice {

struct LightningSpec {
  int heads = 0;
  int head_dim = 0;
  ops::Activation activation = ops::Activation::kSilu;  // activation of queries, keys and values
  float norm_eps = 1e-6f;
  std::vector<float> rates{};  // [heads], negative: a step scales the memory by e^rate

  int64_t width() const { return int64_t{heads} * head_dim; }
};

// The rates of layer `layer` of `layers`: ALiBi slopes, scaled down to almost zero in the last layer.
std::vector<float> lightning_rates(int heads, int layer, int layers);

class Lightning final : public TokenMixer {
 public:
  Lightning(const Weights& w, const LightningSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override { return 4 * spec_.width(); }
  int64_t state_values() const override { return spec_.width() * spec_.head_dim; }

 private:
  Lightning(const Weights& w, const LightningSpec& spec, int hidden, const std::optional<RowRange>& heads);

  LightningSpec spec_;  // of this rank's heads
  int64_t whole_ = 0;   // width of all heads
  Linear qkv_, gate_, out_;
  Norm norm_;
  Vector rates_;
};

}  // namespace sluice
