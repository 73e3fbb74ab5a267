// The kernel behind StepProgram, a template over the type of plain weights and caches and over a quantized type, one
// block per multiprocessor. kStepWarps warps execute the instructions, all blocks one after the other, and two more
// work for them: the feeder copies the weights of every product to come into a ring of stages in shared memory, the
// finisher adds up the warps' sums, passes results on and fetches instructions. Blocks wait for the words that they read
// (device/exchange.cuh), and for each other, at a counter in device memory, before the instructions that say so; the
// feeder waits for neither, so that memory is read all the while.
//
// A product's unit is a panel of 16 outputs. Its stages are of 8 KiB and take one copy or two: of rows (plain weights,
// 8-bit floats) a box of as many columns of each, of panels whole lines with their scales. A stage is multiplied by the
// warp that its place in the ring belongs to, so that a place is waited for by one warp alone, in every round. Inputs
// are normalized and rounded into shared memory by every block for itself.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/step_attention.cuh"
#include "kernels/cuda/device/step_weights.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

inline constexpr int kThreads = kStepWarps * kWarp;  // that calculate
inline constexpr int kStepThreads = kThreads + 2 * kWarp;
inline constexpr int kRingAlign = 1024;
inline constexpr int kSumsPitch = kMostStepRows + 1;
inline constexpr int kSums = kStepWarps * kPanelOutputs * kSumsPitch;  // floats

// The units of a product that are this block's: first, first + blocks and so on below count. Of gated ones a unit is
// two panels, unit and unit + count.
struct Units {
  int first, count, panels;
  __device__ explicit Units(const StepProduct& p) {
    const int all = (p.n + kPanelOutputs - 1) / kPanelOutputs, grid = static_cast<int>(gridDim.x);
    panels = p.gated != nullptr ? 2 : 1;
    count = all / panels;
    first = (static_cast<int>(blockIdx.x) + grid - p.first_unit % grid) % grid;
  }
};

// Fills the ring, with no more stages on their way than keep memory busy: whatever else a block reads has to wait
// behind them.
class Feeder {
 public:
  __device__ Feeder(const StepLaunch& l, std::byte* ring, const RingPlace& first)
      : ring_(shared_address(ring)), policy_(evicted_first()), most_(l.ahead), next_(first), arriving_(first) {}

  template <class Weights>
  __device__ void feed(const StepProduct& p) {
    const Units units(p);
    const typename Weights::Source from(p);
    const int lines = p.lines, grid = static_cast<int>(gridDim.x);
    for (int unit = units.first; unit < units.count; unit += grid) {
      for (int i = 0; i < units.panels; ++i) {
        for (int line = 0; line < lines; line += Weights::kLines) {
          next_.wait_empty();
          if (ahead_ == most_) {
            arriving_.wait_full();
            arriving_.next();
          } else {
            ++ahead_;
          }
          Weights::fill(from, unit + i * units.count, line, ring_ + next_.offset(), next_.full(), policy_);
          next_.next();
        }
      }
    }
  }

 private:
  const uint32_t ring_;
  const uint64_t policy_;
  const int most_;
  int ahead_ = 0;
  RingPlace next_, arriving_;
};

// Shared memory of a block.
struct Memory {
  std::byte *ring, *scratch;
  float* sums;         // [kStepSums][kSums]
  float* gates;        // [kMostStepRows * kPanelOutputs]
  float* squares;      // [kMostStepRows][kStepWarps], sums over the inputs
  Instruction* slots;  // [2]
  UnitPlace* places;   // [2]
};

// Where a product finds its inputs in scratch: behind what take_inputs() has there.
__device__ inline Inputs inputs_of(const StepProduct& p, const Memory& memory) {
  return {memory.scratch + (p.norms ? 2 : 1) * kStepRawBytes, p.rows, p.lines};
}

// The inputs of a product from an Exchange to where the tensor cores look for them. Of inputs that are normalized this
// takes the weights of the norm; the scale of a row, which needs all of it, is the finisher's. A step passes here once
// for every product, and what costs is waiting for words and for instructions: loads are on their way at once, and what
// is long is a loop over what they brought to `raw`, which each thread has for itself.
template <class T, class Weights>
__device__ void take_inputs(const StepProduct& p, const Memory& memory, const Team& team, uint32_t tag) {
  constexpr int kLoads = 8;  // of two words
  const int thread = static_cast<int>(threadIdx.x), quads = p.lines * (kPanelLine / 4), given = p.k / 4;
  const bool norms = p.norms, weighted = p.norm_weight != nullptr;
  const int loads_of_quad = norms ? 2 : 1, quads_at_once = kLoads / loads_of_quad * kThreads;
  auto* raw = reinterpret_cast<uint2*>(memory.scratch);                       // [kLoads * kThreads]
  auto* factors = reinterpret_cast<float4*>(memory.scratch + kStepRawBytes);  // as many, of norms
  const Inputs inputs = inputs_of(p, memory);
#pragma unroll 1
  for (int row = 0; row < p.rows; ++row) {
    const auto* from = reinterpret_cast<const uint4*>(p.in.words + row * p.in.stride);
    float squares = 0.0f;
#pragma unroll 1
    for (int first = 0; first < quads; first += quads_at_once) {
      const int end = min(first + quads_at_once, quads);
      if (norms && weighted) {
#pragma unroll 1
        for (int quad = first + thread; quad < min(end, given); quad += kThreads) {
          copy_async(shared_address(factors + quad - first), p.norm_weight + quad * 4);
        }
      }
      uint4 words[kLoads];
      const auto at = [&](int i) {  // the i-th load: of a quad, or of one of its halves
        return norms ? (first + thread + i / 2 * kThreads) * 2 + i % 2 : first + thread + i * kThreads;
      };
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        words[i] = at(i) < given * loads_of_quad ? look_at_words(from + at(i)) : uint4{0, tag, 0, tag};
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint2 pair = wait_for_words(from + at(i), words[i], tag);
        raw[(i / loads_of_quad * kThreads + thread) * loads_of_quad + i % loads_of_quad] = pair;
        const float low = __uint_as_float(pair.x), high = __uint_as_float(pair.y);
        squares += low * low + high * high;
      }
      wait_for_all_copies();
#pragma unroll 1
      for (int quad = first + thread; quad < end; quad += kThreads) {
        float4 x;
        if (norms) {
          x = reinterpret_cast<const float4*>(raw)[quad - first];
          if (weighted && quad < given) {
            const float4 w = factors[quad - first];
            x = {x.x * (w.x + p.norm_offset), x.y * (w.y + p.norm_offset), x.z * (w.z + p.norm_offset),
                 x.w * (w.w + p.norm_offset)};
          }
        } else {
          const float2 low = unpack2<T>(raw[quad - first].x), high = unpack2<T>(raw[quad - first].y);
          x = {low.x, low.y, high.x, high.y};
        }
        Weights::leave(inputs, row, quad, x);
      }
    }
    squares = warp_sum(squares);
    if (thread % kWarp == 0) memory.squares[row * kStepWarps + thread / kWarp] = squares;
  }
  team.sync();
}

static __device__ __noinline__ float activated(ops::Activation activation, float x) { return apply(activation, x); }

// Adds up the warps' sums of a panel and passes them on. `half` is which of the two panels of a gated unit it is; what
// the first one gave is kept at `gates`.
template <class T>
class PanelResult {
 public:
  // Asks for what the sums are added to.
  __device__ PanelResult(const StepProduct& p, int panel)
      : p_(&p), column_(int64_t{panel} * kPanelOutputs + output()), valid_(column_ < p.n) {
    if (valid_ && p.bias != nullptr) bias_ = __ldg(p.bias + column_);
    if (!valid_ || !p.accumulate) return;
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      if (row(i) >= p.rows) continue;
      if (p.before.words != nullptr) {
        before_[i] = look_at_word(word(i));
      } else {
        before_[i].x = __float_as_uint(__ldcg(p.out + row(i) * p.out_stride + column_));
      }
    }
  }

  // Lane i has the scale of row i. Tags of what is put and of what is accumulated to.
  __device__ void finish(const float* sums, float scale, int unit, int half, float* gates, uint32_t tag,
                         uint32_t before_tag) const {
#pragma unroll
    for (int i = 0; i < kRowsOfLane; ++i) {
      if (i * kRowsOfWarp >= p_->rows) break;
      const bool own = valid_ && row(i) < p_->rows;
      uint32_t before = before_[i].x;
      if (own && p_->accumulate && p_->before.words != nullptr) before = wait_for_word(word(i), before_[i], before_tag);
      float products = 0.0f;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) products += sums[(w * kPanelOutputs + output()) * kSumsPitch + row(i)];
      float result = fmaf(__shfl_sync(kFullWarp, scale, row(i)), products, __uint_as_float(before) + bias_);
      if (own && p_->keeps_out) p_->out[row(i) * p_->out_stride + column_] = result;
      int64_t column = column_;
      if (p_->gated != nullptr) {
        float& gate = gates[row(i) * kPanelOutputs + output()];
        if (half == 0) {
          gate = result;
          continue;
        }
        result *= activated(p_->activation, gate);
        column = int64_t{unit} * kPanelOutputs + output();
        if (own && p_->keeps_gated) p_->gated[row(i) * p_->gated_stride + column] = result;
      }
      if (p_->put.words == nullptr) continue;
      uint2* to = p_->put.words + row(i) * p_->put.stride;
      if (!p_->puts_pairs) {
        if (own) put_word(to + column, __float_as_uint(result), tag);
      } else {
        const float next = __shfl_down_sync(kFullWarp, result, 1);
        if (own && column % 2 == 0) put_word(to + column / 2, pack2<T>(result, next), tag);
      }
    }
  }

 private:
  static constexpr int kRowsOfWarp = kWarp / kPanelOutputs, kRowsOfLane = kMostStepRows / kRowsOfWarp;
  static __device__ int output() { return static_cast<int>(threadIdx.x) % kPanelOutputs; }
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) % kWarp / kPanelOutputs + i * kRowsOfWarp; }

  __device__ const uint2* word(int i) const { return p_->before.words + row(i) * p_->before.stride + column_; }

  const StepProduct* p_;
  int64_t column_;
  bool valid_;
  float bias_ = 0.0f;
  uint2 before_[kRowsOfLane] = {};
};

// The finisher's part of a product.
template <class T>
__device__ void finish(const StepProduct& p, const Memory& memory, RingPlace& sums_place, uint32_t epoch,
                       uint32_t tag) {
  const Units units(p);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float scale = 1.0f;
  PanelResult<T> next(p, units.first);
  for (int unit = units.first; unit < units.count; unit += static_cast<int>(gridDim.x)) {
#pragma unroll 1
    for (int half = 0; half < units.panels; ++half) {
      const PanelResult<T> result = next;
      next = PanelResult<T>(p, half + 1 < units.panels ? unit + units.count : unit + static_cast<int>(gridDim.x));
      sums_place.wait_full();
      if (p.norms && unit == units.first && half == 0 && lane < p.rows) {
        float squares = 0.0f;
        for (int w = 0; w < kStepWarps; ++w) squares += memory.squares[lane * kStepWarps + w];
        scale = rsqrtf(squares / static_cast<float>(p.k) + p.eps);
      }
      result.finish(memory.sums + sums_place.offset(), scale, unit, half, memory.gates, tag, epoch + p.before.step);
      __syncwarp();
      if (lane == 0) arrive(sums_place.empty());
      sums_place.next();
    }
  }
}

// The stages of the ring that are a warp's: those at places warp, warp + kStepWarps and so on. So a place is waited for
// by one warp alone, in every round.
struct OwnStages {
  RingPlace place;
  int next;  // counted from the begin of the panel that is next
};

template <class T, class Weights>
__device__ void multiply(const StepProduct& p, const Memory& memory, OwnStages& own, RingPlace& sums_place,
                         const Team& team, uint32_t epoch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const Units units(p);
  if (units.first >= units.count) return;
  take_inputs<T, Weights>(p, memory, team, epoch + p.in.step);
  const Inputs inputs = inputs_of(p, memory);
  const int lines = p.lines, stages = (lines + Weights::kLines - 1) / Weights::kLines;
  const int grid = static_cast<int>(gridDim.x);
  const int panels = ((units.count - 1 - units.first) / grid + 1) * units.panels;
#pragma unroll 1
  for (int panel = 0; panel < panels; ++panel) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    while (own.next < stages) {
      const int first = own.next * Weights::kLines;
      own.place.wait_full();
      Weights::multiply(sums, memory.ring + own.place.offset(), first, min(Weights::kLines, lines - first), inputs,
                        lane);
      __syncwarp();
      if (lane == 0) arrive(own.place.empty());
      own.next += own.place.next();
    }
    own.next -= stages;
    sums_place.wait_empty();
    float* all = memory.sums + sums_place.offset() + warp * kPanelOutputs * kSumsPitch;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SumPlace at = Weights::place(i, lane);
      if (at.row < kMostStepRows) all[at.output * kSumsPitch + at.row] = sums[i];
    }
    __syncwarp();
    if (lane == 0) arrive(sums_place.full());
    sums_place.next();
  }
}

__device__ inline void run(const StepNorm& a, const Memory& memory, const Team& team) {
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
    for (int w = 0; w < kStepWarps; ++w) sum += memory.squares[w];
    const float scale = rsqrtf(sum / static_cast<float>(a.columns) + a.eps);
#pragma unroll 8
    for (int c = thread; c < a.columns; c += kThreads) {
      out[c] = __ldcg(x + c) * scale * (a.weight != nullptr ? __ldg(a.weight + c) + a.offset : 1.0f);
    }
    team.sync();
  }
}

// Calls f(row, column) for the elements of [rows, columns], spread over the blocks.
template <class F>
__device__ void each_element(int rows, int columns, F&& f) {
  const int step = static_cast<int>(gridDim.x) * kThreads;
  for (int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x); i < rows * columns; i += step) {
    f(i / columns, i % columns);
  }
}

template <class T>
__device__ void run(const StepRows& a) {
  each_element(a.rows, a.columns, [&](int row, int column) {
    const int64_t from = a.ids[row] * a.table_stride + column;
    a.out[row * a.out_stride + column] = a.bytes == 4 ? reinterpret_cast<const float*>(a.table)[from]
                                                      : to_f32(reinterpret_cast<const T*>(a.table)[from]);
  });
}

__device__ inline void run(const StepGlu& a) {
  each_element(a.rows, a.columns, [&](int row, int column) {
    const float* gate = a.gate_up + row * a.gate_up_stride + column;
    a.out[row * a.out_stride + column] = activated(a.activation, __ldcg(gate)) * __ldcg(gate + a.columns);
  });
}

template <class T>
__device__ void run(const StepPut& a, uint32_t tag) {
  const int words = a.puts_pairs ? a.columns / 2 : a.columns;
  each_element(a.rows, words, [&](int row, int word) {
    const float* x = a.x + row * a.x_stride;
    uint2* to = a.put.words + row * a.put.stride + word;
    if (a.puts_pairs) {
      put_word(to, pack2<T>(__ldcg(x + 2 * word), __ldcg(x + 2 * word + 1)), tag);
    } else {
      put_word(to, __float_as_uint(__ldcg(x + word)), tag);
    }
  });
}

template <class T>
__device__ void run(const StepRotation& a, const Team& team) {
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

// Waits until all blocks have come here, for the `meeting`-th time; then all see what they wrote before. By the
// finisher's first lane alone, the others of the block wait for it.
__device__ inline void meet(const StepLaunch& l, int meeting) {
  const uint32_t all = static_cast<uint32_t>(meeting) * gridDim.x;
  uint32_t now;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(now) : "l"(l.arrivals) : "memory");
  for (++now; now < all;) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(l.arrivals) : "memory");
}

// The end of a launch: who comes last leaves things as the next one wants them.
__device__ inline void leave(const StepLaunch& l, int meetings, uint32_t epoch) {
  uint32_t before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(l.arrivals) : "memory");
  if (before + 1 != (meetings + 1) * gridDim.x) return;
  l.arrivals[0] = 0;
  l.arrivals[1] = epoch + l.count;
}

// An instruction to its slot, and where its attention is. By a warp.
__device__ inline void fetch(const StepLaunch& l, const Memory& memory, int i) {
  constexpr int kPacks = static_cast<int>(sizeof(Instruction) / sizeof(uint4));
  static_assert(kPacks <= kWarp);
  const int pack = static_cast<int>(threadIdx.x) % kWarp;
  if (i < l.count && pack < kPacks) {
    reinterpret_cast<uint4*>(memory.slots + i % 2)[pack] = __ldg(reinterpret_cast<const uint4*>(l.program + i) + pack);
  }
  __syncwarp();
  if (i < l.count && memory.slots[i % 2].kind == Instruction::Kind::kAttention) {
    find_place(memory.slots[i % 2].attention, static_cast<int>(blockIdx.x), memory.places[i % 2]);
  }
}

template <class T, class Quantized>
__device__ void execute(const Instruction& in, const Memory& memory, OwnStages& own, RingPlace& sums, const Team& team,
                        uint32_t epoch, int step) {
  using Kind = Instruction::Kind;
  switch (in.kind) {
    case Kind::kProduct:
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (in.product.quantized) return multiply<T, Quantized>(in.product, memory, own, sums, team, epoch);
      }
      return multiply<T, PlainWeights<T>>(in.product, memory, own, sums, team, epoch);
    case Kind::kNorm:
      return run(in.norm, memory, team);
    case Kind::kRows:
      return run<T>(in.rows);
    case Kind::kGlu:
      return run(in.glu);
    case Kind::kRotation:
      return run<T>(in.rotation, team);
    case Kind::kAttention:
      return attend<T>(in.attention, memory.scratch, memory.places[step % 2], team, epoch, epoch + step);
    case Kind::kPut:
      return run<T>(in.put, epoch + step);
  }
}

template <class T, class Quantized>
__device__ void feed(const StepLaunch& l, std::byte* ring, const RingPlace& place) {
  Feeder feeder(l, ring, place);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = l.first_product; i >= 0;) {
    const StepProduct& p = l.program[i].product;
    if (p.norm_weight != nullptr) {  // of which every block asks for a share
      const int at = (static_cast<int>(blockIdx.x) * kWarp + lane) * 8;
      if (at < p.k) prefetch_to_l2(p.norm_weight + at);
    }
    i = p.next;
    if (lane == 1 && i >= 0) prefetch_maps(l.program[i].product);
    if (lane != 0) continue;
    if constexpr (!std::is_same_v<Quantized, NoWeights>) {
      if (p.quantized) {
        feeder.template feed<Quantized>(p);
        continue;
      }
    }
    feeder.template feed<PlainWeights<T>>(p);
  }
}

template <class T, class Quantized>
constexpr int stage_bytes() {
  int bytes = PlainWeights<T>::kBytes;
  if constexpr (!std::is_same_v<Quantized, NoWeights>) bytes = bytes > Quantized::kBytes ? bytes : Quantized::kBytes;
  return (bytes + kRingAlign - 1) / kRingAlign * kRingAlign;
}

template <class T, class Quantized>
__global__ void __launch_bounds__(kStepThreads, 1) run_program(const __grid_constant__ StepLaunch l) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  Memory memory{};
  memory.ring = shared + (kRingAlign - shared_address(shared) % kRingAlign) % kRingAlign;
  memory.scratch = memory.ring + l.stages * stage_bytes<T, Quantized>();
  memory.sums = reinterpret_cast<float*>(memory.scratch + l.scratch_bytes);
  memory.gates = memory.sums + kStepSums * kSums;
  memory.squares = memory.gates + kMostStepRows * kPanelOutputs;
  memory.slots = reinterpret_cast<Instruction*>(memory.squares + kMostStepRows * kStepWarps);
  memory.places = reinterpret_cast<UnitPlace*>(memory.slots + 2);
  static_assert(sizeof(UnitPlace) % 16 == 0 && sizeof(UnitPlace) <= kStepPlaceBytes);
  const uint32_t sums_barriers = shared_address(memory.places + 2), barriers = sums_barriers + 16 * kStepSums;
  if (threadIdx.x == 0) {
    make_ring(barriers, l.stages, 1, 1);
    make_ring(sums_barriers, kStepSums, kStepWarps, 1);
  }
  if (threadIdx.x < kWarp) fetch(l, memory, 0);
  __syncthreads();
  constexpr int kStageBytes = stage_bytes<T, Quantized>();
  const int helper = static_cast<int>(threadIdx.x) / kWarp - kStepWarps;  // the finisher, the feeder
  if (helper == 1) return feed<T, Quantized>(l, memory.ring, RingPlace(barriers, l.stages, kStageBytes));
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  OwnStages own{.place = RingPlace(barriers, l.stages, kStageBytes, warp, kStepWarps), .next = warp};
  RingPlace sums(sums_barriers, kStepSums, kSums);
  const Team team{.warps = kStepWarps, .barrier = 1}, everyone{.warps = kStepWarps + 1, .barrier = 2};
  // Tags begin behind those of the launch before; step i's is epoch + i.
  const uint32_t epoch = __ldcg(l.arrivals + 1) + 1;
  int meetings = 0;
  for (int i = 0; i < l.count; ++i) {
    const Instruction& in = memory.slots[i % 2];
    if (in.meet) {
      ++meetings;
      if (threadIdx.x == kThreads) meet(l, meetings);
      everyone.sync();
    }
    if (helper < 0) {
      execute<T, Quantized>(in, memory, own, sums, team, epoch, i);
    } else {
      fetch(l, memory, i + 1);
      if (in.kind == Instruction::Kind::kProduct) finish<T>(in.product, memory, sums, epoch, epoch + i);
    }
    everyone.sync();
  }
  if (threadIdx.x == kThreads) leave(l, meetings, epoch - 1);
#endif
}

template <class T, class Quantized>
void launch_program(const Launch& l, const StepLaunch& s) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      run_program<T, Quantized>, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingAlign + kStepShared);
  check_cuda(allowed, "shared memory of a step");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(l.multiprocessors));
  config.blockDim = dim3(kStepThreads);
  config.dynamicSmemBytes =
      static_cast<size_t>(kRingAlign + s.stages * stage_bytes<T, Quantized>() + s.scratch_bytes + kStepBeside);
  config.stream = l.stream;
  cudaLaunchAttribute together{};  // blocks wait for each other: all run at once
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, run_program<T, Quantized>, s), "step");
}

template <class T, class Quantized>
ProductInputs inputs_for(bool quantized) {
  if constexpr (!std::is_same_v<Quantized, NoWeights>) {
    if (quantized) return {.multiple = kScaled, .bytes = Quantized::bytes};
  }
  return {.multiple = 1, .bytes = PlainWeights<T>::bytes};
}

// T is __nv_bfloat16 or __half, Format a type of src/quant that has panels, or void.
template <class T, class Format>
const StepKernel* kernel() {
  using Quantized = WeightsOf<Format>::Type;
  static constexpr StepKernel kernel{.launch = launch_program<T, Quantized>,
                                     .stage_bytes = stage_bytes<T, Quantized>(),
                                     .stage_pieces = kPieces,
                                     .inputs = inputs_for<T, Quantized>,
                                     .attention_bytes = static_cast<int>(sizeof(AttentionScratch<T, kStepMostDim>))};
  return &kernel;
}

}  // namespace sluice::cuda::step
