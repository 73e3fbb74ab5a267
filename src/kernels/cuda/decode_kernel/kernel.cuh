// The persistent decode kernel behind DecodeKernelBuilder, a template over the type of plain weights and caches and
// over a quantized type. Launched cooperatively with one block per SM and 12 warps per block. Bound by reading weights
// and cache, then by the hand-offs between instructions.
//
// kMathWarps warps execute the instructions; all blocks execute all of them in order. Four more warps serve them. Two
// producer warps copy the weights of all matmuls to come into a ring of stages in shared memory. Two epilogue warps add
// up the math warps' sums and pass results on; the first of them also fetches instructions. Each stage is owned by one
// producer warp and each unit by one epilogue warp, so each of these warps has twice the time per stage or unit. Blocks
// wait for the words that they read (decode_kernel/exchange.cuh), and at a counter in device memory before instructions
// that need a grid barrier. Producer warps wait for neither, so memory is read all the time.
//
// A matmul's unit is a panel of 16 outputs. Its stages are of 8 KiB and need one or two copies: for plain rows and
// 8-bit floats a TMA tile of some columns of each row, for packed panels whole K-slices with their scales. Each stage
// is multiplied by one of two warp groups, which take stages in turn; each of the four warps multiplies a quarter.
// Every block normalizes and rounds the inputs into its own shared memory.
//
// Which experts a matmul of experts reads is known only when the router's logits are there. The producer and epilogue
// warps of every block wait for them and choose the experts, each for itself.
#pragma once

#include <utility>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/decode_kernel/attention.cuh"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/decode_kernel/weights.cuh"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/route.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda::persistent {

inline constexpr int kThreads = kMathWarps * kWarp;  // threads that compute
inline constexpr int kDecodeThreads = kThreads + (kEpilogueWarps + kProducerWarps) * kWarp;
inline constexpr int kRingAlign = 1024;
inline constexpr int kSumsPitch = kMostDecodeKernelRows + 1;
inline constexpr int kSums = kMathWarps * kPanelOutputs * kSumsPitch;  // floats

// The units of a matmul that this block computes: its block index and every gridDim.x-th one from there, below `count`.
// A unit of a gated matmul is two panels, `unit` and `unit + of_matrix`. The last blocks may have one unit less of
// every matmul, so attention starts with them. ExpertPart::kIn has the units of all choices, `of_matrix` each. A unit
// of ExpertPart::kOut is one panel for each row, each with other weights.
struct Units {
  int first, count, panels, of_matrix;
  __device__ explicit Units(const MatmulInstruction& p) {
    const int all = (p.n + kPanelOutputs - 1) / kPanelOutputs, gated = p.gated != nullptr ? 1 : 0;
    panels = 1 + gated;
    of_matrix = all >> gated;
    count = of_matrix;
    if (p.experts.part == ExpertPart::kIn) count *= p.rows * p.experts.choice.top_k;
    if (p.experts.part == ExpertPart::kOut) panels = p.rows;
    first = static_cast<int>(blockIdx.x);
  }
  __device__ bool any() const { return first < count; }
};

// Chooses the experts of a row, among kShare * 32 at most, once the router's logits are there. Called by a whole warp.
template <int kShare>
__device__ __noinline__ void choose(const Experts& e, int row, uint32_t tag, Choice* choices) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, count = e.count;
  const uint2* logits = e.logits.words + row * e.logits.stride + lane;
  choices += row * e.choice.top_k;
  float scores[kShare];
  uint2 words[kShare];
#pragma unroll
  for (int s = 0; s < kShare; ++s) {
    words[s] = s * kWarp + lane < count ? load_word(logits + s * kWarp) : uint2{__float_as_uint(kNever), tag};
  }
#pragma unroll
  for (int s = 0; s < kShare; ++s) scores[s] = __uint_as_float(wait_for_word(logits + s * kWarp, words[s], tag));
  __syncwarp();
  choose_experts<kShare>(e.choice, e.correction, count, scores, [&](int j, int expert, float score) {
    choices[j] = {expert, score};
  });
  const float factor = weight_factor(e.choice, [&](int j) { return choices[j].weight; });
  __syncwarp();
  if (lane < e.choice.top_k) choices[lane].weight *= factor;
  __syncwarp();
}
__device__ inline void choose(const MatmulInstruction& p, uint32_t epoch, uint32_t& known, Choice* choices) {
  const uint32_t tag = epoch + p.experts.logits.step;
  if (tag == known) return;
  known = tag;
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    p.experts.count <= 4 * kWarp ? choose<4>(p.experts, row, tag, choices)
                                 : choose<kMostExperts / kWarp>(p.experts, row, tag, choices);
  }
}

// A producer warp: fills its stages of the ring. It keeps no more stages in flight than keep memory busy, because
// everything else that the block reads waits behind them.
class Producer {
 public:
  __device__ Producer(const DecodeKernelLaunch& l, std::byte* ring, const RingPlace& own, int index)
      : ring_(shared_address(ring)),
        policy_(l2_evict_first()),
        most_(l.ahead),
        next_(index),
        place_(own),
        arriving_(own) {}

  template <class Weights>
  __device__ void feed(const MatmulInstruction& p) {
    const Units units(p);
    const typename Weights::Source from(p);
    const int stages = (p.slices + Weights::kSlices - 1) / Weights::kSlices, grid = static_cast<int>(gridDim.x);
    for (int unit = units.first; unit < units.count; unit += grid) {
      for (int i = 0; i < units.panels; ++i) {
        for (; next_ < stages; next_ += kProducerWarps) {
          wait_for_room();
          Weights::fill(from, unit + i * units.of_matrix, next_ * Weights::kSlices, ring_ + place_.offset(),
                        place_.full(), policy_);
          place_.next();
        }
        next_ -= stages;
      }
    }
  }

  // The same for a matmul of experts.
  template <class Weights>
  __device__ void feed_experts(const MatmulInstruction& p, const Choice* choices) {
    const Units units(p);
    const typename Weights::Source from(p);
    const bool of_all = p.experts.part == ExpertPart::kOut;
    const int stages = (p.slices + Weights::kSlices - 1) / Weights::kSlices, grid = static_cast<int>(gridDim.x);
    const int panels = p.experts.panels, top_k = p.experts.choice.top_k;
    const int stages_of_choice = of_all ? p.experts.stages : stages;
    for (int unit = units.first; unit < units.count; unit += grid) {
      const int choice_of_unit = of_all ? 0 : unit / units.of_matrix, own = unit - choice_of_unit * units.of_matrix;
      for (int i = 0; i < units.panels; ++i) {
        const int first_choice = of_all ? i * top_k : choice_of_unit,
                  of_half = of_all ? own : own + i * units.of_matrix;
        for (; next_ < stages; next_ += kProducerWarps) {
          const int further = next_ / stages_of_choice, stage = next_ - further * stages_of_choice;
          const int panel = choices[first_choice + further].expert * panels + of_half;
          wait_for_room();
          Weights::fill(from, panel, stage * Weights::kSlices, ring_ + place_.offset(), place_.full(), policy_);
          place_.next();
        }
        next_ -= stages;
      }
    }
  }

  // Copies keys and values of the block's unit. Called by the whole warp; the first lane copies.
  __device__ void feed(const AttentionInstruction& a, const UnitPlace& place) {
    if (place.chunks == 0) return;
    const AttentionParams& p = a.params;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, begin = place.begin, end = place.end;
    const int block_size = p.block_size, kv_heads = p.kv_heads, kv_head = place.kv_head, tile_keys = a.tile_keys;
    const int key_tiles = (p.head_dim + 63) / 64, value_tiles = (p.value_dim + 63) / 64;
    const TensorMaps* const maps = a.maps;
    const uint32_t per_block = p.per_block;
    const int32_t* table = p.block_table + place.table + place.first_block;
    const int blocks = place.blocks;
    const auto ids_from = [&](int block) { return block + lane < blocks ? __ldg(table + block + lane) : 0; };
    int window = 0, ids = place.ids[lane], later = ids_from(kWarp);
    const int stages = (end - begin + kDecodeKeys - 1) / kDecodeKeys;
    next_ = __shfl_sync(kFullWarp, next_, 0);
    for (; next_ < stages; next_ += kProducerWarps) {
      const int key = begin + next_ * kDecodeKeys;
      // All keys of the stage lie in one cache block or in two consecutive ones.
      const int block = static_cast<int>(__umulhi(static_cast<unsigned>(key), per_block));
      if (block - place.first_block >= window + kWarp) {
        window += kWarp;
        ids = later, later = ids_from(window + kWarp);
      }
      const int at = block - place.first_block - window;
      const int id[2] = {__shfl_sync(kFullWarp, ids, at),
                         __shfl_sync(kFullWarp, at + 1 < kWarp ? ids : later, (at + 1) % kWarp)};
      if (lane != 0) continue;
      wait_for_room();
      const uint32_t to = ring_ + place_.offset(), full = place_.full();
      const int copied = min((end - key + tile_keys - 1) / tile_keys * tile_keys, kDecodeKeys);
      expect_bytes(full, copied * 128 * (key_tiles + value_tiles));
      for (int i = 0; i < copied; i += tile_keys) {
        const int in_block = key + i - block * block_size;
        const bool same = in_block < block_size;
        const int vector =
            ((same ? id[0] : id[1]) * kv_heads + kv_head) * block_size + (same ? in_block : in_block - block_size);
        for (int tile = 0; tile < key_tiles + value_tiles; ++tile) {
          const bool is_key = tile < key_tiles;
          copy_tma_tile(to + (tile * kDecodeKeys + i) * 128, is_key ? maps->weights_or_keys : maps->scales_or_values,
                        (is_key ? tile : tile - key_tiles) * 128, vector, full, policy_);
        }
      }
      place_.next();
    }
    next_ -= stages;
  }

 private:
  __device__ void wait_for_room() {
    place_.wait_empty();
    if (ahead_ < most_) {
      ++ahead_;
      return;
    }
    arriving_.wait_full();
    arriving_.next();
  }

  const uint32_t ring_;
  const uint64_t policy_;
  const int most_;
  int ahead_ = 0;
  int next_;  // the warp's next stage, counted from the start of the current panel or key range
  RingPlace place_, arriving_;
};

// The shared memory of a block.
struct Memory {
  std::byte *ring, *scratch;
  float* sums;         // [kDecodeSums][kSums]
  float* squares;      // [kMostDecodeKernelRows][kMathWarps], sums of squares of the inputs
  Instruction* slots;  // [2]: the current instruction and the next one
  Instruction* fed;    // [kProducerWarps][2]: the same for each producer warp
  UnitPlace* places;   // [kMostPlaces]
  Choice* choices;     // [kEpilogueWarps + kProducerWarps][kMostChoices], row by row
};

// The inputs of a matmul lie at the start of the scratch.
__device__ inline Inputs inputs_of(const MatmulInstruction& p, const Memory& memory) {
  return {memory.scratch, p.rows, p.slices};
}

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

static __device__ __noinline__ float activated_otherwise(ops::Activation activation, float x) {
  return apply(activation, x);
}
__device__ inline float activated(ops::Activation activation, float x) {
  if (activation == ops::Activation::kSilu) return apply(ops::Activation::kSilu, x);
  return activated_otherwise(activation, x);
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
// it.
// Panels of experts have one row of results.
template <class T, bool of_experts>
__device__ void run_epilogue(const MatmulInstruction& p, const Memory& memory, int epilogue, RingPlace& sums_place,
                             uint32_t tag, const PeerMemory& peers, uint32_t rounds, const Choice* choices) {
  constexpr int kRowsOfWarp = kWarp / kPanelOutputs, kRowsOfLane = kMostDecodeKernelRows / kRowsOfWarp;
  const Units units(p);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, output = lane % kPanelOutputs,
            first_row = lane / kPanelOutputs;
  const int grid = static_cast<int>(gridDim.x), rows = of_experts ? 1 : p.rows, n = p.n;
  const bool accumulates = p.accumulate, is_gated = p.gated != nullptr, quads = p.put.quads;
  const bool keeps_out = p.keeps_out, keeps_gated = p.keeps_gated;
  const ops::Activation activation = p.activation;
  const int64_t out_stride = p.out_stride, gated_stride = p.gated_stride, put_stride = p.put.to.stride;
  float* out = p.out + first_row * out_stride + output;
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
    const float of_all = bias != nullptr ? __ldg(bias + panel * kPanelOutputs + output) : 0.0f;
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
          result *= activated(activation, gates[i]);
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

template <class T, class Weights>
__device__ void multiply(const MatmulInstruction& p, const Memory& memory, OwnStages& own, RingPlace& sums_place,
                         const Team& team, uint32_t epoch) {
  const Units units(p);
  if (!units.any()) return;
  const Inputs inputs = inputs_of(p, memory);
  static_assert(kMostDecodeKernelRows == 4);
  if constexpr (Weights::kByWarpGroup) {
    if (p.experts.part != ExpertPart::kNone) {
      return multiply_experts<T, Weights>(p, memory, own, sums_place, team, epoch);
    }
  }
  take_inputs<T, Weights>(p, memory, team, epoch + p.in.step);
  if constexpr (Weights::kByWarpGroup) {
    if (inputs.rows == 1) return matmul_rows<Weights, 1>(units, inputs, memory, own, sums_place);
    if (inputs.rows == 2) return matmul_rows<Weights, 2>(units, inputs, memory, own, sums_place);
  }
  matmul_rows<Weights, kMostDecodeKernelRows>(units, inputs, memory, own, sums_place);
}

__device__ inline void run(const NormInstruction& a, const Memory& memory, const Team& team) {
  const int thread = static_cast<int>(threadIdx.x), vectors = a.rows * a.groups;
  for (int i = static_cast<int>(blockIdx.x); i < vectors; i += static_cast<int>(gridDim.x)) {
    const int row = i / a.groups, group = i % a.groups;
    const float* x = a.x + row * a.x_stride + int64_t{group} * a.columns;
    float* out = a.out + row * a.out_stride + int64_t{group} * a.columns;
    float squares = 0.0f;
#pragma unroll 8
    for (int c = thread; c < a.columns; c += kThreads) {
      const float v = __ldcg(x + c);
      squares += v * v;
    }
    squares = warp_sum(squares);
    if (thread % kWarp == 0) memory.squares[thread / kWarp] = squares;
    team.sync();
    float sum = 0.0f;
    for (int w = 0; w < kMathWarps; ++w) sum += memory.squares[w];
    const float scale = rsqrtf(sum / static_cast<float>(a.columns) + a.eps);
#pragma unroll 8
    for (int c = thread; c < a.columns; c += kThreads) {
      out[c] = __ldcg(x + c) * scale * (a.weight != nullptr ? __ldg(a.weight + c) + a.offset : 1.0f);
    }
    team.sync();
  }
}

// Calls f(row, column) for the elements of [rows, columns], spread over all blocks.
template <class F>
__device__ void each_element(int rows, int columns, F&& f) {
  const int step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < rows * columns; i += step) {
    f(i / columns, i % columns);
  }
}

template <class T>
__device__ void run(const GatherInstruction& a) {
  each_element(a.rows, a.columns, [&](int row, int column) {
    const int64_t from = a.ids[row] * a.table_stride + column;
    a.out[row * a.out_stride + column] = a.bytes == 4 ? reinterpret_cast<const float*>(a.table)[from]
                                                      : to_f32(reinterpret_cast<const T*>(a.table)[from]);
  });
}

__device__ inline void run(const GluInstruction& a) {
  each_element(a.rows, a.columns, [&](int row, int column) {
    const float* gate = a.gate_up + row * a.gate_up_stride + column;
    a.out[row * a.out_stride + column] = activated(a.activation, __ldcg(gate)) * __ldcg(gate + a.columns);
  });
}

template <class T>
__device__ void run(const PutInstruction& a, uint32_t tag) {
  each_element(a.rows, a.columns / 4, [&](int row, int quad) {
    const float* x = a.x + row * a.x_stride + quad * 4;
    float v[4], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __ldcg(x + i);
      squares += v[i] * v[i];
      if (a.put.weight != nullptr) v[i] *= __ldg(a.put.weight + quad * 4 + i) + a.put.offset;
    }
    put_quad(a.put.to.words + row * a.put.to.stride + quad * 2,
             {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), squares, tag});
  });
}

template <class T>
__device__ void run(const RopeInstruction& a, const Team& team) {
  const Rotation rotation = rotation_of(a);
  const int half = a.rotary / 2;
  each_element(a.rows, a.heads * half, [&](int row, int i) {
    rotate_pair(rotation, table_of(a, row), a.q + row * a.q_stride + int64_t{i / half} * a.head_dim, i % half);
  });
  if (a.k == nullptr) return;
  for (int i = static_cast<int>(blockIdx.x); i < a.rows * a.kv_heads; i += static_cast<int>(gridDim.x)) {
    store_key<T>(a, i / a.kv_heads, i % a.kv_heads, team);
  }
}

// The grid barrier: waits until all blocks have come here as often as `count` says; then each sees what the
// others wrote before. Called by the first lane of the first epilogue warp; the rest of the block waits for that lane.
__device__ inline void grid_barrier(const DecodeKernelLaunch& l, int count) {
  const uint32_t all = static_cast<uint32_t>(count) * gridDim.x;
  uint32_t now;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(now) : "l"(l.arrivals) : "memory");
  for (++now; now < all;) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(l.arrivals) : "memory");
}

// The end of a launch: the last block to arrive resets the counters for the next launch, and counts the sums over
// ranks.
__device__ inline void finish_launch(const DecodeKernelLaunch& l, int grid_barriers, uint32_t epoch) {
  uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(l.arrivals) : "memory");
  if (before + 1 != (grid_barriers + 1) * gridDim.x) return;
  l.arrivals[0] = 0;
  l.arrivals[1] = epoch + l.count;
  if (l.sums > 0) region_header(l.peers, l.peers.rank).round += static_cast<uint32_t>(l.sums);
}

constexpr int kInstructionPacks = static_cast<int>(sizeof(Instruction) / sizeof(uint4));
static_assert(kInstructionPacks <= kWarp);

// Copies an instruction to its slot in shared memory. Called by one warp.
__device__ inline void fetch(const DecodeKernelLaunch& l, const Memory& memory, int i) {
  const int pack = static_cast<int>(threadIdx.x) % kWarp;
  if (i >= l.count || pack >= kInstructionPacks) return;
  reinterpret_cast<uint4*>(memory.slots + i % 2)[pack] =
      __ldg(reinterpret_cast<const uint4*>(l.instructions + i) + pack);
}

template <class T, class Quantized>
__device__ void execute(const Instruction& in, const Memory& memory, OwnStages& own, RingPlace& sums, const Team& team,
                        uint32_t epoch, int step) {
  using Kind = Instruction::Kind;
  switch (in.kind) {
    case Kind::kMatmul:
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (in.matmul.quantized) return multiply<T, Quantized>(in.matmul, memory, own, sums, team, epoch);
      }
      return multiply<T, PlainWeights<T>>(in.matmul, memory, own, sums, team, epoch);
    case Kind::kNorm:
      return run(in.norm, memory, team);
    case Kind::kGather:
      return run<T>(in.gather);
    case Kind::kGlu:
      return run(in.glu);
    case Kind::kRope:
      return run<T>(in.rotation, team);
    case Kind::kAttention:
      return attend<T>(in.attention, memory.scratch, memory.ring, own, memory.places[in.attention.place], team, epoch,
                       epoch + step);
    case Kind::kPut:
      return run<T>(in.put, epoch + step);
  }
}

// The loop of a producer warp. The next instruction is loaded while the current one is fed, so that memory is never
// idle.
template <class T, class Quantized>
__device__ void feed(const DecodeKernelLaunch& l, const Memory& memory, const RingPlace& own, int index) {
  Producer producer(l, memory.ring, own, index);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto prefetch = [&](int i) {
    uint4 v = {0, 0, 0, 0};
    const auto* from = reinterpret_cast<const uint4*>(l.instructions + i) + lane;
    if (i >= 0 && lane < kInstructionPacks) {
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from));
    }
    return v;
  };
  uint4 next = prefetch(l.first_fed);
  const uint32_t epoch = __ldcg(l.arrivals + 1) + 1;
  uint32_t known = epoch - 1;  // the tag of the choice that the warp knows
  Choice* const choices = memory.choices + (kEpilogueWarps + index) * kMostChoices;
  int turn = 0;
  for (int i = l.first_fed; i >= 0; turn ^= 1) {
    Instruction& in = memory.fed[2 * index + turn];
    if (lane < kInstructionPacks) reinterpret_cast<uint4*>(&in)[lane] = next;
    __syncwarp();
    i = in.next;
    next = prefetch(i);
    if (in.kind == Instruction::Kind::kAttention) {
      producer.feed(in.attention, memory.places[in.attention.place]);
      __syncwarp();
      continue;
    }
    const MatmulInstruction& p = in.matmul;
    if (index == 0 && p.put.weight != nullptr) {  // every block prefetches a share of the norm weights
      const int at = (static_cast<int>(blockIdx.x) * kWarp + lane) * 8;
      if (at < p.n) prefetch_to_l2(p.put.weight + at);
    }
    if (p.experts.part != ExpertPart::kNone) {
      if (Units(p).any()) choose(p, epoch, known, choices);
      if (lane == 0) {
        if constexpr (std::is_same_v<Quantized, QuantizedWeights<quant::Fp8>>) {
          if (p.quantized) producer.template feed_experts<Quantized>(p, choices);
        }
        if (!p.quantized) producer.template feed_experts<PlainWeights<T>>(p, choices);
      }
    } else if (lane == 0) {
      bool fed = false;
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (p.quantized) producer.template feed<Quantized>(p), fed = true;
      }
      if (!fed) producer.template feed<PlainWeights<T>>(p);
    } else if (lane == 1 && i >= 0) {
      const Instruction& later = l.instructions[i];
      if (later.kind == Instruction::Kind::kAttention) {
        prefetch_maps(later.attention.maps, true);
      } else {
        prefetch_maps(later.matmul.maps, later.matmul.quantized);
      }
    }
    __syncwarp();
  }
}

template <class T, class Quantized>
constexpr int stage_bytes() {
  int bytes = PlainWeights<T>::kBytes;
  if constexpr (!std::is_same_v<Quantized, NoWeights>) bytes = bytes > Quantized::kBytes ? bytes : Quantized::kBytes;
  return (bytes + kRingAlign - 1) / kRingAlign * kRingAlign;
}

template <class T, class Quantized>
__global__ void __launch_bounds__(kDecodeThreads, 1) run_decode_kernel(const __grid_constant__ DecodeKernelLaunch l) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  Memory memory{};
  memory.ring = shared + (kRingAlign - shared_address(shared) % kRingAlign) % kRingAlign;
  memory.scratch = memory.ring + l.stages * stage_bytes<T, Quantized>();
  memory.sums = reinterpret_cast<float*>(memory.scratch + l.scratch_bytes);
  memory.squares = memory.sums + kDecodeSums * kSums;
  memory.slots = reinterpret_cast<Instruction*>(memory.squares + kMostDecodeKernelRows * kMathWarps);
  memory.fed = memory.slots + 2;
  memory.places = reinterpret_cast<UnitPlace*>(memory.fed + 2 * kProducerWarps);
  static_assert(sizeof(UnitPlace) % 16 == 0 && sizeof(UnitPlace) <= kUnitPlaceBytes);
  memory.choices = reinterpret_cast<Choice*>(memory.places + kMostPlaces);
  static_assert(kMostChoices * sizeof(Choice) % 16 == 0);
  const uint32_t sums_barriers = shared_address(memory.choices + (kEpilogueWarps + kProducerWarps) * kMostChoices),
                 barriers = sums_barriers + 16 * kDecodeSums;
  if (threadIdx.x == 0) {
    make_ring(barriers, l.stages, 1, kWarpgroupWarps);
    make_ring(sums_barriers, kDecodeSums, kMathWarps, 1);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp == 0) fetch(l, memory, 0);
  if (warp > 0 && warp <= kMostPlaces && l.places[warp - 1] >= 0) {
    // Units are counted from the last block on: the first blocks may have one more panel of every matmul.
    find_place(l.instructions[l.places[warp - 1]].attention, static_cast<int>(gridDim.x - 1 - blockIdx.x),
               memory.places[warp - 1]);
  }
  __syncthreads();
  constexpr int kStageBytes = stage_bytes<T, Quantized>();
  const int auxiliary = warp - kMathWarps;  // index among the epilogue warps, then the producer warps
  if (const int index = auxiliary - kEpilogueWarps; index >= 0) {
    return feed<T, Quantized>(l, memory, RingPlace(barriers, l.stages, kStageBytes, index, kProducerWarps), index);
  }
  const int group = warp / kWarpgroupWarps;
  OwnStages own{.place = RingPlace(barriers, l.stages, kStageBytes, group, kMathGroups), .next = group};
  RingPlace sums(sums_barriers, kDecodeSums, kSums);
  const Team team{.warps = kMathWarps, .barrier = 1}, everyone{.warps = kMathWarps + kEpilogueWarps, .barrier = 2};
  // Tags continue after those of the launch before: the tag of step i is epoch + i.
  const uint32_t epoch = __ldcg(l.arrivals + 1) + 1;
  const uint32_t rounds = l.sums > 0 ? __ldcg(&region_header(l.peers, l.peers.rank).round) : 0;
  uint32_t known = epoch - 1;
  int grid_barriers = 0;
  for (int i = 0; i < l.count; ++i) {
    const Instruction& in = memory.slots[i % 2];
    if (in.grid_barrier) {
      ++grid_barriers;
      if (threadIdx.x == kThreads) grid_barrier(l, grid_barriers);
      everyone.sync();
    }
    if (auxiliary < 0) {
      execute<T, Quantized>(in, memory, own, sums, team, epoch, i);
    } else {
      if (auxiliary == 0) fetch(l, memory, i + 1);
      if (in.kind == Instruction::Kind::kMatmul) {
        const MatmulInstruction& p = in.matmul;
        Choice* const choices = memory.choices + auxiliary * kMostChoices;
        if (p.experts.part == ExpertPart::kIn && Units(p).any()) choose(p, epoch, known, choices);
        if (p.experts.part == ExpertPart::kNone) {
          run_epilogue<T, false>(p, memory, auxiliary, sums, epoch + i, l.peers, rounds, choices);
        } else {
          run_epilogue<T, true>(p, memory, auxiliary, sums, epoch + i, l.peers, rounds, choices);
        }
      }
    }
    everyone.sync();
  }
  if (threadIdx.x == kThreads) finish_launch(l, grid_barriers, epoch - 1);
#endif
}

template <class T, class Quantized>
void launch_decode_kernel(const Launch& l, const DecodeKernelLaunch& s) {
  static SharedMemoryLimit limit;
  limit.raise(l.device, run_decode_kernel<T, Quantized>, kRingAlign + kDecodeSharedBytes);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(l.sm_count));
  config.blockDim = dim3(kDecodeThreads);
  config.dynamicSmemBytes =
      static_cast<size_t>(kRingAlign + s.stages * stage_bytes<T, Quantized>() + s.scratch_bytes + kBookkeepingBytes);
  config.stream = l.stream;
  cudaLaunchAttribute together{};  // blocks wait for each other, so all of them must be resident
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, run_decode_kernel<T, Quantized>, s), "persistent decode kernel");
}

template <class T, class Quantized>
MatmulInputs inputs_for(bool quantized) {
  if constexpr (!std::is_same_v<Quantized, NoWeights>) {
    if (quantized) return {.multiple = kScaled, .bytes = Quantized::bytes, .stage_slices = Quantized::kSlices};
  }
  return {.multiple = 1, .bytes = PlainWeights<T>::bytes, .stage_slices = PlainWeights<T>::kSlices};
}

// T is __nv_bfloat16 or __half; Format is a type of src/quant that has panels, or void.
template <class T, class Format>
const DecodeKernel* kernel() {
  using Quantized = WeightsOf<Format>::Type;
  static constexpr DecodeKernel kernel{.launch = launch_decode_kernel<T, Quantized>,
                                       .stage_bytes = stage_bytes<T, Quantized>(),
                                       .stage_pieces = kPieces,
                                       .inputs = inputs_for<T, Quantized>,
                                       .attention_bytes = AttentionScratch<T, kMostHeadDim>::bytes};
  return &kernel;
}

}  // namespace sluice::cuda::persistent
