// The tile kernel of matmuls with packed weights (kernels/cpu/panels.h), a template over a codec for one stored type.
// It holds Rows x Panels accumulators in registers: one per (row, column), with k ascending. Blocks over k spill and
// reload exact fp32. So a row's bits depend only on the row, not on the batch, its tile or the thread.
#pragma once

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {

using kernels::kPanel;

inline constexpr int kVecs = kPanel / kLanes;        // vectors per panel
inline constexpr int kMaxRows = 6;                   // rows of the largest tile
inline constexpr int kGroup = 4;                     // panels handed out together
inline constexpr int64_t kRowChunk = 32 * kMaxRows;  // rows multiplied with a block of weights while it is cached
inline constexpr int64_t kPassRows = 4 * kRowChunk;  // rows per pass over the weights: bounds the scratch memory

// Panels per tile: as many accumulators as leave registers for weights and inputs.
template <int Rows>
inline constexpr int kPanels = kRegisters == 32 ? kGroup
                               : Rows == 1      ? 4
                               : Rows <= 3      ? 2
                                                : 1;

// Prefetch distance of a lone tile, for its first and last panel. Hardware prefetchers follow the panels of a whole
// group.
template <int Panels>
inline constexpr int64_t kAheadBytes = Panels == kGroup ? 2 << 10 : 6 << 10;

// A codec. Input is one element of x as the kernel reads it. kUnits inputs are stored side by side in kUnitBytes for
// each panel. weights<U>() decodes 16 columns of unit U.
struct F32 {
  using Input = float;
  static constexpr int kUnits = 1;
  static constexpr int64_t kStored = 1, kBytes = 4;
  template <int>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    return load(reinterpret_cast<const float*>(p), All{});
  }
  SLUICE_INLINE static Vec multiply_add(Vec w, Input x, Vec sum) { return add_product(sum, w, broadcast(x)); }
};

// Describes where a tile's sums are loaded from and stored to.
struct Sums {
  float* partial;    // [rows][kGroup * kPanel]: sums of earlier blocks, null when there is only one block
  bool first, last;  // first or last block over k
  const ops::MatmulArgs* args;
  int64_t row, column;  // position of the tile in args->out
};

// The rows of x that the kernel reads, `stride` inputs apart.
template <class Codec>
struct Rows {
  const typename Codec::Input* data;
  int64_t stride;
};

template <int R, int P>
SLUICE_INLINE void finish(const Sums& sums, const Vec (&acc)[R][P * kVecs]) {
  const ops::MatmulArgs& args = *sums.args;
  const int64_t n = args.weight->n;
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    float* out = reinterpret_cast<float*>(args.out.data) + (sums.row + r) * args.out.row_stride;
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) {
      const int64_t column = sums.column + v * kLanes;
      const auto emit = [&](auto extent) {
        Vec y = acc[r][v];
        if (args.bias != nullptr) y = y + load(args.bias + column, extent);
        if (args.accumulate) y = load(out + column, extent) + y;
        store(out + column, y, extent);
      };
      if (column + kLanes <= n) {
        emit(All{});
      } else if (column < n) {
        emit(First{static_cast<int>(n - column)});
      }
    }
  }
}

// Computes one unit of k: decodes the weights of P panels and multiplies them with R inputs.
template <class Codec, int Unit, int R, int P>
SLUICE_INLINE void step(const std::byte* weights, int64_t panel_bytes, const typename Codec::Input* x, int64_t stride,
                        Vec (&acc)[R][P * kVecs]) {
  constexpr int64_t kVecBytes = kLanes * Codec::kStored * Codec::kBytes;
  decltype(Codec::template weights<Unit>(weights)) w[P * kVecs];
  SLUICE_UNROLL
  for (int v = 0; v < P * kVecs; ++v) {
    w[v] = Codec::template weights<Unit>(weights + v / kVecs * panel_bytes + v % kVecs * kVecBytes);
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) acc[r][v] = Codec::multiply_add(w[v], x[r * stride], acc[r][v]);
  }
}

// The weights of a tile: `units` units of k of `panels` panels, which are `panel_bytes` apart.
struct Block {
  const std::byte* weights;
  int64_t panel_bytes;
  int64_t panels;
  int64_t units;
  int64_t next;  // distance in bytes to the block multiplied next; 0 when there is none

  Block from(int64_t panel) const { return {weights + panel * panel_bytes, panel_bytes, panels - panel, units, next}; }
};

// Prefetch addresses of a tile: cache lines of the next block over k, of two panels, one of each per step.
struct Ahead {
  const std::byte* first;
  const std::byte* second;
};

// R rows by the first P panels of the block.
template <class Codec, int R, int P>
void tile(Rows<Codec> x, const Block& block, const Sums& sums, Ahead ahead) {
  constexpr int64_t kStepBytes = kPanel * Codec::kStored * Codec::kBytes;
  Vec acc[R][P * kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) {
      acc[r][v] = sums.first ? zero() : load(sums.partial + r * kGroup * kPanel + v * kLanes, All{});
    }
  }
  const typename Codec::Input* input = x.data;
  const std::byte* weights = block.weights;
  const int64_t panel_bytes = block.panel_bytes, steps = block.units / Codec::kUnits;
  for (int64_t i = 0; i < steps; ++i) {
    __builtin_prefetch(ahead.first + i * kStepBytes, 0, 2);
    __builtin_prefetch(ahead.second + i * kStepBytes, 0, 2);
    step<Codec, 0, R, P>(weights, panel_bytes, input, x.stride, acc);
    if constexpr (Codec::kUnits == 2) step<Codec, 1, R, P>(weights, panel_bytes, input + 1, x.stride, acc);
    weights += kStepBytes;
    input += Codec::kUnits;
  }
  if constexpr (Codec::kUnits == 2) {
    if (block.units % 2 != 0) step<Codec, 0, R, P>(weights, panel_bytes, input, x.stride, acc);
  }
  if (sums.last) return finish<R, P>(sums, acc);
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) store(sums.partial + r * kGroup * kPanel + v * kLanes, acc[r][v], All{});
  }
}

// Position of a tile among those that multiply the same block in turn.
struct Turn {
  int64_t tile, tiles;
};

// R rows by all panels of the block. The tiles divide the panels of the next block for prefetching. So memory works
// while all of them compute, not only when the first one misses its weights.
template <class Codec, int R>
void tile_row(Rows<Codec> x, const Block& block, Sums sums, Turn turn) {
  constexpr int P = kPanels<R>;
  const int64_t sharing = turn.tiles < kGroup ? turn.tiles : kGroup;
  int64_t panel = 0;
  const auto run = [&]<int Panels>() {
    const Block rest = block.from(panel);
    const std::byte* soon = rest.weights + (turn.tiles == 1 ? kAheadBytes<Panels> : 0);  // 0: prefetches nothing new
    Ahead ahead{soon, soon + (Panels - 1) * rest.panel_bytes};
    if (rest.next != 0 && turn.tile < sharing) {
      const std::byte* next = rest.weights + rest.next;
      if (Panels == kGroup) {
        ahead.first = next + turn.tile * kGroup / sharing * rest.panel_bytes;
        ahead.second = next + ((turn.tile + 1) * kGroup - 1) / sharing * rest.panel_bytes;
      } else if (panel % sharing == turn.tile) {
        ahead = {next, next + (Panels - 1) * rest.panel_bytes};
      }
    }
    tile<Codec, R, Panels>(x, rest, sums, ahead);
    panel += Panels;
    sums.column += Panels * kPanel;
    if (sums.partial != nullptr) sums.partial += Panels * kPanel;
  };
  while (panel + P <= block.panels) run.template operator()<P>();
  while (panel < block.panels) run.template operator()<1>();
}

template <class Codec>
void tile_rows(int64_t rows, Rows<Codec> x, const Block& block, const Sums& sums, Turn turn) {
  static_assert(kMaxRows == 6);
  switch (rows) {
    case 1:
      return tile_row<Codec, 1>(x, block, sums, turn);
    case 2:
      return tile_row<Codec, 2>(x, block, sums, turn);
    case 3:
      return tile_row<Codec, 3>(x, block, sums, turn);
    case 4:
      return tile_row<Codec, 4>(x, block, sums, turn);
    case 5:
      return tile_row<Codec, 5>(x, block, sums, turn);
    case 6:
      return tile_row<Codec, 6>(x, block, sums, turn);
  }
}

}  // namespace sluice::SLUICE_ISA
