// Makes vectors of texts from the hidden states of the steps that compute them (Request::pooling).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/ops.h"
#include "scheduler/scheduled_batch.h"
#include "scheduler/sequence.h"
#include "tensor/tensor.h"

namespace sluice {

class HiddenPooler {
 public:
  using Requests = std::unordered_map<RequestId, std::unique_ptr<RequestState>>;

  // At most `sequences` run at a time; hidden states have `width` columns.
  HiddenPooler(ops::Device& device, HiddenPooling pooling, int sequences, int width);
  // Bytes of device memory for the sums of sequences.
  static size_t bytes(HiddenPooling pooling, int sequences, int width);

  // Launches what a step needs. `hidden` is its StepOutput::hidden; `requests` are all that have not ended.
  void begin(ops::Ctx& c, const ScheduledBatch& step, const Tensor& hidden, const Requests& requests);
  // Waits for the oldest step given to begin(), and puts its vectors into the results of its parts.
  void finish(ops::Ctx& c, std::span<StepResult> results);

 private:
  struct Vector {
    size_t part = 0;
    int tokens = 0;  // in the text
  };
  struct Step {
    Buffer values{};      // on the host: rows of `width` floats, or doubles for sums
    uint64_t copied = 0;  // event after the last copy
    std::vector<Vector> vectors{};
  };

  int slot_of(RequestId id, const Requests& requests);
  void add_up(ops::Ctx& c, const ScheduledBatch::Part& part, const Tensor& rows, int slot);
  size_t row_bytes() const;

  const HiddenPooling pooling_;
  const int width_;
  Buffer sum_memory_;
  Tensor sums_;                    // [sequences, width] fp64: of texts that are being computed
  std::vector<RequestId> owners_;  // who has each row of sums_; 0: nobody
  std::array<Step, 2> steps_;      // those in flight, in turn
  uint64_t begun_ = 0, finished_ = 0;
};

}  // namespace sluice
