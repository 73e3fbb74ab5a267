// The inputs of the sample op (ops/sample.h): sample rows, logit edits and masks. The host fills them in and copies
// them to the device together.
#pragma once

#include <span>
#include <vector>

#include "ops/ops.h"
#include "ops/sample.h"
#include "sampling/sampler.h"

namespace sluice {

// A buffer in pinned memory and one of equal size on the device.
struct Mirror {
  Mirror(ops::Device& owner, size_t bytes) : host(bytes, owner.pinned_memory()), device(bytes, owner.memory()) {}

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(host.data());
  }
  Tensor on_device(size_t bytes) { return Tensor(device.data(), &kUInt8, {static_cast<int64_t>(bytes)}); }
  Tensor on_host(size_t bytes) { return Tensor(host.data(), &kUInt8, {static_cast<int64_t>(bytes)}); }

  Buffer host, device;
};

class SampleInputs {
 public:
  SampleInputs(ops::Device& device, int rows, int vocab);

  // Removes all rows and all reservations of space.
  void clear();
  // Reserves space for the task's edits and mask. Returns false, and reserves nothing, if too little space is left, or
  // if the task has edits and shares its row of logits with another task.
  bool promise(const SampleTask& task, bool shares_row);
  // Fills in the tasks of one launch. Each must have space reserved by promise(), and its parameters' token ids must be
  // below the vocabulary size.
  void fill(std::span<const SampleTask> tasks, std::span<const size_t> which);
  // Sets the rows, edits and masks of the arguments. Rows stay in pinned memory; edits and masks are copied to the
  // device.
  void send(ops::Queue& queue, ops::SampleArgs& args);

  bool top_asked() const { return top_asked_; }  // whether a row of the launch needs the largest logits

 private:
  ops::SampleRow row_of(const SampleTask& task);
  void write_edits(const SampleTask& task);
  void write_mask(const SampleTask& task);

  int vocab_;
  size_t most_edits_, most_masks_, mask_words_;
  Buffer rows_;  // in pinned memory
  Mirror edits_, masks_;
  size_t edits_promised_ = 0, masks_promised_ = 0;
  size_t rows_written_ = 0, edits_written_ = 0, masks_written_ = 0;
  bool top_asked_ = false;
  std::vector<ops::LogitEdit> biased_;  // edits of the task being written, sorted by id
};

}  // namespace sluice
