// Lightning attention: linear attention whose memory decays at a fixed rate per head (Qin et al. 2024,
// arXiv:2401.04658), normed and gated as in MiniMax-01 (arXiv:2501.08313) and Ring-2.5 (arXiv:2510.19338).
#pragma once

#include <optional>
#include <string>

#include "nn/layers.h"
#include "nn/token_mixer.h"

namespace sluice {

struct LightningSpec {
  int heads = 0;
  int head_dim = 0;
  ops::Activation activation = ops::Activation::kSilu;  // activation of queries, keys and values
  float norm_eps = 1e-6f;
  std::vector<float> rates{};  // [heads], negative: a step scales the memory by e^rate
  bool by_head = true;         // `qkv` stores each head's query, key and value together; else all queries come first
  bool qkv_bias = false, out_bias = false;
  bool rotates = false;  // rotates queries and keys
  bool qk_norm = false;  // norms each head's query and key before the rotation (tensors `q_norm`, `k_norm`)
  float q_scale = 1.0f;  // multiplies the queries
  int norm_groups = 1;   // number of column groups of the result that are normed separately
  std::string qkv = "qkv_proj", gate = "output_gate", out = "out_proj", norm = "norm";
  std::string q_norm{}, k_norm{};

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
  void load_norms(const Weights& w, const LightningSpec& whole, const std::optional<RowRange>& heads);
  void rotate(ops::Ctx& c, const TokenMixerStep& step, const Tensor& x) const;

  LightningSpec spec_;  // of this rank's heads
  int64_t normed_ = 0;  // columns that are normed here: this rank's, or those of all ranks
  Linear qkv_, gate_, out_;
  Norm q_norm_, k_norm_;
  std::vector<Norm> norms_;  // one per group of the normed columns
  Vector rates_;
};

}  // namespace sluice
