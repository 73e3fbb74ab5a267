// The lines of panels (panel_codec.cuh) that a warp multiplies, one after the other, on their way: through shared
// memory (PTX ISA: cp.async), where every lane copies what it reads itself, so that nobody waits for others. More than
// one line in registers would not do: all loads count on one scoreboard, and the first one that is used waits for the
// last one.
#pragma once

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// `slots` lines on their way.
template <class Codec, int slots>
class SharedLineRing {
 public:
  using Line = typename Codec::Line;
  static constexpr int kSlots = slots;
  static constexpr uint32_t kSlotBytes = 32 * 4 * Codec::kWords, kBytes = slots * kSlotBytes;  // of a warp

  // `memory`: kBytes of it, a multiple of 16.
  __device__ explicit SharedLineRing(uint32_t memory) : begin_(memory), slot_(memory) {}

  // Asks for a line of the codec's panel behind all others, or for none, in the place of the one that was taken last.
  // First of all `slots` times.
  __device__ void ask(const Codec& codec, int line) {
    uint32_t to = slot_;
    codec.for_words(line, [&]<int words>(const std::byte* from) {
      copy_async_words<words>(to + threadIdx.x % 32 * (4 * words), from);
      to += 32 * 4 * words;
    });
    go_on();
  }
  __device__ void ask_for_none() { go_on(); }

  // The line that was asked for first. One of ask() has to follow.
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

// The next line alone, in registers: for panels whose rows lie apart, which copies of 16 bytes take longer for.
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

// Lines of which `slots` are on their way where that is of use.
template <class Codec, int slots>
using LineRing = std::conditional_t<Codec::kRowsApart, NextLine<Codec>, SharedLineRing<Codec, slots>>;

}  // namespace sluice::cuda
