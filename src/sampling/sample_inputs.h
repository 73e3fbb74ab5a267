// What the draws of a step need on a device (ops/sample.h): rows, edits of their logits, masks, filled in on the host
// and copied together.
#pragma once

#include <span>
#include <vector>

#include "ops/ops.h"
#include "ops/sample.h"
#include "sampling/sampler.h"

namespace sluice {

// Staging memory and its like on the device.
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

  // Forgets all rows, and what was promised.
  void clear();
  // Whether there is room for the task beside those promised before it; promises it, then. Not for tasks with edits
  // whose row of logits is another's, too.
  bool promise(const SampleTask& task, bool shares_row);
  // Tasks of one launch; each was promised. Token ids of the parameters must be below the vocabulary's size.
  void fill(std::span<const SampleTask> tasks, std::span<const size_t> which);
  // Puts rows, edits and masks into the arguments: the first where they are, in staging memory, the others copied.
  void send(ops::Queue& queue, ops::SampleArgs& args);

  bool top_asked() const { return top_asked_; }  // by a row of the launch

 private:
  ops::SampleRow row_of(const SampleTask& task);
  void write_edits(const SampleTask& task);
  void write_mask(const SampleTask& task);

  int vocab_;
  size_t most_edits_, most_masks_, mask_words_;
  Buffer rows_;  // in staging memory
  Mirror edits_, masks_;
  size_t edits_promised_ = 0, masks_promised_ = 0;
  size_t rows_written_ = 0, edits_written_ = 0, masks_written_ = 0;
  bool top_asked_ = false;
  std::vector<ops::LogitEdit> biased_;  // of the task that is written, by id
};

}  // namespace sluice
