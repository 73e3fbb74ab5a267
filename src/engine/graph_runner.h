// Steps in which every sequence gets one token, launched as recordings where the backend has them: a step then costs
// the host one launch, whatever the model's depth. Batches are padded to the sizes of a recording by rows of a sequence
// of their own, whose keys, values and states go to a block and a slot that nobody else has.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "engine/step_inputs.h"

namespace sluice {

class GraphRunner {
 public:
  GraphRunner(LoadedModel& loaded, ops::Ctx& context, StepInputs& inputs);

  // Makes the recordings of every number of sequences, for short ones; those of longer ones are made when they come.
  void prepare();
  bool takes(const Batch& batch) const;
  // As Model::forward() on the batch's rows, at the same place for all batches of like size. `drawn`: see StepInputs.
  Tensor forward(const Batch& batch, const Tensor& sampled);

 private:
  struct Size {
    int sequences = 0;
    int blocks = 0;  // of the longest sequence
    auto operator<=>(const Size&) const = default;
  };
  struct Step {
    std::unique_ptr<ops::CapturedGraph> graph;
    Tensor result;
  };

  bool usable() const;
  int most_sequences() const;  // of a step
  Size size_for(int sequences, int blocks) const;
  BatchView place(const Batch& batch, Size size, const Tensor& sampled);
  void check(const Batch& batch) const;
  const Step& step(Size size);
  Step capture(Size size);

  LoadedModel& loaded_;
  ops::Ctx& context_;
  StepInputs& inputs_;
  std::map<Size, Step> steps_;
  std::set<int> warm_;  // numbers of sequences that ran unrecorded
};

}  // namespace sluice
