// The indices of a step where its ops read them: those of a device lie side by side in one block, copied there at once.
#pragma once

#include <array>

#include "engine/load.h"
#include "nn/batch.h"

namespace sluice {

class StepInputs {
 public:
  explicit StepInputs(const LoadPlan& plan);

  // The batch for the model, good until the next call. Where the indices of a batch go depends on its sizes alone.
  // `drawn` is what the draw of the step before writes (ops::DrawnRow), for a batch with from_draw. Waits only for the
  // copy of the call before the last one.
  BatchView place(ops::Ctx& context, const Batch& batch, const Tensor& drawn = {});

 private:
  struct Staging {
    Buffer indices;
    uint64_t copied = 0;  // a mark of the memory
  };

  Memory& memory_;
  std::array<Staging, 2> staging_;  // in turn, so that the host fills one while the other is copied
  size_t turn_ = 0;
  Buffer device_;  // empty where ops read the host's memory
};

}  // namespace sluice
