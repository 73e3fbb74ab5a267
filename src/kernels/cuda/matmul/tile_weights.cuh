// The weights of tiles.cuh: what a block is given, how a warp reads slices of weights ahead, and how it turns them into
// operands of the tensor cores.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/panel_ring.cuh"
#include "kernels/cuda/device/row_tiles.cuh"
#include "kernels/cuda/device/tile_stages.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/tiles.h"

namespace sluice::cuda::tiles {

inline constexpr int kThreads = 256;  // two warp groups
// A block's.
inline constexpr int kPanels = kThreads / kWarp, kOutputs = kPanels * kPanelOutputs;
static_assert(kOutputs == kTileOutputs);
inline constexpr int kSteps = kPanelSlice / kPanelStep;
#ifdef SLUICE_SM90A
inline constexpr bool kWarpgroups = true;
#else
inline constexpr bool kWarpgroups = false;
#endif

// Row-major weights of 16 bits, padded to whole K-slices. A lane loads 16 bytes of 32 inputs at a time.
template <class T>
class PlainWeights {
 public:
  static constexpr int kFold = kPanelSlice;
  static constexpr bool kShifted = false;
  struct Slice {
    uint4 packs[2][2];  // outputs g and g + 8, in two halves of 32 inputs
  };

  __device__ PlainWeights(const std::byte* weight, int64_t k, int lane) {
    const int64_t pitch = padded_k(k) * static_cast<int64_t>(sizeof(T));
    rows_[0] = weight + lane / 4 * pitch + lane % 4 * 16;
    rows_[1] = rows_[0] + kPairsOfRows * pitch;
  }
  __device__ void load(Slice& to, int64_t panel, int slice) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to.packs[r][half] = load_streaming(rows_[r] + panel + slice * kTileRowBytes + half * 64);
      }
    }
  }
  static __device__ void weights(const Slice& slice, int step, uint32_t (&a)[4]) {
    const uint4 &low = slice.packs[0][step / 2], &high = slice.packs[1][step / 2];
    a[0] = step % 2 == 0 ? low.x : low.z, a[1] = step % 2 == 0 ? high.x : high.z;
    a[2] = step % 2 == 0 ? low.y : low.w, a[3] = step % 2 == 0 ? high.y : high.w;
  }
  static __device__ constexpr int quad(int step, int t) { return step / 2 * 8 + step % 2 + 2 * t; }

 private:
  const std::byte* rows_[2];
};

// The 16-bit type that weights become.
template <class Codec>
struct Operand {
  using Type = __nv_bfloat16;
  static constexpr bool kScaled = true;
};
template <class T>
struct Operand<PlainWeights<T>> {
  using Type = T;
  static constexpr bool kScaled = false;
};

struct Arguments {
  const std::byte* weight;
  const std::byte* x;  // as tile_rows.cu writes it
  float* out;
  const float* bias;
  const int32_t* starts;
  int64_t weight_step, bias_step, panel_bytes;  // from a matrix to the next one; weights in bytes
  int64_t x_rows, out_stride;
  int matrices, rows, n, k, slices;
  bool accumulate, quads;  // quads: results may be written four at a time
  uint32_t zero = 0;       // always 0, but the compiler does not know it
};

// x: rounded inputs, x_rows rows of them.
inline Arguments arguments(const MatmulProblem& p, const std::byte* x, int64_t x_rows, int64_t panel_bytes) {
  return {.weight = p.weight,
          .x = x,
          .out = p.out.f32(),
          .bias = p.bias,
          .starts = p.starts,
          .weight_step = p.weight_rows / kPanelOutputs * panel_bytes,
          .bias_step = p.bias_step,
          .panel_bytes = panel_bytes,
          .x_rows = x_rows,
          .out_stride = p.out.row_stride,
          .matrices = p.matrices,
          .rows = static_cast<int>(p.x.rows()),
          .n = static_cast<int>(p.n),
          .k = static_cast<int>(p.k),
          .slices = static_cast<int>(panel_slices(p.k)),
          .accumulate = p.accumulate,
          .quads = reinterpret_cast<uintptr_t>(p.out.data) % 16 == 0 && p.out.row_stride % 4 == 0 && p.n % 4 == 0};
}

// The row where the tile's inputs begin.
__device__ inline int64_t tile_place_of(const RowTile& tile) {
  return tile_place(tile.start, tile.matrix) + tile.row - tile.start;
}

// Whether scales are powers of two, by which bf16 is multiplied without rounding: one instruction for two weights.
template <class Codec>
inline constexpr bool kScaledInPairs = false;
template <class Format>
inline constexpr bool kScaledInPairs<PanelCodec<Format>> = PanelCodec<Format>::kExponents;

// The a operand of a step, with scales applied.
template <class Codec>
__device__ void operand(const typename Codec::Slice& slice, int step, uint32_t (&to)[4]) {
  Codec::weights(slice, step, to);
  if constexpr (kScaledInPairs<Codec>) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      to[p] = multiply_bf16x2(to[p], Codec::scale_pair(slice, p % 2, step * kPanelStep / Codec::kFold));
    }
  } else if constexpr (Operand<Codec>::kScaled) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Factors f = Codec::factors(slice, r, step * kPanelStep / Codec::kFold);
      const float shift = Codec::kShifted ? f.minimum - f.scale * f.base : 0.0f;
#pragma unroll
      for (int p = r; p < 4; p += 2) {
        const float low = __uint_as_float(to[p] << 16), high = __uint_as_float(to[p] & 0xffff0000u);
        to[p] = pack2<__nv_bfloat16>(fmaf(f.scale, low, shift), fmaf(f.scale, high, shift));
      }
    }
  }
}

// The most rows for which sums are scaled instead of weights. Scaling sums takes a multiplication per sum and set of
// inputs that share a scale, and registers. Scaling weights takes about seven instructions each.
template <class Codec>
constexpr int most_scaled_rows() {
  if constexpr (Operand<Codec>::kScaled && !kScaledInPairs<Codec>) {
    constexpr bool kFewRegisters = !std::is_same_v<Codec, PanelCodec<quant::Fp8>>;
    if (!Codec::kMinima && Codec::kFold >= kPanelSlice / 2)
      return Codec::kFold == kPanelSlice && kFewRegisters ? 64 : 32;
  }
  return 0;
}

// For outputs g and g + 8 and each set of inputs of a slice that share them: the scales, and the difference between
// operands and weights, twice, in bf16.
template <class Codec>
struct SliceFactors {
  static constexpr int kSets = kPanelSlice / Codec::kFold;
  float scales[kSets][2];
  uint32_t bases[kSets][2];

  __device__ void take(const typename Codec::Slice& slice) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Factors f = Codec::factors(slice, r, set);
        scales[set][r] = f.scale, bases[set][r] = pack2<__nv_bfloat16>(f.base, f.base);
      }
    }
  }
};

// Makes the exact operands of a slice, integers of up to 8 bits or levels, but for their last instruction, which
// finish() adds. The operand registers may not be written before the matmuls that read them have finished. If this work
// wrote them at once, the compiler would move it behind that wait.
template <class Codec>
__device__ void prepare(const typename Codec::Slice& slice, uint32_t (&to)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) Codec::weights(slice, step, to[step]);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) wgmma_fence_operands(to[step]);
}
template <class Codec>
__device__ void finish(const uint32_t (&from)[kSteps][4], const SliceFactors<Codec>& factors, uint32_t zero,
                       uint32_t (&to)[kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      if constexpr (Codec::kShifted) {
        const uint32_t base = factors.bases[step * kPanelStep / Codec::kFold][p % 2];
        asm volatile("sub.rn.bf16x2 %0, %1, %2;" : "=r"(to[step][p]) : "r"(from[step][p]), "r"(base) : "memory");
      } else {
        to[step][p] = from[step][p] ^ zero;
      }
    }
  }
}

// Offset of this warp's panel in the first matrix. Warps beyond the last panel repeat it.
__device__ inline int64_t own_panel(const Arguments& a) {
  const int panel = static_cast<int>(blockIdx.x) * kPanels + static_cast<int>(threadIdx.x) / kWarp;
  return min(panel, (a.n - 1) / kPanelOutputs) * a.panel_bytes;
}

// Loads a warp's slices of a panel ahead, into registers.
template <class Codec, int slices>
class RegisterSlices {
 public:
  static constexpr int kSlices = slices;     // in flight
  static constexpr int kSlicesOfScales = 1;  // slices that share scales
  static constexpr uint32_t kWarpBytes = 0;  // bytes of shared memory

  __device__ RegisterSlices(const Arguments& a, const Part& part, uint32_t = 0)
      : codec_(a.weight, a.k, static_cast<int>(threadIdx.x) % kWarp), part_(part), panel_(own_panel(a)) {}

  __device__ void begin(int64_t matrix_bytes) {
    panel_ += matrix_bytes;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      if (i < part_.count) codec_.load(ring_[i], panel_, part_.begin + i);
    }
  }
  // Calls use(slice) for slice `number` of the part, where number % kSlices is i, then loads the slice that takes its
  // place.
  template <class F>
  __device__ void take(int number, int i, F&& use) {
    use(ring_[i]);
    if (number + kSlices < part_.count) codec_.load(ring_[i], panel_, part_.begin + number + kSlices);
  }

 private:
  const Codec codec_;
  const Part part_;
  int64_t panel_;
  typename Codec::Slice ring_[kSlices];
};

// Loads a warp's slices of a panel ahead, through shared memory.
template <class Codec>
class SharedSlices {
 public:
  static constexpr uint32_t kRingBytes = 8 << 10;
  using Ring = PanelRing<Codec, kRingBytes>;
  static constexpr int kSlices = Ring::kSlices, kSlicesOfScales = std::min(Codec::kLayout.scale_slices, kSlices);
  static constexpr uint32_t kWarpBytes = kRingBytes + Ring::kBarrierBytes;

  // `memory`: shared memory of the block's warps, a multiple of 128.
  __device__ SharedSlices(const Arguments& a, const Part& part, uint32_t memory)
      : ring_(memory + warp() * kRingBytes, memory + kPanels * kRingBytes + warp() * Ring::kBarrierBytes, a.slices,
              part),
        panel_(a.weight + own_panel(a)),
        count_(part.count) {}

  __device__ void begin(int64_t matrix_bytes) { ring_.begin(panel_ + matrix_bytes); }
  template <class F>
  __device__ void take(int number, int i, F&& use) {
    typename Codec::Slice slice;
    read(slice, i);
    use(slice);
    if (i == kSlices - 1 && number + 1 < count_) go_on();
  }
  // take() in two parts: reads slice i of the current stage; frees the stage after all its slices were used.
  __device__ void read(typename Codec::Slice& to, int i) const { ring_.read(to, i); }
  __device__ void go_on() { ring_.go_on(); }

 private:
  __device__ static uint32_t warp() { return threadIdx.x / kWarp; }

  Ring ring_;
  const std::byte* panel_;
  const int count_;
};

// The loader for a codec. In registers, about as many bytes are in flight for every type.
template <class Codec>
struct SlicesOf {
  using Type = RegisterSlices<Codec, sizeof(typename Codec::Slice) <= 32 ? 4 : 2>;
};
template <class Format>
requires(!std::is_same_v<Format, quant::Fp8>) struct SlicesOf<PanelCodec<Format>> {
  using Type = SharedSlices<PanelCodec<Format>>;
};

}  // namespace sluice::cuda::tiles
