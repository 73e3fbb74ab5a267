// Matmuls of few rows with quantized weights, a template over the codecs of device/panel_codec.cuh. Every K-slice of a
// panel goes through shared memory into registers and becomes an operand of small integers. The sums of inputs that
// share a scale are multiplied by it in fp32. So weights are exact; inputs are rounded to bf16. Bound by memory
// bandwidth, or by decoding where a format takes many instructions. Measured on one H200 (4.64 TB/s): [28672, 4096]
// with 1 row takes 32.6 us in q8_0 (3.8 TB/s) and 23.6 us in int4_g128.
//
// Blocks have 8 warps and are persistent: one wave of blocks walks over all panels. Each block puts its inputs into
// shared memory once, in operand order. It loads the slices of the next panel while it multiplies the current one. The
// 8 warps share the slices of a panel in turn, or teams of fewer warps have a panel each, whichever divides the panels
// more evenly among the blocks. The sums of a team are added in shared memory in the order of the warps. Experts that
// have rows get equal numbers of blocks.
//
// Where the inputs of all rows do not fit, each block takes a part of k, and a second kernel adds up the parts. With
// several matrices a block goes through k part by part instead. Offsets and minima need the sums of the inputs, which
// lie beside the inputs. The first weights are loaded before the kernels that write the inputs have ended (PDL).
#pragma once

#include <bit>
#include <tuple>

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/pdl.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/slice_ring.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {

namespace panels {

inline constexpr int kWarpsLog2 = 3, kWarps = 1 << kWarpsLog2;

struct Arguments {
  const std::byte* weight;
  const float* x;
  float* out;
  const float* bias;
  const int32_t *starts, *x_rows;
  float* partial;                                    // [parts of k, rows, n], written instead of out; or null
  int64_t weight_step, bias_step, x_step, out_step;  // from a matrix to the next one; weights in bytes
  int64_t x_stride, out_stride, panel_bytes;
  int rows, n, k, slices, matrices;
  int part_slices;   // slices of a block's part of k
  int chunk_slices;  // slices whose inputs fit into shared memory, a multiple of kWarps
  bool accumulate, x_aligned;
};

constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(127 + exponent) << 23); }

// Bytes from a row of inputs to the next one in shared memory, chosen so that eight lanes' loads of 16 bytes meet all
// banks.
__host__ __device__ constexpr int x_pitch(int slices) { return slices * kPanelSlice * 2 + 64; }

// Ahead: slices of a warp in flight. Blocks: blocks per SM.
template <int RowTiles, int Ahead, int Blocks>
struct Tiling {
  static constexpr int tiles = RowTiles, rows = RowTiles * 8, ahead = Ahead, blocks = Blocks;
  static constexpr int buffers = RowTiles == 1 ? 2 : 1;  // of sums, used in turn
  static constexpr int sums_pitch = rows + 1;            // floats per output
  static constexpr int sums = kWarps * kPanelOutputs * sums_pitch;
};

// Floats for the sums of inputs per slice: one for every scale and row.
template <class Codec, class Tile>
constexpr int x_sums() {
  return Codec::kShifted ? kPanelSlice / Codec::kFold * Tile::rows : 0;
}

// A block's share of a matrix: panels in groups, one panel for each of its teams of 1 << team_log2 warps.
struct Share {
  int number, parts;      // among all shares of the matrix
  int team_log2, groups;  // groups of the whole matrix

  // Chooses the teams for which the slowest share takes least time. Called by whole warps.
  __device__ Share(const Arguments& a, int number_, int parts_) : number(number_), parts(parts_) {
    constexpr int kSlicesOfOverhead = 2;  // the overhead of a group, in slices
    const int panels = (a.n + kPanelOutputs - 1) / kPanelOutputs;
    const int log2 = min(static_cast<int>(threadIdx.x % 32), kWarpsLog2);  // each lane tries one choice
    const int rounds = (groups_of(panels, log2) + parts - 1) / parts;
    const unsigned slices = rounds * (((a.part_slices - 1) >> log2) + 1 + kSlicesOfOverhead);
    static_assert(kWarpsLog2 < 4);
    team_log2 = kWarpsLog2 - static_cast<int>(__reduce_min_sync(~0u, slices * 4 + kWarpsLog2 - log2) & 3);
    groups = groups_of(panels, team_log2);
  }

 private:
  static __device__ int groups_of(int panels, int log2) { return ((panels - 1) >> (kWarpsLog2 - log2)) + 1; }
};

template <class Codec, class Tile>
class Streamer {
 public:
  using Ring = SliceRing<Codec, Tile::ahead>;

  __device__ Streamer(const Arguments& a, std::byte* shared, int matrix, const Share& share)
      : a_(a),
        matrix_(matrix),
        share_(share),
        sums_out_(reinterpret_cast<float*>(shared + kWarps * Ring::kBytes)),
        x_sums_(sums_out_ + Tile::buffers * Tile::sums),
        x_(reinterpret_cast<std::byte*>(x_sums_ + x_sums<Codec, Tile>() * a.chunk_slices)),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        team_(1 << share.team_log2),
        begin_(blockIdx.z * a.part_slices),
        end_(min(begin_ + a.part_slices, a.slices)),
        own_(begin_ + warp_ % team_),
        codec_(a.weight, a.k, lane_),
        ring_(shared_address(shared) + warp_ * Ring::kBytes) {}

  // Starts to load this warp's first slices, which are multiplied by `passes` tiles of rows.
  __device__ void begin(int passes) {
    go_to(share_.number);
    left_ = own_ < end_ && share_.number < share_.groups ? passes : 0;
#pragma unroll 1
    for (int i = 0; i < Ring::kSlots; ++i) prefetch();
  }

  // Stores the inputs of a chunk's slices in shared memory: for every row and two steps of a slice, lane t's four
  // inputs of either step, and the sums of inputs that share a scale. Zeros beyond the last input.
  __device__ void stage(int first_row, int count, int chunk) {
    constexpr int kBatch = 4, kStep = kWarps * 32;  // quads that a thread has in flight; quads from one to the next
    const int slices = min(a_.chunk_slices, (end_ - chunk + 1) / 2 * 2);  // even: whole warps take part
    const int quads = slices * (kPanelSlice / 4), thread = threadIdx.x, slot = Codec::slot(thread % 16);
    const float* all_x = a_.x + matrix_ * a_.x_step + chunk * kPanelSlice;
    const int k = min(a_.k, end_ * kPanelSlice) - chunk * kPanelSlice;  // inputs from the chunk on
    // A thread's quads are whole slices apart and so have the same place in each slice.
    std::byte* to = x_ + thread / 16 * (kPanelSlice * 2) + slot / 8 * 64 + slot % 4 * 16 + slot / 4 % 2 * 8;
    float* sums = x_sums_ + thread / kSumLanes * Tile::rows;
    for (int row = 0; row < count; ++row, to += x_pitch(a_.chunk_slices), ++sums) {
      const float* x = all_x + row_of_x(a_.x_rows, first_row + row) * a_.x_stride;
      for (int i = thread; i < quads; i += kBatch * kStep) {
        float4 v[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          if (i + j * kStep < quads) v[j] = input(x, (i + j * kStep) * 4, k);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
          const int slices_on = (i - thread) / 16 + j * (kStep / 16);
          if (i + j * kStep >= quads) break;
          if constexpr (Codec::kLowered != 0) {
            v[j].x *= kRaised, v[j].y *= kRaised, v[j].z *= kRaised, v[j].w *= kRaised;
          }
          const uint2 packed = {pack2<__nv_bfloat16>(v[j].x, v[j].y), pack2<__nv_bfloat16>(v[j].z, v[j].w)};
          *reinterpret_cast<uint2*>(to + slices_on * (kPanelSlice * 2)) = packed;
          if constexpr (Codec::kShifted) {
            const float sum = warp_sum<kSumLanes>(bf16_sum(packed.x) + bf16_sum(packed.y));
            if (lane_ % kSumLanes == 0) sums[slices_on * (16 / kSumLanes) * Tile::rows] = sum;
          }
        }
      }
    }
    __syncthreads();
  }

  // Computes the sums of `count` rows and the next group of panels since begin().
  __device__ void run(int first_row, int count, bool staged) {
#pragma unroll
    for (int r = 0; r < Tile::tiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[r][i] = 0.0f;
    }
    const std::byte* x[Tile::tiles];
#pragma unroll
    for (int r = 0; r < Tile::tiles; ++r) {
      x[r] = x_ + min(r * 8 + lane_ / 4, count - 1) * x_pitch(a_.chunk_slices) + lane_ % 4 * 16;
    }
    int slice = own_;
    for (int chunk = begin_; chunk < end_; chunk += a_.chunk_slices) {
      if (!staged) {
        __syncthreads();
        stage(first_row, count, chunk);
      }
      const int chunk_end = min(chunk + a_.chunk_slices, end_);
#pragma unroll 1
      for (; slice < chunk_end; slice += team_) {
        typename Codec::Slice weights;
        ring_.take(weights);
        prefetch();
        multiply(weights, x, slice - chunk);
      }
    }
  }

  // Adds up the warps' sums of a group and writes them.
  __device__ void write(int first_row, int count, int group, int turn) {
    float* sums = sums_out_ + turn % Tile::buffers * Tile::sums;  // [kWarps][16][sums_pitch]
#pragma unroll
    for (int r = 0; r < Tile::tiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int output = i / 2 * 8 + lane_ / 4, row = r * 8 + lane_ % 4 * 2 + i % 2;
        if (row < count) sums[(warp_ * kPanelOutputs + output) * Tile::sums_pitch + row] = sums_[r][i];
      }
    }
    __syncthreads();
    const int outputs = kWarps * kPanelOutputs >> share_.team_log2;
    for (int i = threadIdx.x; i < count * outputs; i += kWarps * 32) {
      const int row = i / outputs, output = i % outputs, column = group * outputs + output;
      if (column >= a_.n) continue;
      const float* from =
          sums + row +
          ((output / kPanelOutputs << share_.team_log2) * kPanelOutputs + output % kPanelOutputs) * Tile::sums_pitch;
      float sum = 0.0f;
      for (int w = 0; w < team_; ++w) sum += from[w * kPanelOutputs * Tile::sums_pitch];
      if constexpr (Codec::kLowered != 0) sum *= kLifted;
      put(first_row + row, column, sum);
    }
    if constexpr (Tile::buffers == 1) __syncthreads();
  }

 private:
  static constexpr int kSumLanes = Codec::kFold / 4;  // lanes whose quads share a scale
  // Where weights are lowered, inputs (of up to 2^63) are raised by half of that, so that no sum is too small for fp32.
  // The sums are raised by the rest.
  static constexpr float kRaised = 0x1p64f, kLifted = power_of_two(Codec::kLowered - 64);

  static __device__ float bf16_sum(uint32_t pair) {
    return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000u);
  }

  // Loads four of k inputs, zeros beyond k.
  __device__ float4 input(const float* x, int at, int k) const {
    if (a_.x_aligned && at + 4 <= k) return *reinterpret_cast<const float4*>(x + at);
    return {at < k ? x[at] : 0.0f, at + 1 < k ? x[at + 1] : 0.0f, at + 2 < k ? x[at + 2] : 0.0f,
            at + 3 < k ? x[at + 3] : 0.0f};
  }

  // Starts to load the next slice.
  __device__ void prefetch() {
    if (left_ == 0) return ring_.prefetch_none();
    ring_.prefetch(codec_, prefetched_slice_);
    prefetched_slice_ += team_;
    if (prefetched_slice_ < end_) return;
    int group = prefetched_group_ + share_.parts;
    if (group >= share_.groups) group = share_.number, --left_;
    go_to(group);
  }
  __device__ void go_to(int group) {
    prefetched_group_ = group, prefetched_slice_ = own_;
    const int panel = (group << (kWarpsLog2 - share_.team_log2)) + (warp_ >> share_.team_log2);
    codec_ = Codec(a_.weight + matrix_ * a_.weight_step + min(panel, (a_.n - 1) / kPanelOutputs) * a_.panel_bytes, a_.k,
                   lane_);
  }

  __device__ void put(int row, int column, float sum) const {
    if (a_.partial != nullptr) {
      a_.partial[(int64_t{blockIdx.z} * a_.rows + row) * a_.n + column] = sum;
      return;
    }
    if (a_.bias != nullptr) sum += a_.bias[matrix_ * a_.bias_step + column];
    float& to = a_.out[row * a_.out_stride + matrix_ * a_.out_step + column];
    to = a_.accumulate ? to + sum : sum;
  }

  // `at`: the slice's index in the chunk.
  __device__ void multiply(const typename Codec::Slice& slice, const std::byte* const (&x)[Tile::tiles], int at) {
    constexpr int kSteps = Codec::kFold / kPanelStep;  // steps that share scales
    float part[Tile::tiles][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 b[Tile::tiles];
#pragma unroll
      for (int r = 0; r < Tile::tiles; ++r) {
        b[r] = *reinterpret_cast<const uint4*>(x[r] + at * (kPanelSlice * 2) + half * 64);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = half * 2 + i;
        uint32_t a[4];
        Codec::lowered(slice, step, a);
#pragma unroll
        for (int r = 0; r < Tile::tiles; ++r) {
          const uint32_t b0 = i == 0 ? b[r].x : b[r].z, b1 = i == 0 ? b[r].y : b[r].w;
          if (step % kSteps == 0) {
            mma_first(part[r], a, b0, b1);
          } else {
            mma<__nv_bfloat16>(part[r], a[0], a[1], a[2], a[3], b0, b1);
          }
        }
        if (step % kSteps == kSteps - 1) add_scaled(slice, step / kSteps, part, at);
      }
    }
  }

  __device__ void add_scaled(const typename Codec::Slice& slice, int fold, const float (&part)[Tile::tiles][4],
                             int at) {
    float2 x_sum[Tile::tiles];
    if constexpr (Codec::kShifted) {
      const float* from = x_sums_ + (at * (kPanelSlice / Codec::kFold) + fold) * Tile::rows + lane_ % 4 * 2;
#pragma unroll
      for (int r = 0; r < Tile::tiles; ++r) x_sum[r] = *reinterpret_cast<const float2*>(from + r * 8);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Factors f = Codec::factors(slice, half, fold);
      const float shift = f.minimum - f.scale * f.base;
#pragma unroll
      for (int r = 0; r < Tile::tiles; ++r) {
        float &first = sums_[r][half * 2], &second = sums_[r][half * 2 + 1];
        first = fmaf(f.scale, part[r][half * 2], first);
        second = fmaf(f.scale, part[r][half * 2 + 1], second);
        if constexpr (Codec::kShifted) {
          first = fmaf(shift, x_sum[r].x, first);
          second = fmaf(shift, x_sum[r].y, second);
        }
      }
    }
  }

  const Arguments& a_;
  const int matrix_;
  const Share share_;
  float *const sums_out_, *const x_sums_;
  std::byte* const x_;
  const int lane_, warp_, team_, begin_, end_, own_;  // own_: this warp's first slice
  Codec codec_;                                       // for the panel that is loaded
  Ring ring_;
  int prefetched_slice_ = 0, prefetched_group_ = 0, left_ = 0;
  float sums_[Tile::tiles][4];
};

// Grid: (shares of a matrix, matrices, parts of k); for experts (shares of all of them, 1, parts of k).
template <class Codec, class Tile>
__global__ void __launch_bounds__(kWarps * 32, Tile::blocks) stream_panels(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) std::byte shared[];
  RowTile tile{static_cast<int>(blockIdx.y), 0, a.rows, 0};
  int number = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  if (a.starts != nullptr) {
    wait_for_earlier();
    const RowTiles tiles(a.starts, a.matrices, a.rows, Tile::rows);
    const int count = tiles.count();
    if (count == 0) return;
    const int own = static_cast<int>(int64_t{number} * count / parts);
    const int begin = static_cast<int>((int64_t{own} * parts + count - 1) / count);
    const int end = static_cast<int>((int64_t{own + 1} * parts + count - 1) / count);
    tile = tiles[own];
    number -= begin, parts = end - begin;
  }
  const Share share(a, number, parts);
  Streamer<Codec, Tile> streamer(a, shared, tile.matrix, share);
  streamer.begin((tile.count + Tile::rows - 1) / Tile::rows);
  if (a.starts == nullptr) wait_for_earlier();
  const int begin = tile.row, end = tile.row + tile.count;
  const bool whole = a.part_slices <= a.chunk_slices;
  for (int row = begin, turn = 0; row < end; row += Tile::rows) {
    const int count = min(Tile::rows, end - row);
    if (whole) {
      __syncthreads();
      streamer.stage(row, count, static_cast<int>(blockIdx.z) * a.part_slices);
    }
    for (int group = share.number; group < share.groups; group += share.parts, ++turn) {
      streamer.run(row, count, whole);
      streamer.write(row, count, group, turn);
    }
  }
}

// Adds up the parts of k, in order.
inline __global__ void add_parts(const __grid_constant__ Arguments a, int parts) {
  wait_for_earlier();
  const int64_t count = int64_t{a.rows} * a.n, at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int64_t row = at / a.n, column = at % a.n;
  float sum = 0.0f;
  for (int i = 0; i < parts; ++i) sum += a.partial[i * count + at];
  if (a.bias != nullptr) sum += a.bias[column];
  float& to = a.out[row * a.out_stride + column];
  to = a.accumulate ? to + sum : sum;
}

template <class Codec, class Tile>
void launch(const Launch& l, const MatmulProblem& p, Arguments a) {
  const int most_shared = shared_of_block(l) / 2 - (3 << 10);  // per block, as two blocks share an SM
  constexpr int kSums = Tile::buffers * Tile::sums * static_cast<int>(sizeof(float));
  constexpr int kRings = kWarps * static_cast<int>(SliceRing<Codec, Tile::ahead>::kBytes);
  const auto shared_bytes = [&](int rows, int slices) {
    return rows * x_pitch(slices) + kRings + kSums + slices * x_sums<Codec, Tile>() * static_cast<int>(sizeof(float));
  };
  const int rows = std::min(a.rows, Tile::rows), all = (a.slices + kWarps - 1) / kWarps * kWarps;
  a.chunk_slices = all;
  while (a.chunk_slices > kWarps && shared_bytes(rows, a.chunk_slices) > most_shared) a.chunk_slices -= kWarps;
  int parts = (all + a.chunk_slices - 1) / a.chunk_slices;
  const size_t partial_bytes = static_cast<size_t>(parts) * static_cast<size_t>(a.rows * int64_t{a.n}) * sizeof(float);
  if (parts > 1 && p.matrices == 1 && partial_bytes <= l.workspace_bytes) {
    a.part_slices = a.chunk_slices;
    a.partial = reinterpret_cast<float*>(l.workspace);
  } else {
    a.part_slices = all;
    parts = 1;
  }
  const int shared = shared_bytes(rows, a.chunk_slices);
  static SharedMemoryLimit limit;
  limit.raise(l.device, stream_panels<Codec, Tile>,
              static_cast<size_t>(std::max(most_shared, shared_bytes(Tile::rows, kWarps))));
  const int resident = std::min(Tile::blocks, (shared_of_block(l) - (3 << 10)) / (shared + (1 << 10)));
  const auto panels = static_cast<int>(pieces(p.n, kPanelOutputs)), matrices = p.starts != nullptr ? 1 : p.matrices;
  const int at_once = std::max(l.sm_count * resident / (parts * matrices), 1);
  const unsigned blocks = p.starts == nullptr ? static_cast<unsigned>(std::min(panels, at_once))
                                              : std::max(static_cast<unsigned>(at_once),
                                                         most_row_tiles(true, p.matrices, a.rows, Tile::rows));
  launch_pdl(l, "matmul with panels", stream_panels<Codec, Tile>,
             dim3(blocks, static_cast<unsigned>(matrices), static_cast<unsigned>(parts)), kWarps * 32,
             static_cast<size_t>(shared), a);
  if (parts == 1) return;
  constexpr int kThreads = 256;
  const dim3 all_outputs(static_cast<unsigned>(pieces(int64_t{a.rows} * a.n, kThreads)));
  launch_pdl(l, "matmul with panels: sum of parts", add_parts, all_outputs, kThreads, 0, a, parts);
}

// Unpacks panels into rows, with scales applied.
template <class T>
struct Unpacked {
  T* to;
  const std::byte* weight;  // the first panel
  int64_t panel_bytes, stride;
  int outputs, k, slices;
};

__device__ inline void store_four(float* to, const float (&values)[4]) {
  *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
}
__device__ inline void store_four(__nv_bfloat16* to, const float (&values)[4]) {
  *reinterpret_cast<uint2*>(to) = {pack2<__nv_bfloat16>(values[0], values[1]),
                                   pack2<__nv_bfloat16>(values[2], values[3])};
}

__device__ inline void store_eight(float* to, const float (&a)[4], const float (&b)[4]) {
  store_four(to, a), store_four(to + 4, b);
}
__device__ inline void store_eight(__nv_bfloat16* to, const float (&a)[4], const float (&b)[4]) {
  *reinterpret_cast<uint4*>(to) = {pack2<__nv_bfloat16>(a[0], a[1]), pack2<__nv_bfloat16>(a[2], a[3]),
                                   pack2<__nv_bfloat16>(b[0], b[1]), pack2<__nv_bfloat16>(b[2], b[3])};
}

// A lane's four weights of output g + 8 r in a step.
template <class Codec>
__device__ void unpack_step(const Codec& codec, const typename Codec::Slice& slice, int step, int r, float (&to)[4]) {
  if constexpr (Codec::kRounded) {
    codec.exact(slice, step, r, to);
  } else {
    uint32_t operand[4];
    Codec::weights(slice, step, operand);
    const Factors f = Codec::factors(slice, r, step * kPanelStep / Codec::kFold);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = operand[r + i / 2 * 2];
      const float q = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u) - f.base;
      to[i] = f.scale * q + f.minimum;
    }
  }
}

// One block per panel.
template <class Codec, class T>
__global__ void __launch_bounds__(kWarps * 32) unpack_panels(const __grid_constant__ Unpacked<T> a) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  const Codec codec(a.weight, a.k, lane);
  for (int number = threadIdx.x / 32; number < a.slices; number += kWarps) {
    typename Codec::Slice slice;
    codec.load(slice, blockIdx.x * a.panel_bytes, number);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int output = static_cast<int>(blockIdx.x) * kPanelOutputs + r * kPairsOfRows + lane / 4;
      T* row = a.to + output * a.stride + int64_t{number} * kPanelSlice;
      float values[kPanelSlice / kPanelStep][4];
#pragma unroll
      for (int step = 0; step < kPanelSlice / kPanelStep; ++step) {
        unpack_step(codec, slice, step, r, values[step]);
      }
      if (output >= a.outputs) continue;
#pragma unroll
      for (int step = 0; step < kPanelSlice / kPanelStep; step += 2) {
        T *first = row + 4 * Codec::quad(step, t), *second = row + 4 * Codec::quad(step + 1, t);
        if constexpr (Codec::quad(1, 0) == Codec::quad(0, 0) + 1) {
          store_eight(first, values[step], values[step + 1]);
        } else {
          store_four(first, values[step]), store_four(second, values[step + 1]);
        }
      }
    }
  }
}

template <class Codec, class T>
void unpack(const Launch& l, std::byte* to, const std::byte* weight, int64_t bytes, int64_t count, int64_t k) {
  const Unpacked<T> a{.to = reinterpret_cast<T*>(to),
                      .weight = weight,
                      .panel_bytes = bytes,
                      .stride = padded_k(k),
                      .outputs = static_cast<int>(count),
                      .k = static_cast<int>(k),
                      .slices = static_cast<int>(panel_slices(k))};
  unpack_panels<Codec, T><<<static_cast<unsigned>(pieces(count, kPanelOutputs)), kWarps * 32, 0, l.stream>>>(a);
  check_launch("unpacking weights");
}

}  // namespace panels

// `bytes`: of a panel.
inline panels::Arguments panel_arguments(const MatmulProblem& p, int64_t bytes) {
  return {
      .weight = p.weight,
      .x = p.x.f32(),
      .out = p.out.f32(),
      .bias = p.bias,
      .starts = p.starts,
      .x_rows = p.x_rows,
      .partial = nullptr,
      .weight_step = p.weight_rows / kPanelOutputs * bytes,
      .bias_step = p.bias_step,
      .x_step = p.x_columns,
      .out_step = p.out_columns,
      .x_stride = p.x.row_stride,
      .out_stride = p.out.row_stride,
      .panel_bytes = bytes,
      .rows = static_cast<int>(p.x.rows()),
      .n = static_cast<int>(p.n),
      .k = static_cast<int>(p.k),
      .slices = static_cast<int>(panel_slices(p.k)),
      .matrices = p.matrices,
      .part_slices = 0,
      .chunk_slices = 0,
      .accumulate = p.accumulate,
      .x_aligned = reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 && p.x.row_stride % 4 == 0 && p.x_columns % 4 == 0};
}

// Defined here for the instances in panels_*.cu. Format is a type of src/quant.
template <class Format>
void matmul_panels(const Launch& l, const MatmulProblem& p) {
  using Codec = PanelCodec<Format>;
  if (p.x.rows() == 0) return;
  const panels::Arguments a = panel_arguments(p, panel_bytes<Format>(p.k));
  // The number of rows that a matrix is likely to have.
  const int64_t likely = p.starts != nullptr ? pieces(2 * p.x.rows(), p.matrices) : p.x.rows();
  constexpr int kAhead = panel_bytes<Format>(4 * kPanelSlice) > 2600 ? 2 : 3;  // about as many bytes for every format
  if (likely <= 8) return panels::launch<Codec, panels::Tiling<1, kAhead, 3>>(l, p, a);
  panels::launch<Codec, panels::Tiling<4, 2, 2>>(l, p, a);
}

template <class Format>
void unpack_panels(const Launch& l, std::byte* to, DType type, const std::byte* weight, int64_t begin, int64_t count,
                   int64_t k) {
  using Codec = PanelCodec<Format>;
  const int64_t bytes = panel_bytes<Format>(k);
  weight += begin / kPanelOutputs * bytes;
  if (type == &kFloat32) return panels::unpack<Codec, float>(l, to, weight, bytes, count, k);
  CHECK(type == &kBFloat16, "unpacking weights to {} is not supported (expected one of: float32, bfloat16)",
        type->name);
  panels::unpack<Codec, __nv_bfloat16>(l, to, weight, bytes, count, k);
}

// Names the functions above for every format of a list: `template struct CompiledPanels<List>;` compiles them.
template <class List>
struct CompiledPanels;
template <class... Codecs>
struct CompiledPanels<quant::CodecList<Codecs...>> {
  static auto functions() {
    return std::make_tuple(matmul_panels<typename PanelsOf<Codecs>::Type>...,
                           unpack_panels<typename PanelsOf<Codecs>::Type>...);
  }
};

}  // namespace sluice::cuda
