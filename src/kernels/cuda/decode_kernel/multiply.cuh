// The math warps of the persistent decode kernel: they take the inputs of a matmul and multiply stages of weights.
#pragma once

#include <utility>

#include "kernels/cuda/decode_kernel/block.cuh"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda::persistent {

// Copies the inputs of a matmul from an Exchange to where the tensor cores read them. A step runs this once per matmul,
// and most of its time is waiting. So the quads of the next batch are loaded while one is processed. `of_choices`: the
// inputs of each choice of experts are padded to whole stages.
template <class T, class Weights, bool of_choices = false>
__device__ void take_inputs(const MatmulInstruction& p, const Memory& memory, const Team& team, uint32_t tag) {
  constexpr int kBatch = 8, kPadded = Weights::kPaddedSlices;
  const int thread = static_cast<int>(threadIdx.x), rows = p.rows, given = p.k / 4;
  const int quads = (p.slices + kPadded - 1) / kPadded * kPadded * (kPanelSlice / 4);
  const int64_t stride = p.in.stride;
  const uint2* const from = p.in.words + thread * 2;
  const Inputs inputs = inputs_of(p, memory);
  int row = 0, first = 0;  // of the next batch
  Quad next[kBatch];
  const int of_choice = p.experts.quads, padded = p.experts.stages * Weights::kSlices * (kPanelSlice / 4);
  // The place of a quad among those in the Exchange; at least `given` for padding.
  const auto place_of = [&](int quad) {
    if constexpr (!of_choices) return quad;
    const int choice = quad / padded, own = quad - choice * padded;
    return own < of_choice ? choice * of_choice + own : given;
  };
  const auto prefetch = [&] {
    const uint2* at = from + row * stride + first * 2;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int quad = first + thread + i * kThreads, place = place_of(quad);
      const uint2* here = of_choices ? at + (place - (first + thread)) * 2 : at + i * kThreads * 2;
      next[i] = place < given ? load_quad(here) : Quad{0, 0, 0.0f, tag};
    }
  };
  prefetch();
  float squares = 0.0f;
#pragma unroll 1
  while (row < rows) {
    Quad now[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) now[i] = next[i];
    const int own_row = row, own_first = first;
    first += kBatch * kThreads;
    if (first >= quads) first = 0, ++row;
    if (row < rows) prefetch();
    const uint2* at = from + own_row * stride + own_first * 2;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int quad = own_first + thread + i * kThreads;
      if (quad >= quads) break;
      const uint2* here = of_choices ? at + (place_of(quad) - (own_first + thread)) * 2 : at + i * kThreads * 2;
      const Quad q = wait_for_quad(here, now[i], tag);
      squares += q.squares;
      const float2 low = unpack2<T>(q.low), high = unpack2<T>(q.high);
      Weights::store_inputs(inputs, own_row, quad, {low.x, low.y, high.x, high.y});
    }
    if (row == own_row) continue;
    squares = warp_sum(squares);
    if (thread % kWarp == 0) memory.squares[own_row * kMathWarps + thread / kWarp] = squares;
    squares = 0.0f;
  }
  if constexpr (Weights::kByWarpGroup) fence_proxy_async();
  team.sync();
}

// Multiplies the warp group's next stages. All of them begin before the first one ends.
template <class Panel, int... i>
__device__ void add_stages(Panel& panel, const Memory& memory, OwnStages& own, const Inputs& inputs,
                           std::integer_sequence<int, i...>) {
  constexpr int kLast = sizeof...(i) - 1;
  uint32_t empty[kLast + 1];
  const auto begin = [&](auto set) {
    own.place.wait_full();
    panel.template begin<set()>(memory.ring + own.place.offset(), own.next, inputs);
    empty[set()] = own.place.empty();
    own.next += own.place.next();
  };
  const auto end = [&](auto set) {
    panel.template end<set(), kLast - set()>();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(empty[set()]);
  };
  (begin(std::integral_constant<int, i>()), ...);
  (end(std::integral_constant<int, i>()), ...);
}

struct AllRows {
  __device__ int operator()(int, int) const { return 0; }
};

// A matmul of at most `rows` rows whose inputs are in shared memory. row_of(unit, panel) is the first of them.
template <class Weights, int rows, class RowOf = AllRows>
__device__ void matmul_rows(const Units& units, Inputs inputs, const Memory& memory, OwnStages& own,
                            RingPlace& sums_place, RowOf row_of = {}) {
  using Panel = typename Weights::template Panel<rows>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int stages = (inputs.slices + Weights::kSlices - 1) / Weights::kSlices, grid = static_cast<int>(gridDim.x);
#pragma unroll 1
  for (int unit = units.first; unit < units.count; unit += grid) {
#pragma unroll 1
    for (int i = 0; i < units.panels; ++i) {
      Panel panel;
      inputs.row = row_of(unit, i);
      while (own.next < stages) {
        if (Panel::kSets > 1 && own.next + (Panel::kSets - 1) * kMathGroups < stages) {
          add_stages(panel, memory, own, inputs, std::make_integer_sequence<int, Panel::kSets>());
        } else {
          add_stages(panel, memory, own, inputs, std::make_integer_sequence<int, 1>());
        }
      }
      own.next -= stages;
      sums_place.wait_empty();
      panel.store_sums(memory.sums + sums_place.offset() + warp * kPanelOutputs * kSumsPitch, kSumsPitch);
      __syncwarp();
      if (lane == 0) arrive(sums_place.full());
      sums_place.next();
    }
  }
}

// A panel has other weights for each row.
template <class T, class Weights>
__device__ void multiply_experts(const MatmulInstruction& p, const Memory& memory, OwnStages& own,
                                 RingPlace& sums_place, const Team& team, uint32_t epoch) {
  const Units units(p);
  const Inputs inputs = inputs_of(p, memory);
  if (p.experts.part == ExpertPart::kOut) {
    take_inputs<T, Weights, true>(p, memory, team, epoch + p.in.step);
    return matmul_rows<Weights, 1>(units, inputs, memory, own, sums_place, [](int, int row) { return row; });
  }
  take_inputs<T, Weights>(p, memory, team, epoch + p.in.step);
  const int units_of_row = units.of_matrix * p.experts.choice.top_k;
  matmul_rows<Weights, 1>(units, inputs, memory, own, sums_place, [=](int unit, int) { return unit / units_of_row; });
}

template <class T, class Weights, bool executes_experts>
__device__ void multiply(const MatmulInstruction& p, const Memory& memory, OwnStages& own, RingPlace& sums_place,
                         const Team& team, uint32_t epoch) {
  const Units units(p);
  if (!units.any()) return;
  const Inputs inputs = inputs_of(p, memory);
  static_assert(kMostDecodeKernelRows == 4);
  if constexpr (Weights::kExperts && executes_experts) {
    if (p.experts.part != ExpertPart::kNone) {
      return multiply_experts<T, Weights>(p, memory, own, sums_place, team, epoch);
    }
  }
  take_inputs<T, Weights>(p, memory, team, epoch + p.in.step);
  if constexpr (Weights::kExperts) {
    if (inputs.rows == 1) return matmul_rows<Weights, 1>(units, inputs, memory, own, sums_place);
    if (inputs.rows == 2) return matmul_rows<Weights, 2>(units, inputs, memory, own, sums_place);
  }
  matmul_rows<Weights, kMostDecodeKernelRows>(units, inputs, memory, own, sums_place);
}

}  // namespace sluice::cuda::persistent
