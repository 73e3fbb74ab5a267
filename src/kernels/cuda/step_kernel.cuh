// The kernel behind StepProgram, a template over the type of plain weights and caches and over a quantized type. One
// block per multiprocessor: kStepWarps warps execute the instructions, all blocks one after the other, and one warp
// (`Feeder`) copies the weights of every product to come into a ring of stages in shared memory. Blocks wait for each
// other between instructions at a counter in device memory (arrive, then poll); the feeder does not, so that memory is
// read all the while.
//
// A product's unit is a panel of 16 outputs. Its stages are of 16 KiB and take one copy or two: of rows (plain weights,
// 8-bit floats) a box of as many columns of each, of panels whole lines with their scales. Warps share the lines of a
// stage in turn, and their sums meet in shared memory. Inputs are normalized and rounded into shared memory by every
// block for itself.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/device/activation.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/device/step_attention.cuh"
#include "kernels/cuda/device/step_weights.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

inline constexpr int kThreads = kStepWarps * kWarp;
inline constexpr int kRingAlign = 1024;
inline constexpr int kRawQuads = kStepRawInputs / 4;
inline constexpr int kSumsPitch = kMostStepRows + 1;
inline constexpr int kSums = kStepWarps * kPanelOutputs * kSumsPitch;  // floats

// Bytes of the inputs of a product in scratch: as they come, with the weights of their norm, and as they are
// multiplied.
template <class Weights>
constexpr int input_bytes(int rows, int64_t k, bool normed) {
  const int lines = static_cast<int>(panel_lines(k));
  const int sums = Weights::kShifted ? lines * (kPanelLine / Weights::kFold) * kMostStepRows * 4 : 0;
  return (normed ? 2 : 1) * kStepRawInputs * 4 + rows * input_pitch(lines) + sums;
}

// The units of a product that are this block's.
struct Units {
  int first, count;
  __device__ explicit Units(const StepProduct& p) {
    const int panels = (p.n + kPanelOutputs - 1) / kPanelOutputs, grid = static_cast<int>(gridDim.x);
    count = p.gated != nullptr ? panels / 2 : panels;
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
    const int halves = p.gated != nullptr ? 2 : 1;
    for (int unit = units.first; unit < units.count; unit += static_cast<int>(gridDim.x)) {
      for (int half = 0; half < halves; ++half) {
        for (int line = 0; line < p.lines; line += Weights::kLines) {
          next_.wait_empty();
          if (ahead_ == most_) {
            arriving_.wait_full();
            arriving_.next();
          } else {
            ++ahead_;
          }
          Weights::fill(p, unit + half * units.count, line, ring_ + next_.offset(), next_.full(), policy_);
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
  float* gates;        // [kStepWarps][kMostStepRows * kPanelOutputs]
  float* squares;      // [kMostStepRows][kStepWarps]
  Instruction* slots;  // [2]
};

// Four inputs into scratch.
template <class Weights>
__device__ inline void leave_inputs(std::byte* inputs, int rows, int lines, int row, int quad, const float4& v) {
  constexpr int kSumLanes = Weights::kFold / 4;
  using T = typename Weights::Input;
  const uint2 packed = {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w)};
  *reinterpret_cast<uint2*>(inputs + row * input_pitch(lines) + Weights::place(quad)) = packed;
  if constexpr (Weights::kShifted) {
    float* x_sums = reinterpret_cast<float*>(inputs + rows * input_pitch(lines));
    const auto sum_of = [](uint32_t pair) { return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u); };
    float sum = sum_of(packed.x) + sum_of(packed.y);
    // Quads come in sixteens: the first half of the warp alone, or all of it.
    const unsigned active = __ballot_sync(__activemask(), true);
#pragma unroll
    for (int offset = kSumLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(active, sum, offset);
    if (threadIdx.x % kSumLanes == 0) x_sums[quad / kSumLanes * kMostStepRows + row] = sum;
  }
}

// The inputs of a product into scratch: as they are into a part of it, as much as there is room for at a time, from
// there rounded to where the tensor cores look for them. A step passes here once for every product, and what costs is
// waiting for memory and for instructions: all loads go out at once, and loops are not unrolled.
template <class Weights>
__device__ void take_inputs(const StepProduct& p, const Memory& memory, const Team& team) {
  const int thread = static_cast<int>(threadIdx.x), rows = p.rows, lines = p.lines, k = p.k;
  const int quads = lines * (kPanelLine / 4), grid = static_cast<int>(gridDim.x);
  float* const normed = p.normed;
  auto* raw = reinterpret_cast<float4*>(memory.scratch);  // [kRawQuads]
  auto* factors = raw + kRawQuads;                        // [kRawQuads], of norms
  std::byte* const inputs = memory.scratch + (normed != nullptr ? 2 : 1) * kRawQuads * static_cast<int>(sizeof(float4));
  const int part = (quads + grid - 1) / grid, part_at = static_cast<int>(blockIdx.x) * part;
  const int piece = min(quads, kRawQuads),
            rows_at_once = normed != nullptr || quads <= kRawQuads ? kRawQuads / piece : 1;
#pragma unroll 1
  for (int row = 0; row < rows; row += rows_at_once) {
    const int taken = min(rows_at_once, rows - row);
#pragma unroll 1
    for (int first = 0; first < quads; first += piece) {
      const int count = min(piece, quads - first);
      if (row + first > 0) team.sync();
#pragma unroll 1
      for (int r = 0; r < taken; ++r) {
        const float* x = p.x + (row + r) * p.x_stride;
#pragma unroll 1
        for (int i = thread; i < count; i += kThreads) {
          const int at = (first + i) * 4;
          copy_async(shared_address(raw + r * piece + i), at < k ? x + at : x, at < k);
        }
      }
      if (normed != nullptr && p.norm_weight != nullptr && row == 0) {
#pragma unroll 1
        for (int i = thread; i < count; i += kThreads) {
          const int at = (first + i) * 4;
          copy_async(shared_address(factors + i), at < k ? p.norm_weight + at : p.norm_weight, at < k);
        }
      }
      wait_for_all_copies();
      if (normed != nullptr) {  // this thread's own copies; rows to warps in turn would leave most of them idle
#pragma unroll 1
        for (int r = 0; r < taken; ++r) {
          float sum = 0.0f;
#pragma unroll 1
          for (int i = thread; i < count; i += kThreads) {
            const float4 v = raw[r * piece + i];
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
          }
          sum = warp_sum(sum);
          if (thread % kWarp == 0) memory.squares[r * kStepWarps + thread / kWarp] = sum;
        }
        team.sync();
      }
#pragma unroll 1
      for (int r = 0; r < taken; ++r) {
        float scale = 1.0f;
        if (normed != nullptr) {
          float sum = 0.0f;
#pragma unroll
          for (int w = 0; w < kStepWarps; ++w) sum += memory.squares[r * kStepWarps + w];
          scale = rsqrtf(sum / static_cast<float>(k) + p.eps);
        }
#pragma unroll 1
        for (int i = thread; i < count; i += kThreads) {
          float4 v = raw[r * piece + i];
          const int quad = first + i;
          if (normed != nullptr) {
            float4 w = {1.0f, 1.0f, 1.0f, 1.0f};
            if (p.norm_weight != nullptr) {
              w = factors[i];
              w = {w.x + p.norm_offset, w.y + p.norm_offset, w.z + p.norm_offset, w.w + p.norm_offset};
            }
            v = {v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
            if (quad >= part_at && quad < part_at + part && quad * 4 < k) {
              *reinterpret_cast<float4*>(normed + (row + r) * p.normed_stride + quad * 4) = v;
            }
          }
          leave_inputs<Weights>(inputs, rows, lines, row + r, quad, v);
        }
      }
    }
  }
  team.sync();
}

static __device__ __noinline__ float activated(ops::Activation activation, float x) { return apply(activation, x); }

// Adds up the warps' sums of a panel and writes them, by one warp. `gates` [kMostStepRows * kPanelOutputs]: what the
// first of two halves gave.
__device__ inline void finish_panel(const StepProduct& p, const float* sums, int unit, int half, int panel,
                                    float* gates) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, output = lane % kPanelOutputs;
  const int64_t column = int64_t{panel} * kPanelOutputs + output;
  if (column >= p.n) return;
#pragma unroll 1
  for (int row = lane / kPanelOutputs; row < p.rows; row += kWarp / kPanelOutputs) {
    float* to = p.out + row * p.out_stride + column;
    float sum = p.accumulate ? __ldcg(to) : 0.0f;
    if (p.bias != nullptr) sum += __ldg(p.bias + column);
    float products = 0.0f;
#pragma unroll
    for (int w = 0; w < kStepWarps; ++w) products += sums[(w * kPanelOutputs + output) * kSumsPitch + row];
    sum += products;
    *to = sum;
    float& gate = gates[row * kPanelOutputs + output];
    if (half == 0) {
      gate = sum;
    } else {
      p.gated[row * p.gated_stride + int64_t{unit} * kPanelOutputs + output] = activated(p.activation, gate) * sum;
    }
  }
}

template <class Weights>
__device__ void multiply(const StepProduct& p, const Memory& memory, RingPlace& place, RingPlace& sums_place,
                         const Team& team) {
  take_inputs<Weights>(p, memory, team);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const Units units(p);
  const int halves = p.gated != nullptr ? 2 : 1;
  const std::byte* inputs =
      memory.scratch + (p.normed != nullptr ? 2 : 1) * kRawQuads * static_cast<int>(sizeof(float4));
  const std::byte* x = inputs + min(lane / 4, p.rows - 1) * input_pitch(p.lines) + lane % 4 * 16;
  const float* x_sums = reinterpret_cast<const float*>(inputs + p.rows * input_pitch(p.lines));
  int finisher = 0;  // the warp that adds up this unit's sums
  for (int unit = units.first; unit < units.count; unit += static_cast<int>(gridDim.x)) {
#pragma unroll 1
    for (int half = 0; half < halves; ++half) {
      float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
      for (int first = 0; first < p.lines; first += Weights::kLines) {
        place.wait_full();
        const typename Weights::Multiplier multiplier(memory.ring + place.offset(), lane);
        const int lines = min(Weights::kLines, p.lines - first);
        const std::byte* from = x + first * (kPanelLine * 2);
        const float* from_sums = x_sums + first * (kPanelLine / Weights::kFold) * kMostStepRows;
        constexpr int kTogether = Weights::kTogether;
#pragma unroll 1
        for (int line = warp * kTogether; line < lines; line += kStepWarps * kTogether) {
          if (line + kTogether <= lines) {
            multiplier.template multiply<kTogether>(sums, line, from, from_sums, lane);
          } else {
#pragma unroll 1
            for (int i = line; i < lines; ++i) multiplier.template multiply<1>(sums, i, from, from_sums, lane);
          }
        }
        __syncwarp();
        if (lane == 0) arrive(place.empty());
        place.next();
      }
      sums_place.wait_empty();
      float* all = memory.sums + sums_place.offset();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int of = i / 2 * 8 + lane / 4, column = lane % 4 * 2 + i % 2;
        all[(warp * kPanelOutputs + of) * kSumsPitch + column] = sums[i];
      }
      __syncwarp();
      if (lane == 0) arrive(sums_place.full());
      if (warp == finisher) {
        sums_place.wait_full();
        const int panel = unit + half * units.count;
        finish_panel(p, all, unit, half, panel, memory.gates + warp * kMostStepRows * kPanelOutputs);
        __syncwarp();
        if (lane == 0) arrive(sums_place.empty());
      }
      sums_place.next();
    }
    finisher = finisher + 1 == kStepWarps ? 0 : finisher + 1;
  }
}

__device__ inline void run(const StepNorm& a) {
  const int lane = threadIdx.x % kWarp, vectors = a.rows * a.groups;
  for (int i = static_cast<int>(threadIdx.x / kWarp * gridDim.x + blockIdx.x); i < vectors;
       i += static_cast<int>(gridDim.x) * kStepWarps) {
    const int row = i / a.groups, group = i % a.groups;
    const float* x = a.x + row * a.x_stride + int64_t{group} * a.columns;
    float* out = a.out + row * a.out_stride + int64_t{group} * a.columns;
    float sum = 0.0f;
    for (int c = lane; c < a.columns; c += kWarp) {
      const float v = __ldcg(x + c);
      sum += v * v;
    }
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(a.columns) + a.eps);
    for (int c = lane; c < a.columns; c += kWarp) {
      out[c] = __ldcg(x + c) * scale * (a.weight != nullptr ? __ldg(a.weight + c) + a.offset : 1.0f);
    }
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

// Fetches instruction `next`, if there is one, when all blocks are done with what they wrote until now; then all see
// that. `arrivals` counts up over a launch.
__device__ inline void meet(const StepLaunch& l, const Memory& memory, int next, const Team& team) {
  constexpr int kPacks = static_cast<int>(sizeof(Instruction) / sizeof(uint4));
  static_assert(kPacks <= kWarp);
  const bool last = next == l.count;
  team.sync();
  if (threadIdx.x == 0) {
    int before = 0;
    asm volatile("atom.add.release.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(l.arrivals) : "memory");
    const int all = next * static_cast<int>(gridDim.x);
    if (last) {
      if (before == all - 1) *l.arrivals = 0;
    } else {
      int now = before + 1;
      while (now < all) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(l.arrivals) : "memory");
    }
  } else if (threadIdx.x >= kWarp && threadIdx.x < kWarp + kPacks && !last) {
    const int i = static_cast<int>(threadIdx.x) - kWarp;
    reinterpret_cast<uint4*>(memory.slots + next % 2)[i] = __ldg(reinterpret_cast<const uint4*>(l.program + next) + i);
  }
  team.sync();
}

template <class T, class Quantized>
__device__ void execute(const Instruction& in, const Memory& memory, RingPlace& place, RingPlace& sums,
                        const Team& team) {
  using Kind = Instruction::Kind;
  switch (in.kind) {
    case Kind::kProduct:
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (in.product.quantized) return multiply<Quantized>(in.product, memory, place, sums, team);
      }
      return multiply<PlainWeights<T>>(in.product, memory, place, sums, team);
    case Kind::kNorm:
      return run(in.norm);
    case Kind::kRows:
      return run<T>(in.rows);
    case Kind::kGlu:
      return run(in.glu);
    case Kind::kRotation:
      return run<T>(in.rotation, team);
    case Kind::kAttention:
      return attend<T>(in.attention, memory.scratch, team);
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
__global__ void __launch_bounds__(kThreads + kWarp, 1) run_program(const __grid_constant__ StepLaunch l) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  Memory memory{};
  memory.ring = shared + (kRingAlign - shared_address(shared) % kRingAlign) % kRingAlign;
  memory.scratch = memory.ring + l.stages * stage_bytes<T, Quantized>();
  memory.sums = reinterpret_cast<float*>(memory.scratch + l.scratch_bytes);
  memory.gates = memory.sums + kStepSums * kSums;
  memory.squares = memory.gates + kStepWarps * kMostStepRows * kPanelOutputs;
  memory.slots = reinterpret_cast<Instruction*>(memory.squares + kMostStepRows * kStepWarps);
  const uint32_t sums_barriers = shared_address(memory.slots + 2), barriers = sums_barriers + 16 * kStepSums;
  if (threadIdx.x == 0) {
    make_ring(barriers, l.stages, 1, kStepWarps);
    make_ring(sums_barriers, kStepSums, kStepWarps, 1);
  }
  if (threadIdx.x < sizeof(Instruction) / sizeof(uint4)) {
    reinterpret_cast<uint4*>(memory.slots)[threadIdx.x] =
        __ldg(reinterpret_cast<const uint4*>(l.program) + threadIdx.x);
  }
  __syncthreads();
  RingPlace place(barriers, l.stages, stage_bytes<T, Quantized>());
  if (threadIdx.x >= kThreads) return feed<T, Quantized>(l, memory.ring, place);
  RingPlace sums(sums_barriers, kStepSums, kSums);
  const Team team{.warps = kStepWarps};
  for (int i = 0; i < l.count; ++i) {
    execute<T, Quantized>(memory.slots[i % 2], memory, place, sums, team);
    meet(l, memory, i + 1, team);
  }
#endif
}

template <class T, class Quantized>
void launch_program(const Launch& l, const StepLaunch& s) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      run_program<T, Quantized>, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingAlign + kStepShared);
  check_cuda(allowed, "shared memory of a step");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(l.multiprocessors));
  config.blockDim = dim3(kThreads + kWarp);
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
int input_bytes_of(int rows, int64_t k, bool quantized, bool normed) {
  if constexpr (!std::is_same_v<Quantized, NoWeights>) {
    if (quantized) return input_bytes<Quantized>(rows, k, normed);
  }
  return input_bytes<PlainWeights<T>>(rows, k, normed);
}

// T is __nv_bfloat16 or __half, Format a type of src/quant that has panels, or void.
template <class T, class Format>
const StepKernel* kernel() {
  using Quantized = WeightsOf<Format>::Type;
  static constexpr StepKernel kernel{.launch = launch_program<T, Quantized>,
                                     .stage_bytes = stage_bytes<T, Quantized>(),
                                     .stage_pieces = kPieces,
                                     .input_bytes = input_bytes_of<T, Quantized>,
                                     .attention_bytes = static_cast<int>(sizeof(AttentionScratch<T, kStepMostDim>))};
  return &kernel;
}

}  // namespace sluice::cuda::step
