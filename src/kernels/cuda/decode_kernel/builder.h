// Builds the persistent decode kernel for steps of few sequences. Ops of a captured graph are recorded; runs of them
// become instructions (translate.h) that one kernel executes (kernel.cuh). Separate launches would each begin by
// waiting for memory. The kernel keeps one block on every SM. Producer warps of each block copy weights into shared
// memory ahead of the ops that use them, across op boundaries. So memory stays busy while the blocks wait for each
// other, attend or normalize.
#pragma once

#include <utility>
#include <vector>

#include "kernels/cuda/decode_kernel/captured_op.h"
#include "kernels/cuda/decode_kernel/instructions.h"

namespace sluice::cuda {

struct DecodeRun;

class DecodeKernelBuilder {
 public:
  // Whether the device has compute capability 9.0 or higher and the environment does not set
  // SLUICE_CUDA_DECODE_KERNEL=0.
  static bool usable(const Launch& l);
  // Builds one captured graph on the stream of `l`, which must outlive the builder.
  explicit DecodeKernelBuilder(const Launch& l);
  ~DecodeKernelBuilder();
  DecodeKernelBuilder(const DecodeKernelBuilder&) = delete;
  DecodeKernelBuilder& operator=(const DecodeKernelBuilder&) = delete;

  void record(CapturedOp op) { ops_.push_back(std::move(op)); }
  // Launches the recorded ops in order: runs of them as one kernel each if that pays off, others by themselves. Must be
  // called before every launch of an op that is not recorded, and at the end.
  void flush();
  // Uploads the instructions. Must be called after the capture ends and before the graph is launched.
  void finish();

 private:
  void launch_run(const DecodeRun& run);
  void place_maps(std::vector<Instruction>& instructions, const DecodeRun& run);
  std::byte* device();
  uint2* exchange(size_t words);

  const Launch& launch_;
  std::vector<CapturedOp> ops_;                       // since the last flush
  std::byte* device_ = nullptr;                       // device memory: arrivals, instructions, tensor maps
  std::vector<std::pair<uint2*, size_t>> exchanges_;  // device buffers and their words; the last one is large enough
                                                      // for the latest launch
  std::vector<Instruction> all_;                      // instructions of all launches
  std::vector<TensorMaps> maps_;
};

}  // namespace sluice::cuda
