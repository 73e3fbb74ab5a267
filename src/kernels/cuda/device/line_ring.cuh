// The K-slices of panels (panel_codec.cuh) that a warp multiplies, prefetched through shared memory (PTX ISA:
// cp.async). Every lane copies what it reads itself, so no warp waits for others. Prefetching more than one slice into
// registers would not work: all loads count on one scoreboard, so the first use would wait for the last load.
#pragma once

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// A ring of `slots` K-slices in flight.
template <class Codec, int slots>
class SharedLineRing {
 public:
  using Line = typename Codec::Line;
  static constexpr int kSlots = slots;
  // bytes per warp
  static constexpr uint32_t kSlotBytes = 32 * 4 * Codec::kWords, kBytes = slots * kSlotBytes;

  // `memory`: the shared-memory address of kBytes bytes, a multiple of 16.
  __device__ explicit SharedLineRing(uint32_t memory) : begin_(memory), slot_(memory) {}

  // Prefetches K-slice `line` of the codec's panel into the slot that was taken last. ask_for_none() advances the ring
  // without a copy. At first one of the two must be called `slots` times.
  __device__ void ask(const Codec& codec, int line) {
    uint32_t to = slot_;
    codec.for_words(line, [&]<int words>(const std::byte* from) {
      copy_async_words<words>(to + threadIdx.x % 32 * (4 * words), from);
      to += 32 * 4 * words;
    });
    go_on();
  }
  __device__ void ask_for_none() { go_on(); }

  // Reads the oldest slice. One of the ask functions has to follow.
  __device__ void take(Line& line) const {
    wait_for_copies<slots - 1>();
    uint32_t from = slot_;
    Codec::for_parts(line, [&](auto& words) {
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
class NextLine {
 public:
  using Line = typename Codec::Line;
  static constexpr int kSlots = 1;
  static constexpr uint32_t kBytes = 0;

  __device__ explicit NextLine(uint32_t) {}
  __device__ void ask(const Codec& codec, int line) { codec.load(line_, 0, line); }
  __device__ void ask_for_none() {}
  __device__ void take(Line& line) const { line = line_; }

 private:
  Line line_;
};

// A ring with `slots` slices in flight, where that helps.
template <class Codec, int slots>
using LineRing = std::conditional_t<Codec::kRowsApart, NextLine<Codec>, SharedLineRing<Codec, slots>>;

}  // namespace sluice::cuda
