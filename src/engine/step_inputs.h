// The indices of a step where its ops read them: those of a device lie side by side in one block, copied there at once.
#pragma once

#include "engine/load.h"
#include "nn/batch.h"

namespace sluice {

class StepInputs {
 public:
  explicit StepInputs(const LoadPlan& plan);

  // The batch for the model, good until the next call. Where the indices of a batch go depends on its sizes alone.
  BatchView place(const Batch& batch);

 private:
  Memory& memory_;
  Buffer staging_, device_;  // empty where ops read the host's memory
};

}  // namespace sluice
