// Sums over two ranks whose summands travel while the GPU computes. Copy engines move them, so that all SMs compute.
//
// begin() lets a stream of its own copy a run of rows into a landing of the other rank, and its number behind it.
// finish() waits for the other rank's runs and adds both. At most kUnderWay runs are under way: run i + kUnderWay
// begins after finish() of run i on the stream. The other rank then has begun run i, so it has finished run i -
// kUnderWay, whose landing run i + kUnderWay takes.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/collectives/peers.h"

namespace sluice::cuda {

class SumsBegun {
 public:
  // Writes the numbers of runs into this rank's region. `one_device`: the other rank has the same device.
  SumsBegun(const PeerMemory& memory, bool one_device);
  ~SumsBegun();
  SumsBegun(const SumsBegun&) = delete;
  SumsBegun& operator=(const SumsBegun&) = delete;

  // x: dense rows of at most kLandingBytes, which stay until finish().
  void begin(const Launch& l, const Tensor& x);
  // Whether x begins with the oldest run that was begun and not finished.
  bool awaits(const Tensor& x) const { return finished_ != begun_ && runs_[finished_ % kUnderWay].data == x.data; }
  // Adds x, which awaits(), as all_reduce() does. x is one run or several, of which all but the last have as many rows.
  void finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate);
  // The same, and the norm of the result. Returns false and does nothing if rows are not whole units of four columns,
  // or are longer than a block holds.
  bool finish(const Launch& l, const Tensor& out, const Tensor& x, bool accumulate, const ops::RowNorm& norm);

 private:
  static constexpr uint32_t kUnderWay = ops::kMostRunsBegun;
  static_assert(kLandings == 2 * kUnderWay);

  struct Run {
    const std::byte* data = nullptr;
    int64_t rows = 0;
  };
  // Calls launch() for x, the next runs.
  template <class F>
  void finish_runs(const Launch& l, const Tensor& out, const Tensor& x, F&& launch);

  PeerMemory memory_;
  bool one_device_;
  cudaStream_t copies_ = nullptr;
  std::array<cudaEvent_t, kUnderWay> computed_{}, copied_{};
  std::array<Run, kUnderWay> runs_{};  // by number
  uint32_t begun_ = 0, finished_ = 0;
};

}  // namespace sluice::cuda
