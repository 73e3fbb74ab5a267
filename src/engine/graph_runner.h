// Runs decode steps as captured graphs if the backend can capture them. In a decode step every sequence computes one
// token, or one and drafted tokens, as many as every other sequence. A step then costs the host one launch, whatever
// the model's depth. Batches are padded to the sizes that were captured. The padding rows belong to sequences of their
// own; their keys, values and states go to a spare block and a spare slot that no other sequence uses.
//
// Steps in which rows have adapters have graphs of their own, with the changes to those layers that some adapter has
// changed so far. When that becomes true of another layer, these graphs are captured anew. Adapters that do more than
// small matrices need the host in every step, so that no graph is used while one of them has a slot.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/step_inputs.h"

namespace sluice {

class GraphRunner {
 public:
  GraphRunner(LoadedModel& loaded, ops::Ctx& context, StepInputs& inputs);

  // Captures the graphs for small numbers of short sequences, without drafts and with the longest ones. Graphs for
  // longer sequences and other drafts are captured on first use.
  void prepare();
  // Whether there are larger numbers of sequences to capture, on first use or now: prepare_more() takes the next one.
  bool has_more() const { return !later_.empty(); }
  void prepare_more();
  // Returns whether forward() can run the batch: a decode step that samples every row, on a backend and model that can
  // be captured. It wants hidden states exactly if layers continue the model.
  bool takes(const Batch& batch) const;
  // Like Model::forward() on the batch's rows. The output is at the same address for all batches of the same padded
  // size. `sampled`: see StepInputs.
  StepOutput forward(const Batch& batch, const Tensor& sampled);

 private:
  struct Size {
    int sequences = 0;
    int rows = 1;           // of every sequence
    int blocks = 0;         // blocks of the longest sequence
    bool adapters = false;  // some row may have one
    auto operator<=>(const Size&) const = default;
  };
  struct Step {
    std::unique_ptr<ops::CapturedGraph> graph;
    StepOutput output;
  };

  bool usable() const;
  void prepare(Size size);
  void report() const;
  int most_rows() const;               // of a sequence
  int most_sequences(int rows) const;  // of one step
  Size size_for(int sequences, int rows, int blocks, bool adapters) const;
  void drop_outdated_steps();
  BatchView place(const Batch& batch, Size size, const Tensor& sampled);
  void check(const Batch& batch) const;
  const Step& step(Size size);
  Step capture(Size size);

  LoadedModel& loaded_;
  ops::Ctx& context_;
  StepInputs& inputs_;
  std::map<Size, Step> steps_;
  std::vector<Size> later_;  // to be prepared, the next one last
  int prepared_ = 0;
  std::chrono::duration<double, std::milli> prepared_in_{};
  size_t free_before_ = 0;  // bytes of the device's memory
  std::set<Size> warm_;     // for which a step has run without capture, with any number of blocks (0)
  int changed_layers_ = 0;  // those that adapters had changed when the steps with adapters were captured
};

}  // namespace sluice
