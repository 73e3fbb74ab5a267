// The inputs of the sample op (ops/sample.h): sample rows, logit edits and masks. The host fills them in and copies
// them to the device together.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "batch/sample_task.h"
#include "ops/ops.h"
#include "ops/sample_chain.h"

namespace sluice {

// A buffer in pinned memory and one of equal size on the device. On a device that works on host memory both are one.
class Mirror {
 public:
  Mirror(ops::Device& owner, size_t bytes)
      : host_(bytes, owner.pinned_memory()),
        device_(owner.memory().host_accessible() ? Buffer() : Buffer(bytes, owner.memory())) {}

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(host_.data());
  }
  Tensor on_device(size_t bytes) { return view(device_.data() != nullptr ? device_ : host_, bytes); }
  Tensor on_host(size_t bytes) { return view(host_, bytes); }
  void to_device(ops::Queue& queue, size_t bytes) {
    if (device_.data() != nullptr && bytes > 0) queue.copy_async(device_.data(), host_.data(), bytes);
  }
  void to_host(ops::Queue& queue, size_t bytes) {
    if (device_.data() != nullptr && bytes > 0) queue.copy_async(host_.data(), device_.data(), bytes);
  }

 private:
  static Tensor view(Buffer& buffer, size_t bytes) {
    return Tensor(buffer.data(), &kUInt8, {static_cast<int64_t>(bytes)});
  }

  Buffer host_, device_;
};

// Temperatures below this one are greedy.
inline constexpr double kGreedyBelow = 1e-5;

// Whether the task changes logits of its row, other than by a mask.
bool edits_row(const SampleTask& task);

class SampleInputs {
 public:
  // The threads of `pool` fill masks together; null: the calling thread fills all of them.
  SampleInputs(ops::Device& device, int rows, int vocab, ThreadPool* pool);

  // Removes all rows and all reservations of space.
  void clear();
  // Reserves space for the task's edits and mask. Returns false, and reserves nothing, if too little space is left.
  // There is always room for one task.
  bool reserve(const SampleTask& task);
  // Fills in the tasks of one launch. Each must have space reserved by reserve(), and its parameters' token ids must be
  // below the vocabulary size.
  void fill(std::span<const SampleTask> tasks);
  // Sets the rows, edits and masks of the arguments. Rows stay in pinned memory; edits and masks are copied to the
  // device.
  void send(ops::Queue& queue, ops::SampleArgs& args);

  // Edits the raw logits of task i of the launch, and excludes what its mask excludes, as the op does.
  void edit(size_t i, std::span<float> logits);

  bool top_asked() const { return top_asked_; }  // whether a row of the launch needs the largest logits

 private:
  ops::SampleRow row_of(const SampleTask& task);
  void write_steps(const SampleTask& task, ops::SampleRow& row);
  void write_edits(const SampleTask& task);
  void write_masks();
  void write_mask(const SampleTask& task, std::span<uint32_t> mask) const;

  // A mask to write. Those of a group are written one after the other.
  struct MaskJob {
    const SampleTask* task = nullptr;
    int32_t mask = 0;
    const void* group = nullptr;
  };

  ThreadPool* pool_;
  int vocab_;
  size_t most_edits_, most_masks_, mask_words_;
  Buffer rows_;  // in pinned memory
  Mirror edits_, masks_, steps_;
  size_t edits_reserved_ = 0, masks_reserved_ = 0;
  size_t rows_written_ = 0, edits_written_ = 0, masks_written_ = 0, steps_written_ = 0;
  bool top_asked_ = false;
  std::vector<ops::LogitEdit> biased_;   // edits of the task being written, sorted by id
  std::vector<ops::SamplerStep> chain_;  // of the task being written
  std::vector<MaskJob> jobs_;            // of the launch being filled in
  std::vector<std::span<MaskJob>> runs_;
};

}  // namespace sluice
