// The epilogue warps of the persistent decode kernel: they add up the sums of the math warps and pass results on.
#pragma once

#include "kernels/cuda/decode_kernel/block.cuh"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/clamped_product.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda::persistent {

static __device__ __noinline__ float gated_otherwise(const Gate& g, float gate, float up) {
  return g.limit > 0.0f ? clamped_product(gate, up, g.alpha, g.limit) : apply(g.activation, gate) * up;
}
__device__ inline bool is_plain_silu(const Gate& g) {
  return g.activation == ops::Activation::kSilu && !(g.limit > 0.0f);
}
// The usual gate is inlined.
__device__ inline float gated_value(const Gate& g, bool plain_silu, float gate, float up) {
  return plain_silu ? apply(ops::Activation::kSilu, gate) * up : gated_otherwise(g, gate, up);
}

// The bias of an output of a choice of experts, or its weighted sum over the choices of a row.
static __device__ __noinline__ float bias_of(const MatmulInstruction& p, const Choice* choices, int output) {
  if (p.experts.part == ExpertPart::kIn) return __ldg(p.bias + choices->expert * p.experts.bias_step + output);
  float sum = 0.0f;
#pragma unroll 4
  for (int j = 0; j < p.experts.choice.top_k; ++j) {
    sum = fmaf(choices[j].weight, __ldg(p.bias + choices[j].expert * p.experts.bias_step + output), sum);
  }
  return sum;
}

// Exchanges a value with the other ranks (device/peers.cuh). Not inlined, so that matmuls without ranks keep their
// registers.
static __device__ __noinline__ void send_part(const PeerMemory& peers, int64_t word, float part, uint32_t round) {
  send_value(peers, word, part, round);
}
static __device__ __noinline__ float sum_parts(const PeerMemory& peers, int64_t word, float part, uint32_t round) {
  return sum_values(peers, word, part, round);
}

// An epilogue warp's part of a matmul. For every kEpilogueWarps-th unit it adds up the math warps' sums of a panel and
// passes the results on; a lane has one output of every other row. The fields of the instruction stay in registers.
// What is added to the sums, or multiplied with the results, is loaded one panel ahead, so that results do not wait for
// it. `of_experts`: a panel has the results of one row only.
template <class T, bool of_experts, bool biased_experts>
__device__ void run_epilogue(const MatmulInstruction& p, const Memory& memory, int epilogue, RingPlace& sums_place,
                             uint32_t tag, const PeerMemory& peers, uint32_t rounds, const Choice* choices) {
  constexpr int kRowsOfWarp = kWarp / kPanelOutputs, kRowsOfLane = kMostDecodeKernelRows / kRowsOfWarp;
  const Units units(p);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, output = lane % kPanelOutputs,
            first_row = lane / kPanelOutputs;
  const int grid = static_cast<int>(gridDim.x), rows = of_experts ? 1 : p.rows, n = p.n;
  const bool accumulates = p.accumulate, is_gated = p.gated != nullptr, quads = p.put.quads;
  const bool keeps_out = p.keeps_out, keeps_gated = p.keeps_gated;
  const bool plain_silu = is_plain_silu(p.gate);
  const int64_t out_stride = p.out_stride, gated_stride = p.gated_stride, put_stride = p.put.to.stride;
  float* const out = p.out + first_row * out_stride + output;
  float* const gated = p.gated + first_row * gated_stride + output;
  uint2* put = p.put.to.words;
  if (put != nullptr) put += first_row * put_stride + (quads ? output / 4 * 2 : output);
  const float *const bias = p.bias, *const weight = p.put.weight;
  const float offset = p.put.offset;
  const bool of_ranks = p.sum != 0;
  const uint32_t round = rounds + static_cast<uint32_t>(p.sum);
  // Experts: which row and which unit of a matrix a unit's panel belongs to.
  const bool by_choice = of_experts && is_gated;
  const int top_k = p.experts.choice.top_k;
  const auto own = [&](int unit) { return by_choice ? unit % units.of_matrix : unit; };
  const auto row_of = [&](int unit, int half) { return by_choice ? unit / units.of_matrix / top_k : half; };
  const auto panel_of = [&](int unit, int half) {
    return of_experts && !by_choice ? unit : own(unit) + half * units.of_matrix;
  };

  struct Terms {  // what is added to the sums, and the factor of the results that are put
    float added[kRowsOfLane], factor;
  };
  const auto prefetch = [&](int unit, int half) {
    const int panel = panel_of(unit, half);
    const float* const from = of_experts ? out + row_of(unit, half) * out_stride : out;
    Terms b{{0.0f, 0.0f}, 1.0f};
    if (panel * kPanelOutputs + output >= n) return b;
    float of_all = 0.0f;
    if constexpr (biased_experts) {
      if (bias != nullptr && unit < units.count) {
        const int choice = by_choice ? unit / units.of_matrix : half * top_k;
        of_all = bias_of(p, choices + choice, panel * kPanelOutputs + output);
      }
    } else {
      of_all = bias != nullptr ? __ldg(bias + panel * kPanelOutputs + output) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      b.added[i] = of_all;
      if (accumulates && first_row + i * kRowsOfWarp < rows) {
        b.added[i] += __ldcg(from + i * kRowsOfWarp * out_stride + int64_t{panel} * kPanelOutputs);
      }
    }
    if (weight != nullptr) b.factor = __ldg(weight + unit * kPanelOutputs + output) + offset;
    return b;
  };

  float scales[kRowsOfLane] = {1.0f, 1.0f}, gates[kRowsOfLane];
  bool first = p.norms;
  const int first_unit = units.first + epilogue * grid;
  int turn = epilogue;  // 0: the unit belongs to this warp
  Terms next = prefetch(first_unit, 0);
#pragma unroll 1
  for (int unit = units.first; unit < units.count; unit += grid) {
    const bool others = turn != 0;
    turn = others ? turn - 1 : kEpilogueWarps - 1;
    if (others) {
      for (int half = 0; half < units.panels; ++half) sums_place.next();
      continue;
    }
    const int next_unit = unit + kEpilogueWarps * grid;
#pragma unroll 1
    for (int half = 0; half < units.panels; ++half) {
      const int panel = panel_of(unit, half), row = of_experts ? row_of(unit, half) : 0;
      Terms terms = next;
      if (by_choice) terms.factor = choices[unit / units.of_matrix].weight;
      const bool ends = half + 1 == units.panels;
      if (!ends || next_unit < units.count) next = ends ? prefetch(next_unit, 0) : prefetch(unit, half + 1);
      sums_place.wait_full();
      if (first) {
        first = of_experts && p.rows > 1;  // the next panel may be another row's
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i) {
          float squares = 0.0f;
          for (int w = 0; w < kMathWarps; ++w) {
            squares += memory.squares[(row + min(first_row + i * kRowsOfWarp, rows - 1)) * kMathWarps + w];
          }
          scales[i] = rsqrtf(squares / static_cast<float>(p.k) + p.eps);
        }
      }
      const float* sums = memory.sums + sums_place.offset() + output * kSumsPitch + first_row;
      float totals[kRowsOfLane];
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        totals[i] = 0.0f;
        if (i * kRowsOfWarp >= rows) break;
#pragma unroll
        for (int w = 0; w < kMathWarps; ++w) totals[i] += sums[w * kPanelOutputs * kSumsPitch + i * kRowsOfWarp];
      }
      __syncwarp();
      if (lane == 0) arrive(sums_place.empty());
      sums_place.next();
      if (of_ranks) {
#pragma unroll
        for (int i = 0; i < kRowsOfLane; ++i) {
          const int here = first_row + i * kRowsOfWarp, column = panel * kPanelOutputs + output;
          if (here < rows && column < n) {
            send_part(peers, inbox_word(row + here, column, n), scales[i] * totals[i], round);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kRowsOfLane; ++i) {
        if (i * kRowsOfWarp >= rows) break;
        const bool own = panel * kPanelOutputs + output < n && first_row + i * kRowsOfWarp < rows;
        float result = fmaf(scales[i], totals[i], terms.added[i]);
        if (of_ranks && own) {
          const int64_t word = inbox_word(row + first_row + i * kRowsOfWarp, panel * kPanelOutputs + output, n);
          result = terms.added[i] + sum_parts(peers, word, scales[i] * totals[i], round);
        }
        __syncwarp();
        if (own && keeps_out) out[(row + i * kRowsOfWarp) * out_stride + int64_t{panel} * kPanelOutputs] = result;
        if (is_gated) {
          if (half == 0) {
            gates[i] = result;
            continue;
          }
          result = gated_value(p.gate, plain_silu, gates[i], result);
          if (own && keeps_gated) gated[i * kRowsOfWarp * gated_stride + int64_t{unit} * kPanelOutputs] = result;
        }
        if (put == nullptr) continue;
        const int put_row = (by_choice ? 0 : row) + i * kRowsOfWarp;  // units of choices follow each other
        uint2* const to = put + put_row * put_stride + unit * (quads ? kPanelOutputs / 2 : kPanelOutputs);
        if (!quads) {
          if (own) put_word(to, __float_as_uint(result), tag);
          continue;
        }
        float squares = result * result;
        squares += __shfl_xor_sync(kFullWarp, squares, 1);
        squares += __shfl_xor_sync(kFullWarp, squares, 2);
        const float value = result * terms.factor;
        const uint32_t low = pack2<T>(value, __shfl_down_sync(kFullWarp, value, 1));
        const uint32_t high = __shfl_down_sync(kFullWarp, low, 2);
        if (own && output % 4 == 0) put_quad(to, {low, high, squares, tag});
      }
    }
  }
}

}  // namespace sluice::cuda::persistent
