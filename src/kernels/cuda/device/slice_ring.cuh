// The K-slices of panels (panel_codec.cuh) that a warp multiplies, prefetched through shared memory (PTX ISA:
// cp.async). Every lane copies what it reads itself, so no warp waits for others. Prefetching more than one slice into
// registers would not work: all loads count on one scoreboard, so the first use would wait for the last load.
#pragma once

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// A ring of `slots` K-slices in flight.
template <class Codec, int slots>
class SharedSliceRing {
 public:
  using Slice = typename Codec::Slice;
  static constexpr int kSlots = slots;
  // Bytes per warp.
  static constexpr uint32_t kSlotBytes = 32 * 4 * Codec::kWords, kBytes = slots * kSlotBytes;

  // `memory`: the shared-memory address of kBytes bytes, a multiple of 16.
  __device__ explicit SharedSliceRing(uint32_t memory) : begin_(memory), slot_(memory) {}

  // Prefetches K-slice `slice` of the codec's panel into the slot that was taken last. prefetch_none() advances the
  // ring without a copy. At first one of the two must be called `slots` times.
  __device__ void prefetch(const Codec& codec, int slice) {
    uint32_t to = slot_;
    codec.for_words(slice, [&]<int words>(const std::byte* from) {
      copy_async_words<words>(to + threadIdx.x % 32 * (4 * words), from);
      to += 32 * 4 * words;
    });
    go_on();
  }
  __device__ void prefetch_none() { go_on(); }

  // Reads the oldest slice. One of the prefetch functions has to follow.
  __device__ void take(Slice& slice) const {
    wait_for_copies<slots - 1>();
    uint32_t from = slot_;
    Codec::for_parts(slice, [&](auto& words) {
      constexpr int kWords = sizeof(words) / 4;
      read_words(words, from + threadIdx.x % 32 * (4 * kWords));
      from += 32 * 4 * kWords;
    });
  }

 private:
  __device__ void go_on() {
    commit_copies();
    slot_ += kSlotBytes;
    if (slot_ == begin_ + kBytes) slot_ = begin_;
  }

  const uint32_t begin_;
  uint32_t slot_;
};

// Prefetches the next K-slice only, into registers. For panels whose rows lie apart, for which copies of 16 bytes take
// longer.
template <class Codec>
class NextSlice {
 public:
  using Slice = typename Codec::Slice;
  static constexpr int kSlots = 1;
  static constexpr uint32_t kBytes = 0;

  __device__ explicit NextSlice(uint32_t) {}
  __device__ void prefetch(const Codec& codec, int slice) { codec.load(slice_, 0, slice); }
  __device__ void prefetch_none() {}
  __device__ void take(Slice& slice) const { slice = slice_; }

 private:
  Slice slice_;
};

// A ring with `slots` slices in flight, where that helps.
template <class Codec, int slots>
using SliceRing = std::conditional_t<Codec::kRowsApart, NextSlice<Codec>, SharedSliceRing<Codec, slots>>;

}  // namespace sluice::cuda
