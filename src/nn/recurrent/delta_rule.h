// The part that gated delta nets share after their input projections (Yang et al. 2024, arXiv:2412.06464): short
// convolutions of queries, keys and values, the delta rule on unit-length queries and keys, a norm per head, and a
// gate.
#pragma once

#include <optional>

#include "nn/recurrent/causal_conv.h"

namespace sluice {

struct DeltaPart;

struct DeltaSpec {
  int heads = 0;      // value heads
  int key_heads = 0;  // must divide `heads`
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 4;
  ops::Activation activation = ops::Activation::kSilu;  // activation after the convolutions
  float norm_eps = 1e-6f;
  float beta_scale = 1.0f;  // 2: a step may flip the sign of a key's part of the state

  void keep(const std::optional<DeltaPart>& part);  // leaves the heads of a part

  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t values() const { return int64_t{heads} * value_dim; }
  CausalConvSpec conv() const { return {2 * keys() + values(), conv_width, false, activation}; }
  int64_t state_values() const { return conv().state_values() + values() * key_dim; }
};

// The heads of one rank.
struct DeltaPart {
  RowRange heads, key_heads;
};
// nullopt: this rank has all heads.
std::optional<DeltaPart> delta_part(const Ranks& ranks, const DeltaSpec& spec);
// The columns of queries, keys and values, which lie side by side, that belong to the part. Empty without one: all.
std::vector<RowRange> delta_columns(const DeltaSpec& spec, const std::optional<DeltaPart>& part);

class DeltaRule {
 public:
  // Reads the tensors of the convolution's parts and NORM.weight [value_dim]. `a_log` is [heads]. `dt_bias` is [heads],
  // or [heads * key_dim] if states decay per key channel. These are of all heads; the rule keeps those of the part.
  DeltaRule(const Weights& w, const DeltaSpec& spec, const std::optional<DeltaPart>& part,
            const std::vector<CausalConv::Part>& conv, const char* norm, std::vector<float> a_log,
            std::vector<float> dt_bias);

  struct Inputs {
    Tensor qkv;   // [tokens, 2 * keys + values]
    Tensor dt;    // [tokens, size of dt_bias], before bias and softplus; overwritten
    Tensor beta;  // [tokens, heads], before the sigmoid; overwritten
    Tensor gate;  // [tokens, values], before its activation
    ops::Activation gate_activation;
  };
  // Returns new [tokens, values] from the arena.
  Tensor operator()(ops::Ctx& c, const TokenMixerStep& step, const Inputs& in) const;

 private:
  DeltaSpec spec_;
  CausalConv conv_;
  Norm q_norm_, k_norm_, norm_;
  Vector a_, dt_bias_;
};

}  // namespace sluice
