// For contrastive search: keeps the hidden states of texts in host memory, and finds how like them those of candidates
// for the next token are. Which row of the memory a state has is the scheduler's choice (HiddenText).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/ops.h"
#include "scheduler/scheduled_batch.h"
#include "tensor/tensor.h"

namespace sluice {

class HiddenSimilarity {
 public:
  // Hidden states have `width` columns. The threads of `pool` compare them.
  HiddenSimilarity(ops::Device& device, int rows, int width, ThreadPool& pool);
  static size_t bytes(int rows, int width);

  // Launches the copies that a step needs. `hidden` is its StepOutput::hidden.
  void begin(ops::Ctx& c, const ScheduledBatch& step, const Tensor& hidden);
  // Waits for the oldest step given to begin(), and puts the similarities into the results of its parts.
  void finish(ops::Ctx& c, const ScheduledBatch& step, std::span<StepResult> results);

 private:
  struct Copied {
    int32_t row = 0;
    size_t part = 0;
  };
  struct Step {
    std::vector<Copied> rows{};
    uint64_t copied = 0;  // event after the last copy
  };
  // Candidates for the next token of one text.
  struct Group {
    std::span<const int32_t> text{};         // rows of its tokens
    std::vector<const float*> candidates{};  // their states
    std::vector<StepResult*> results{};      // where their similarities go
  };

  float* row(int32_t id) { return states_ + static_cast<size_t>(id) * static_cast<size_t>(width_); }
  void normalize(int32_t id);
  void compare(const Group& group);

  const int width_;
  ThreadPool& pool_;
  Buffer memory_;
  float* states_;                // [rows, width]; of length 1 once their step is finished
  std::array<Step, 2> steps_{};  // those in flight, in turn
  uint64_t begun_ = 0, finished_ = 0;
  std::vector<float> largest_;  // of a piece of the text and a candidate
};

}  // namespace sluice
