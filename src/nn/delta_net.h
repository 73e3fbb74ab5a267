// Gated delta net (Yang et al. 2024, arXiv:2412.06464), as Qwen builds it: a short convolution of queries, keys and
// values, the delta rule on queries and keys of unit length, a norm per head, a gate.
#pragma once

#include "nn/causal_conv.h"

namespace sluice {

// How the input projections lie in the checkpoint.
enum class DeltaNetLayout {
  kSeparate,    // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  kApart,       // q_proj, k_proj, v_proj, g_proj, b_proj, a_proj; q_conv1d, k_conv1d, v_conv1d; o_norm, o_proj
  kByKeyHeads,  // in_proj_qkvz, in_proj_ba: the rows of one key head and its heads of the values after the other's
};

// x / sqrt(sum of squares + 1e-6) * scale, spelled as an RMSNorm.
Norm unit_length(const LoadContext& context, int dim, float scale);
// [tokens, heads * dim] as [tokens, heads, dim]
Tensor by_heads(const Tensor& x, int heads);

struct DeltaNetSpec {
  int heads = 0;      // of the values
  int key_heads = 0;  // divides heads
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 4;
  ops::Activation activation = ops::Activation::kSilu;  // of the convolution
  float norm_eps = 1e-6f;
  float beta_scale = 1.0f;  // 2: steps may turn a key's part of the state around
  DeltaNetLayout layout = DeltaNetLayout::kSeparate;

  int64_t keys() const { return int64_t{key_heads} * key_dim; }
  int64_t values() const { return int64_t{heads} * value_dim; }
  CausalConvSpec conv() const { return {2 * keys() + values(), conv_width, false, activation}; }
};

class DeltaNet final : public Mixer {
 public:
  DeltaNet(const Weights& w, const DeltaNetSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const MixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override {
    return 2 * spec_.conv().channels + spec_.values() + 2 * int64_t{spec_.heads};
  }
  int64_t state_values() const override { return spec_.conv().state_values() + spec_.values() * spec_.key_dim; }

 private:
  DeltaNetSpec spec_;
  Linear in_, out_;  // in: queries, keys, values, gate, beta, dt
  CausalConv conv_;
  Norm q_norm_, k_norm_, norm_;
  Vector a_, dt_bias_;  // [heads]
};

}  // namespace sluice
