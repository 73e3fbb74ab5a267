// What gated delta nets (Yang et al. 2024, arXiv:2412.06464) share behind their input projections: short convolutions
// of queries, keys and values, the delta rule on queries and keys of unit length, a norm per head, a gate.
#pragma once

#include "nn/recurrent/causal_conv.h"

namespace sluice {

struct DeltaSpec {
  int heads = 0;      // of the values
  int key_heads = 0;  // divides heads
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 4;
  ops::Activation activation = ops::Activation::kSilu;  // of the convolutions
  float norm_eps = 1e-6f;
  float beta_scale = 1.0f;  // 2: steps may turn a key's part of the state around

  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t values() const { return int64_t{heads} * value_dim; }
  CausalConvSpec conv() const { return {2 * keys() + values(), conv_width, false, activation}; }
  int64_t state_values() const { return conv().state_values() + values() * key_dim; }
};

class DeltaRule {
 public:
  // Tensors of the convolutions' parts, and NORM.weight [value_dim]. `a_log` [heads], `dt_bias` [heads] or, where
  // states decay by the channel of the keys, [heads * key_dim].
  DeltaRule(const Weights& w, const DeltaSpec& spec, const std::vector<CausalConv::Part>& conv, const char* norm,
            std::vector<float> a_log, const std::vector<float>& dt_bias);

  struct Inputs {
    Tensor qkv;   // [tokens, 2 * keys + values]
    Tensor dt;    // [tokens, as many as dt_bias], before bias and softplus; changed
    Tensor beta;  // [tokens, heads], before the sigmoid; changed
    Tensor gate;  // [tokens, values], before its activation
    ops::Activation gate_activation;
  };
  // New [tokens, values] from the arena.
  Tensor operator()(ops::Ctx& c, const TokenMixerStep& step, const Inputs& in) const;

 private:
  DeltaSpec spec_;
  CausalConv conv_;
  Norm q_norm_, k_norm_, norm_;
  Vector a_, dt_bias_;
};

}  // namespace sluice
