// Drafts by a smaller model with the same vocabulary (arXiv:2211.17192, arXiv:2302.01318). The draft model computes
// every token that the model computes, in the same step.
#pragma once

#include "speculative/model_drafter.h"

namespace sluice {

class DraftModel final : public ModelDrafter {
 public:
  DraftModel(const SpeculativeOptions& options, DraftModelRunner model);

 private:
  void take_known(const DraftStep& step) override;
};

}  // namespace sluice
