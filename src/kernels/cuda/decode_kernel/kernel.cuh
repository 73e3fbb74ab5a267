// The persistent decode kernel behind DecodeKernelBuilder, a template over the type of plain weights and caches and
// over a quantized type. Launched cooperatively with one block per SM and 12 warps per block. Bound by reading weights
// and cache, then by the hand-offs between instructions.
//
// kMathWarps warps execute the instructions; all blocks execute all of them in order. Four more warps serve them. Two
// producer warps copy the weights of all matmuls to come into a ring of stages in shared memory. Two epilogue warps add
// up the math warps' sums and pass results on; the first of them also fetches instructions. Each stage is owned by one
// producer warp and each unit by one epilogue warp, so each of these warps has twice the time per stage or unit. Blocks
// wait for the words that they read (decode_kernel/exchange.cuh), and at a counter in device memory before instructions
// that need a grid barrier. Producer warps wait for neither, so memory is read all the time. producer.cuh, multiply.cuh
// and epilogue.cuh have these parts.
//
// A matmul's unit is a panel of 16 outputs. Its stages are of 8 KiB and need one or two copies: for plain rows and
// 8-bit floats a TMA tile of some columns of each row, for packed panels whole K-slices with their scales. Each stage
// is multiplied by one of two warp groups, which take stages in turn; each of the four warps multiplies a quarter.
// Every block normalizes and rounds the inputs into its own shared memory.
//
// Which experts a matmul of experts reads is known only when the router's logits are there. The producer and epilogue
// warps of every block wait for them and choose the experts, each for itself.
#pragma once

#include <type_traits>

#include "kernels/cuda/decode_kernel/attention.cuh"
#include "kernels/cuda/decode_kernel/block.cuh"
#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/epilogue.cuh"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/decode_kernel/multiply.cuh"
#include "kernels/cuda/decode_kernel/producer.cuh"
#include "kernels/cuda/decode_kernel/weights.cuh"
#include "kernels/cuda/device/peers.cuh"
#include "kernels/cuda/device/rotation.cuh"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda::persistent {

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
    a.out[row * a.out_stride + column] =
        gated_value(a.gate, is_plain_silu(a.gate), __ldcg(gate), __ldcg(gate + a.columns));
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
// others wrote before. The block that comes last does not load the counter again, so the addition acquires as well:
// without that its plain loads may hit stale lines of the L1 cache. Called by the first lane of the first epilogue
// warp; the rest of the block waits for that lane.
__device__ inline void grid_barrier(const DecodeKernelLaunch& l, int count) {
  const uint32_t all = static_cast<uint32_t>(count) * gridDim.x;
  uint32_t now;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(now) : "l"(l.arrivals) : "memory");
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
  constexpr bool kExperts = kExecutesExperts<Quantized>;
  switch (in.kind) {
    case Kind::kMatmul:
      if constexpr (!std::is_same_v<Quantized, NoWeights>) {
        if (in.matmul.quantized) return multiply<T, Quantized, kExperts>(in.matmul, memory, own, sums, team, epoch);
      }
      return multiply<T, PlainWeights<T>, kExperts>(in.matmul, memory, own, sums, team, epoch);
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
        if (!kExecutesExperts<Quantized> || p.experts.part == ExpertPart::kNone) {
          run_epilogue<T, false, false>(p, memory, auxiliary, sums, epoch + i, l.peers, rounds, choices);
        } else if constexpr (kExecutesExperts<Quantized>) {
          constexpr bool biased = Quantized::kBiasedExperts;
          const bool weighs_biases = biased && p.experts.part == ExpertPart::kOut && p.bias != nullptr;
          if ((p.experts.part == ExpertPart::kIn || weighs_biases) && Units(p).any()) choose(p, epoch, known, choices);
          run_epilogue<T, true, biased>(p, memory, auxiliary, sums, epoch + i, l.peers, rounds, choices);
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
    if (quantized)
      return {.multiple = Quantized::kMultiple, .bytes = Quantized::bytes, .stage_slices = Quantized::kSlices};
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
                                       .executes_experts = kExecutesExperts<Quantized>,
                                       .inputs = inputs_for<T, Quantized>,
                                       .attention_bytes = AttentionScratch<T, kMostHeadDim>::bytes};
  return &kernel;
}

}  // namespace sluice::cuda::persistent
