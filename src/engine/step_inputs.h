// The indices of a step where its ops read them: those of a device lie side by side in one block, copied there at once.
#pragma once

#include <array>

#include "batch/batch.h"
#include "engine/load.h"

namespace sluice {

class StepInputs {
 public:
  explicit StepInputs(const LoadPlan& plan);

  // The batch for the model, good until the next call. Where the indices of a batch go depends on its sizes alone.
  // `drawn` is what the draw of the step before writes (ops::SampledRow), for a batch with from_sample. Waits only for
  // the copy of the call before the last one.
  BatchView place(ops::Ctx& context, const Batch& batch, const Tensor& sampled = {});

  // The same by hand, on a device: begin(), add() for each list, send().
  void begin();
  struct List {
    std::span<int32_t> host;  // to be written before send()
    const int32_t* device = nullptr;
    operator Indices() const { return {host, device}; }
  };
  List add(size_t count);  // from a line of its own on
  void send();
  // Tokens that the host does not know, from the draw of the step before; an empty `from_sample` changes nothing.
  void feed_sampled(ops::Ctx& context, const Indices& tokens, const Indices& from_sample, const Tensor& sampled);

 private:
  struct Pinned {
    Buffer indices;
    uint64_t copied = 0;  // an event of the queue
  };

  ops::Queue& queue_;
  std::array<Pinned, 2> staging_;  // in turn, so that the host fills one while the other is copied
  size_t turn_ = 0;
  size_t used_ = 0;  // indices of this turn
  Buffer device_;    // empty where ops read the host's memory
};

}  // namespace sluice
