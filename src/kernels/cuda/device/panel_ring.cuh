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
  static constexpr int kSlices = Codec::kLayout.super_scale_words > 0 || 3 * Codec::kLayout.bytes_of(4) <= bytes ? 4
                                                                                                                 : 2;
  static constexpr auto kStageBytes = static_cast<uint32_t>(Codec::kLayout.bytes_of(kSlices));
  static constexpr int kStages = bytes / kStageBytes;
  static constexpr uint32_t kBarrierBytes = kStages * 8;
  static_assert(kStages >= 2);

  // `part` is the warp's part of the panel's `slices` slices and begins at a multiple of kSlices. Called by whole
  // warps.
  __device__ PanelRing(uint32_t memory, uint32_t barriers, int slices, const Part& part)
      : memory_(memory), barriers_(barriers), slices_(slices), end_(part.begin + part.count), prefetched_(part.begin) {
    if (threadIdx.x % kWarp == 0) {
      for (int i = 0; i < kStages; ++i) init_barrier(barriers + i * 8, 1);
      fence_proxy_async();
    }
    __syncwarp();
  }

  // Starts to copy the first stages of the panel at `panel`.
  __device__ void begin(const std::byte* panel) {
    constexpr PanelLayout kOwn = Codec::kLayout;  // device code cannot call member functions of a constant outside the
                                                  // function
    panel_ = panel, scales_ = panel + kOwn.scales_at(slices_), super_scales_ = panel + kOwn.super_scales_at(slices_);
    for (int i = 0; i < kStages; ++i) prefetch(i);
  }

  // Reads slice i of the current stage. The call with i = 0 waits until the whole stage has arrived.
  __device__ void read(typename Codec::Slice& to, int i) const {
    if (i == 0) wait_barrier(barriers_ + stage_ * 8, round_);
    const uint32_t stage = memory_ + stage_ * kStageBytes;
    Codec::read(to, stage + i * kSliceBytes, stage + kScalesAt + i / kLayout.scale_slices * kScaleBytes,
                stage + kSuperScalesAt);
  }
  // Frees the current stage: starts to copy the slices that replace it.
  __device__ void go_on() {
    __syncwarp();
    prefetch(stage_);
    if (++stage_ == kStages) stage_ = 0, round_ ^= 1;
  }

 private:
  static constexpr PanelLayout kLayout = Codec::kLayout;
  static constexpr auto kSliceBytes = static_cast<uint32_t>(kLayout.slice_bytes());
  static constexpr auto kScaleBytes = static_cast<uint32_t>(kLayout.scale_bytes());
  static constexpr auto kSuperScaleBytes = static_cast<uint32_t>(kLayout.super_scale_bytes());
  static constexpr uint32_t kScalesAt = kSlices * kSliceBytes;
  static constexpr uint32_t kSuperScalesAt =
      kScalesAt + PanelLayout::scale_blocks(kSlices, kLayout.scale_slices) * kScaleBytes;

  __device__ void prefetch(int stage) {
    const int slice = prefetched_, count = min(kSlices, end_ - slice);
    prefetched_ += kSlices;
    if (count <= 0 || threadIdx.x % kWarp != 0) return;
    const uint32_t to = memory_ + stage * kStageBytes, barrier = barriers_ + stage * 8;
    const uint32_t slices = count * kSliceBytes;
    const uint32_t scales = (count + kLayout.scale_slices - 1) / kLayout.scale_slices * kScaleBytes;
    const uint64_t policy = l2_evict_first();
    expect_bytes(barrier, slices + scales + kSuperScaleBytes);
    copy_bulk(to, panel_ + slice * kSliceBytes, slices, barrier, policy);
    copy_bulk(to + kScalesAt, scales_ + slice / kLayout.scale_slices * kScaleBytes, scales, barrier, policy);
    if constexpr (kSuperScaleBytes > 0) {
      copy_bulk(to + kSuperScalesAt, super_scales_ + slice / kLayout.super_scale_slices * kSuperScaleBytes,
                kSuperScaleBytes, barrier, policy);
    }
  }

  const uint32_t memory_, barriers_;
  const int slices_, end_;
  int prefetched_, stage_ = 0, round_ = 0;
  const std::byte *panel_ = nullptr, *scales_ = nullptr, *super_scales_ = nullptr;
};

}  // namespace sluice::cuda
