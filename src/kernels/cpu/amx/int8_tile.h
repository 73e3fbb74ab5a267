// Multiplies sixteen rows of int8 inputs by a decoded panel on AMX tiles. A tile matmul computes the exact dot products
// of one part of a block. The fp32 sums use the same operations in the same order as the vector path. Included by
// matmul_int8.cc only.
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/int8_codecs.h"
#include "kernels/cpu/int8_input.h"

namespace sluice::SLUICE_ISA {
namespace {

// The weights of one panel: quants [count][kRows][kByteRow] with the offset subtracted, and scales and minima
// [count][2][kPanel].
struct TilePanel {
  const std::byte* quants;
  const float* scales;
  const float* mins;
};

// sums[16] (`stride` floats apart) += sixteen rows of x times `count` blocks of a panel.
template <Int8Traits Traits>
void multiply_tile(Int8Rows<Traits> x, const TilePanel& panel, int64_t count, float* sums, int64_t stride) {
  constexpr int64_t kPartBytes = kRows / Traits.subs * kByteRow;
  const auto row_bytes = x.stride * static_cast<int64_t>(sizeof(InputBlock<Traits>));
  alignas(64) int32_t products[2][kTileRows][kPanel];  // double buffer: one is computed while the other is added
  Vec acc[kTileRows];
  SLUICE_UNROLL
  for (int r = 0; r < kTileRows; ++r) acc[r] = load(sums + r * stride, All{});
  for (int64_t i = 0; i < count * Traits.subs; ++i) {
    const int64_t b = i / Traits.subs;
    const int part = static_cast<int>(i % Traits.subs);
    const InputBlock<Traits>* in = x.data + b;
    _tile_zero(0);
    _tile_loadd(4, in->quants + part * kernels::kQuantBlock / Traits.subs, row_bytes);
    _tile_loadd(6, panel.quants + i * kPartBytes, kTileBytes);
    if constexpr (Traits.mins) {
      _tile_dpbsud(0, 4, 6);
    } else {
      _tile_dpbssd(0, 4, 6);
    }
    _tile_stored(0, products[i % 2], kTileBytes);
    const Vec scale = load(panel.scales + (b * 2 + part) * kPanel, All{});
    [[maybe_unused]] Vec min;
    if constexpr (Traits.mins) min = load(panel.mins + (b * 2 + part) * kPanel, All{});
    SLUICE_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const InputBlock<Traits>& row = in[r * x.stride];
      acc[r] = fma(lanes_to_float(load_bytes(products[i % 2][r])), scale * broadcast(row.scale), acc[r]);
      if constexpr (Traits.mins) acc[r] = fma(min, broadcast(row.sums[part]), acc[r]);
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < kTileRows; ++r) store(sums + r * stride, acc[r], All{});
}

}  // namespace
}  // namespace sluice::SLUICE_ISA
