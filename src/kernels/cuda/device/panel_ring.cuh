// The K-slices of a panel (matmul/panel_layout.h) that a warp multiplies, prefetched through shared memory. A stage is
// two or four slices with their scales. The warp issues the bulk copies that fill it, so no warp waits for another.
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda {

// Uses `bytes` of shared memory, and kBarrierBytes for its barriers.
template <class Codec, uint32_t bytes>
class PanelRing {
 public:
  // Slices per stage: four where three such stages fit, or where four slices share scales.
  static constexpr int kLines = Codec::kLayout.super_words > 0 || 3 * Codec::kLayout.bytes_of(4) <= bytes ? 4 : 2;
  static constexpr auto kStageBytes = static_cast<uint32_t>(Codec::kLayout.bytes_of(kLines));
  static constexpr int kStages = bytes / kStageBytes;
  static constexpr uint32_t kBarrierBytes = kStages * 8;
  static_assert(kStages >= 2);

  // `part` is the warp's part of the panel's `lines` slices and begins at a multiple of kLines. Called by whole warps.
  __device__ PanelRing(uint32_t memory, uint32_t barriers, int lines, const Part& part)
      : memory_(memory), barriers_(barriers), lines_(lines), end_(part.begin + part.count), asked_(part.begin) {
    if (threadIdx.x % kWarp == 0) {
      for (int i = 0; i < kStages; ++i) init_barrier(barriers + i * 8, 1);
      wgmma_fence_operand();
    }
    __syncwarp();
  }

  // Starts to copy the first stages of the panel at `panel`.
  __device__ void begin(const std::byte* panel) {
    constexpr PanelLayout kOwn = Codec::kLayout;  // device code cannot call member functions of a constant outside the
                                                  // function
    panel_ = panel, scales_ = panel + kOwn.scales_at(lines_), supers_ = panel + kOwn.supers_at(lines_);
    for (int i = 0; i < kStages; ++i) ask(i);
  }

  // Reads slice i of the current stage. The call with i = 0 waits until the whole stage has arrived.
  __device__ void read(typename Codec::Line& to, int i) const {
    if (i == 0) wait_barrier(barriers_ + stage_ * 8, round_);
    const uint32_t stage = memory_ + stage_ * kStageBytes;
    Codec::read(to, stage + i * kLineBytes, stage + kScalesAt + i / kLayout.scale_lines * kScaleBytes,
                stage + kSupersAt);
  }
  // Frees the current stage: starts to copy the slices that replace it.
  __device__ void go_on() {
    __syncwarp();
    ask(stage_);
    if (++stage_ == kStages) stage_ = 0, round_ ^= 1;
  }

 private:
  static constexpr PanelLayout kLayout = Codec::kLayout;
  static constexpr auto kLineBytes = static_cast<uint32_t>(kLayout.line_bytes());
  static constexpr auto kScaleBytes = static_cast<uint32_t>(kLayout.scale_bytes());
  static constexpr auto kSuperBytes = static_cast<uint32_t>(kLayout.super_bytes());
  static constexpr uint32_t kScalesAt = kLines * kLineBytes;
  static constexpr uint32_t kSupersAt = kScalesAt + PanelLayout::records(kLines, kLayout.scale_lines) * kScaleBytes;

  __device__ void ask(int stage) {
    const int line = asked_, count = min(kLines, end_ - line);
    asked_ += kLines;
    if (count <= 0 || threadIdx.x % kWarp != 0) return;
    const uint32_t to = memory_ + stage * kStageBytes, barrier = barriers_ + stage * 8;
    const uint32_t lines = count * kLineBytes;
    const uint32_t scales = (count + kLayout.scale_lines - 1) / kLayout.scale_lines * kScaleBytes;
    const uint64_t policy = evicted_first();
    expect_bytes(barrier, lines + scales + kSuperBytes);
    copy_bulk(to, panel_ + line * kLineBytes, lines, barrier, policy);
    copy_bulk(to + kScalesAt, scales_ + line / kLayout.scale_lines * kScaleBytes, scales, barrier, policy);
    if constexpr (kSuperBytes > 0) {
      copy_bulk(to + kSupersAt, supers_ + line / kLayout.super_lines * kSuperBytes, kSuperBytes, barrier, policy);
    }
  }

  const uint32_t memory_, barriers_;
  const int lines_, end_;
  int asked_, stage_ = 0, round_ = 0;
  const std::byte *panel_ = nullptr, *scales_ = nullptr, *supers_ = nullptr;
};

}  // namespace sluice::cuda
