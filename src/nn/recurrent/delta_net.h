// Gated delta net as built by Qwen and OLMo: one projection to queries, keys, values, gate and step sizes.
#pragma once

#include "nn/recurrent/delta_rule.h"

namespace sluice {

// Layout of the input projections in the checkpoint.
enum class DeltaNetLayout {
  kSeparate,    // in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
  kApart,       // q_proj, k_proj, v_proj, g_proj, b_proj, a_proj; q_conv1d, k_conv1d, v_conv1d; o_norm, o_proj
  kByKeyHeads,  // in_proj_qkvz, in_proj_ba: stored by key head, each with the value heads that belong to it
};

struct DeltaNetSpec : DeltaSpec {
  DeltaNetLayout layout = DeltaNetLayout::kSeparate;
};

class DeltaNet final : public TokenMixer {
 public:
  DeltaNet(const Weights& w, const DeltaNetSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override {
    return 2 * spec_.conv().channels + spec_.values() + 2 * int64_t{spec_.heads};
  }
  int64_t state_values() const override { return spec_.state_values(); }

 private:
  DeltaNet(const Weights& w, const DeltaNetSpec& spec, int hidden, const std::optional<DeltaPart>& part);

  DeltaNetSpec spec_;  // of this rank's heads
  Linear in_, out_;    // outputs of in_: queries, keys, values, gate, beta, dt
  DeltaRule rule_;
};

}  // namespace sluice
