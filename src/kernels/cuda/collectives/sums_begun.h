// Sums over two ranks whose summands travel while the GPU computes. Copy engines move them, so that all SMs compute.
//
// begin() lets a stream of its own copy a run of rows into a landing of the other rank, and its number behind it.
// finish() waits for the other rank's run and adds both. At most two runs are under way: run i + 2 begins after
// finish() of run i on the stream. The other rank then has begun run i, so it has finished run i - 2, whose landing
// run i + 2 takes.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/collectives/peers.h"

namespace sluice::cuda {

class SumsBegun {
 public:
  // Writes the numbers of runs into this rank's region.
  explicit SumsBegun(const PeerMemory& memory);
  ~SumsBegun();
  SumsBegun(const SumsBegun&) = delete;
  SumsBegun& operator=(const SumsBegun&) = delete;

  // x: dense rows of at most kLandingBytes, which stay until finish().
  void begin(const Launch& l, const Tensor& x);
  // Whether x is the oldest run that was begun and not finished.
  bool awaits(const Tensor& x) const { return finished_ != begun_ && runs_[finished_ % kUnderWay] == x.data; }
  // Adds x, which awaits(), as all_reduce() does.
  void finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate);

 private:
  static constexpr uint32_t kUnderWay = 2;

  PeerMemory memory_;
  cudaStream_t copies_ = nullptr;
  std::array<cudaEvent_t, kUnderWay> computed_{}, copied_{};
  std::array<const std::byte*, kUnderWay> runs_{};  // by number
  uint32_t begun_ = 0, finished_ = 0;
};

}  // namespace sluice::cuda
