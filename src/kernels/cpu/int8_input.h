// Quantizes activations to int8: every 32 inputs of a row are rounded to multiples of their largest magnitude / 127.
// The scale stays fp32. A correction that turns stored quants into weights is kept next to them. It is one of two
// values: the start of each dot product (minus the offset times the sum of the inputs), or the factor of the minimum
// (the sum times the scale).
#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/int8_panels.h"
#include "kernels/cpu/simd_int8.h"
#include "tensor/tensor.h"

namespace sluice::SLUICE_ISA {

// Properties of a layout that the matmul depends on.
struct Int8Traits {
  int subs;  // scales per block
  bool mins;
  bool wide;     // inputs in 16 bits, see WideQuad
  int together;  // dot products added in 16 bits, see add_dot()

  friend constexpr bool operator==(const Int8Traits&, const Int8Traits&) = default;
};

template <Int8Traits Traits>
struct InputBlock {
  // Wide: the even ones of four come first.
  std::conditional_t<Traits.wide, int16_t, int8_t> quants[kernels::kQuantBlock];
  float scale;
  std::conditional_t<Traits.mins, float, int32_t> sums[Traits.subs];
};

// A value that is not finite makes the block's scale NaN, and so the row's results. The block's quants and sums are
// then meaningless and may wrap around.
template <Int8Traits Traits>
SLUICE_INLINE void quantize_block(const float* x, int offset, InputBlock<Traits>& to) {
  constexpr int kVecs = kernels::kQuantBlock / kLanes, kVecsPerSub = kVecs / Traits.subs;
  Vec values[kVecs];
  Bytes top = broadcast_lane(0);
  SLUICE_UNROLL
  for (int i = 0; i < kVecs; ++i) {
    values[i] = load(x + i * kLanes, All{});
    top = max_lanes(top, magnitude_bits(values[i]));  // magnitudes order as integers; NaN is the largest
  }
  const int top_bits = reduce_max_lanes(top);
  float magnitude;
  __builtin_memcpy(&magnitude, &top_bits, sizeof magnitude);
  to.scale = magnitude / 127.0f + (magnitude - magnitude);
  const Vec inverse = broadcast(top_bits == 0 ? 0.0f : 127.0f / magnitude);
  Bytes lanes[kVecs];
  SLUICE_UNROLL
  for (int i = 0; i < kVecs; ++i) {
    lanes[i] = float_to_lanes(values[i] * inverse);
    if constexpr (Traits.wide) {
      store_even_odd(to.quants + i * kLanes, lanes[i]);
    } else {
      store_saturated(to.quants + i * kLanes, lanes[i]);
    }
  }
  SLUICE_UNROLL
  for (int s = 0; s < Traits.subs; ++s) {
    Bytes sum = lanes[s * kVecsPerSub];
    SLUICE_UNROLL
    for (int i = 1; i < kVecsPerSub; ++i) sum = add_lanes(sum, lanes[s * kVecsPerSub + i]);
    const int total = reduce_add_lanes(sum);
    if constexpr (Traits.mins) {
      to.sums[s] = static_cast<float>(total) * to.scale;
    } else {
      to.sums[s] = static_cast<int32_t>(0u - static_cast<uint32_t>(offset) * static_cast<uint32_t>(total));
    }
  }
}

// Rows of blocks in the pool's scratch memory. It extends kSpareRows past the end, because tiles are read whole.
inline constexpr int64_t kSpareRows = 15;
template <Int8Traits Traits>
struct Int8Rows {
  const InputBlock<Traits>* data;
  int64_t stride;  // blocks between rows

  Int8Rows from(int64_t row, int64_t block) const { return {data + row * stride + block, stride}; }
};

template <Int8Traits Traits>
Int8Rows<Traits> quantize_rows(ops::Queue& queue, const Tensor& x, int64_t row, int64_t rows, int offset) {
  using Block = InputBlock<Traits>;
  const int64_t blocks = x.shape[1] / kernels::kQuantBlock;
  auto* to = reinterpret_cast<Block*>(
      queue.threads().scratch(static_cast<size_t>((rows + kSpareRows) * blocks) * sizeof(Block)));
  constexpr int64_t kGrain = 1 << 10;  // blocks worth handing to another thread
  queue.threads().parallel_for(rows, kGrain / (blocks + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = reinterpret_cast<const float*>(x.data) + (row + r) * x.row_stride;
      for (int64_t b = 0; b < blocks; ++b) {
        quantize_block<Traits>(from + b * kernels::kQuantBlock, offset, to[r * blocks + b]);
      }
    }
  });
  return {to, blocks};
}

}  // namespace sluice::SLUICE_ISA
