// Several token mixers of one input, side by side: out = sum of scale * mix(x). Falcon-H1's layers run Mamba 2 beside
// attention.
#pragma once

#include <memory>
#include <vector>

#include "nn/token_mixer.h"

namespace sluice {

class TokenMixerSum final : public TokenMixer {
 public:
  struct Part {
    std::unique_ptr<TokenMixer> mixer;
    float scale = 1.0f;
  };
  // At most one part caches keys and values, and at most one keeps a state: a layer has room for one of each.
  TokenMixerSum(std::vector<Part> parts, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override;
  int64_t floats_per_token() const override;
  std::optional<KvShape> kv_shape() const override;
  int64_t state_values() const override;

 private:
  std::vector<Part> parts_;
  int hidden_;
};

}  // namespace sluice
