// Puts a step's indices where its ops read them. For a device, all lists are adjacent in one buffer and are copied
// there by one copy. Vectors that a step is given go to pinned memory, from where the model copies them.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "batch/batch.h"
#include "engine/load.h"

namespace sluice {

class StepInputs {
 public:
  explicit StepInputs(const LoadPlan& plan);

  // Returns the batch as the model reads it, valid until the next call. The addresses of the indices depend only on the
  // batch's sizes. `sampled` is the output of the previous step's sample (ops::SampledRow), for a batch with
  // from_sample. Waits only for the copy of the call before the last one.
  BatchView place(ops::Ctx& context, const Batch& batch, const Tensor& sampled = {});

  // place() in single steps, for devices: begin(), then add() for each list, then send().
  void begin();
  struct List {
    std::span<int32_t> host;  // the caller writes this before send()
    const int32_t* device = nullptr;
    operator Indices() const { return {host, device}; }
  };
  List add(size_t count);  // starts on a cache line of its own
  void send();
  // Fills in tokens that the host does not know yet from the previous step's sample, which rank 0 has. Does nothing if
  // `from_sample` is empty.
  void feed_sampled(ops::Ctx& context, const Indices& tokens, const Indices& from_sample, const Tensor& sampled);

 private:
  struct Pinned {
    Buffer indices;
    uint64_t copied = 0;  // event of the queue after the last copy
  };
  struct PinnedRows {
    Buffer values;
    uint64_t read = 0;  // event of the queue after the step that reads them
  };
  std::span<const GivenRows> place_given(std::span<const GivenRows> given);

  ops::Queue& queue_;
  ops::KeyShare share_;
  const Communicator* ranks_;      // all ranks; null: there is one
  std::array<Pinned, 2> staging_;  // used alternately: the host fills one while the other is copied
  size_t turn_ = 0;
  size_t used_ = 0;                 // indices added since begin()
  Buffer device_;                   // empty if ops read host memory
  std::array<PinnedRows, 2> rows_;  // used alternately by steps that are given vectors; empty if none may be
  size_t rows_turn_ = 0;
  std::vector<GivenRows> given_;    // the step's, in pinned memory
  std::vector<int32_t> own_slots_;  // the step's, if ranks divide the keys
};

}  // namespace sluice
