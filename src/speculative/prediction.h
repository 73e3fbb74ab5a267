// Drafts by layers that continue the model: from its hidden state of a token and the next token, they predict the one
// after (multi-token prediction, DeepSeek-V3, arXiv:2412.19437). What they predict has no hidden state of the model
// yet, so that they go on from their own (docs/speculative.md).
//
// A step's hidden states are known when the model has run. The layers then compute all tokens of the step, each with
// the hidden state of the token before it. A draft begins in the next step with the one token that was sampled last.
#pragma once

#include "speculative/model_drafter.h"

namespace sluice {

class Prediction final : public ModelDrafter {
 public:
  Prediction(const SpeculativeOptions& options, DraftModelRunner model);
  bool reads_hidden() const override { return true; }
  void observe(const Batch& step, const Tensor& sampled) override;

 private:
  void take_known(const DraftStep& step) override;
};

}  // namespace sluice
