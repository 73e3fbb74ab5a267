// Runs batches on a loaded model: cache copies, then the forward pass. Also a plain way to get the logits of one text,
// without scheduler or sampler, for checking tools and tests.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/graph_runner.h"
#include "engine/load.h"
#include "engine/step_inputs.h"

namespace sluice {

class Runner {
 public:
  explicit Runner(LoadedModel& loaded);

  // What the model's forward() gives for the batch, in the backend's memory, valid until the next call. `drawn`: what
  // the draw of the step before writes, for a batch with from_sample.
  Tensor run(const Batch& batch, const Tensor& sampled = {});
  // The same in the host's memory.
  Tensor forward(const Batch& batch) { return to_host(run(batch)); }
  // Before the first of many decode steps: makes them ready, if the backend has something to make.
  void prepare() { graph_runner_.prepare(); }
  ops::Ctx& context() { return context_; }

 private:
  Tensor to_host(const Tensor& result);

  LoadedModel& loaded_;
  ops::Ctx context_;
  StepInputs inputs_;
  GraphRunner graph_runner_;
  Buffer results_;  // of a device, for those who want them on the host
};

// Logits of every position of one text, computed in steps of at most `chunk` tokens on blocks 0, 1, ... of the cache,
// which must be long enough and unused. row(position, logits [vocab]) is called in order.
void for_each_logits(Runner& runner, const LoadPlan& plan, int block_size, std::span<const int32_t> tokens, int chunk,
                     const std::function<void(int position, std::span<const float> logits)>& row);

}  // namespace sluice
