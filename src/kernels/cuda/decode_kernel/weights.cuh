// How the persistent decode kernel (decode_kernel/kernel.cuh) multiplies weights: stages of a ring in shared memory,
// the copies that fill them, the layout of the inputs, and the matmul of one stage by one warp group.
//
// A weight type has
//   kSlices         K-slices per stage
//   kBytes          bytes per stage
//   kPaddedSlices   inputs are padded with zeros to a multiple of this many K-slices
//   kByWarpGroup    whether wgmma reads the inputs
//   kExperts        whether experts may have these weights, and matmuls of one or two rows take less time than others
//   kMultiple       quantized types: k is a multiple of this
//   kBiasedExperts  quantized types: whether experts may have biases
//   Source          where a matmul's weights lie, in registers: values behind a pointer would be loaded again for
//                   every stage
//   fill()          issues the copies of a stage; called by one lane
//   bytes()         the size of the inputs
//   store_inputs()  stores four inputs where the matmul reads them; called by whole warps, lane l with the quad after
//                   lane l - 1's
//   Panel<rows>     the sums of a panel of 16 outputs for up to `rows` input rows, held by four warps. Each warp
//     begin()       starts its quarter of stage `index` of the panel, in one of kSets sets of registers. More sets are
//                   more code, and a long loop runs slowly
//     end()         adds the results of a set, after which `pending` others were begun; the stage is then free
//     store_sums()  stores its sums at sums[output * pitch + row]
//
// A stage of row-major weights holds kPieces pieces of 128 bytes of 16 outputs each. Pieces follow one another: first
// one piece of all 16 outputs, then the next. Packs of 16 bytes are swizzled within 128 bytes so that eight rows of a
// column lie in different banks (CU_TENSOR_MAP_SWIZZLE_128B). To a warp group, a stage is a matrix of 64 rows. Each
// piece needs other inputs: all rows are multiplied by the inputs of all pieces, which are the columns of the other
// matrix. Each warp then takes the columns that belong to its piece.
#pragma once

#include <type_traits>

#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/decode_kernel/exchange.cuh"
#include "kernels/cuda/device/fp8.cuh"
#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weight_ring.cuh"

namespace sluice::cuda::persistent {

inline constexpr int kPieces = 4, kPieceBytes = kPanelOutputs * 128;
static_assert(kPieces == kWarpgroupWarps && kPieces * kPanelOutputs == 64);

// The inputs of a matmul in shared memory, at a multiple of 1024.
struct Inputs {
  std::byte* data;
  int rows, slices;
  int row = 0;  // the first row that is multiplied
};

__device__ inline void prefetch_maps(const TensorMaps* maps, bool both) {
  if (maps == nullptr) return;
  prefetch_map(maps->weights_or_keys);
  if (both) prefetch_map(maps->scales_or_values);
}

// Bytes of the input matrices for wgmma. Every `slices_of_matrix` K-slices of a row of x become a matrix of eight rows
// of 128 bytes, whose packs are swizzled like those of the weights.
inline constexpr int kInputMatrix = 1024;
__host__ __device__ constexpr int matrices_bytes(int rows, int slices, int slices_of_matrix) {
  return (slices + slices_of_matrix - 1) / slices_of_matrix * rows * kInputMatrix;
}
__device__ inline std::byte* in_matrix(const Inputs& in, int matrix, int row, int matrix_row, int pack) {
  return in.data + (matrix * in.rows + row) * kInputMatrix + matrix_row * 128 + ((pack ^ matrix_row) & 7) * 16;
}

// Begins d (+)= stage * inputs: the stage is 64 rows of 128 bytes; each row of x has an input matrix.
template <class T, int rows>
__device__ inline void multiply_stage(float (&d)[4 * rows], const std::byte* stage, const Inputs& in, int input_matrix,
                                      int accumulate) {
  const uint64_t a = matrix(shared_address(stage));
  const uint64_t b = matrix(shared_address(in.data) + (input_matrix * in.rows + in.row) * kInputMatrix);
  wgmma_arrive();
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 bytes each
    Wgmma<T, 8 * rows>::from_shared(d, a + 2 * step, b + 2 * step, step == 0 ? accumulate : 1);
  }
  wgmma_commit();
}

__device__ inline int group_warp() { return static_cast<int>(threadIdx.x) / kWarp % kWarpgroupWarps; }

// Plain weights of 16 bits: a piece is one K-slice. The inputs of eight slices, or two stages, form one matrix. All
// stages of a panel that one warp group multiplies belong to the same half of their matrix.
template <class T>
struct PlainWeights {
  static constexpr int kSlices = kPieces, kBytes = kPieces * kPieceBytes, kPaddedSlices = 2 * kPieces;
  static constexpr bool kByWarpGroup = true, kExperts = true;

  struct Source {
    const TensorMaps* maps;
    __device__ explicit Source(const MatmulInstruction& p) : maps(p.maps) {}
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_tma_tile(to, from.maps->weights_or_keys, 0, panel * kPanelOutputs, first, barrier, policy);
  }

  static constexpr int bytes(int rows, int slices) { return matrices_bytes(rows, slices, kPaddedSlices); }

  static __device__ void store_inputs(const Inputs& in, int row, int quad, const float4& v) {
    const int slice = quad / 16;
    std::byte* to = in_matrix(in, slice / kPaddedSlices, row, slice % kPaddedSlices, quad % 16 / 2) + quad % 2 * 8;
    *reinterpret_cast<uint2*>(to) = {pack2<T>(v.x, v.y), pack2<T>(v.z, v.w)};
  }

  template <int rows>
  class Panel {
   public:
    static constexpr int kSets = 2;  // both sets add to the same sums
    template <int set>
    __device__ void begin(const std::byte* stage, int index, const Inputs& in) {
      half_ = index % 2;
      multiply_stage<T, rows>(d_, stage, in, index / 2, 1);
    }
    template <int set, int pending>
    __device__ void end() {
      wgmma_wait<pending>();
      if (pending == 0) wgmma_fence_operands(d_);
    }
    __device__ void store_sums(float* sums, int pitch) const {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, column = half_ * kPieces + group_warp();
      if (lane % 4 != column / 2) return;
#pragma unroll
      for (int i = 0; i < 2 * rows; ++i) {
        sums[(lane / 4 + i % 2 * 8) * pitch + i / 2] = column % 2 == 0 ? d_[2 * i] : d_[2 * i + 1];
      }
    }

   private:
    float d_[4 * rows] = {};
    int half_ = 0;
  };
};

// 8-bit floats and int4 have one scale per 128 inputs, and so have their inputs. Inputs take the form for which a
// weight becomes an operand in the fewest instructions.
inline constexpr int kScaled = 128, kSlicesOfScaled = kScaled / kPanelSlice, kQuadsOfScaled = kScaled / 4;
static_assert(kQuadsOfScaled == kWarp);

// The largest magnitude of a warp's quads, as bits. The bits of a NaN are above all others.
__device__ inline uint32_t largest_bits(const float4& v) {
  const auto bits = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
  return __reduce_max_sync(kFullWarp, max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w))));
}
inline constexpr uint32_t kInfinityBits = 0x7f800000u, kNanBits = 0x7fffffffu;

template <class Format>
struct QuantizedWeights;

// Rows of 8-bit floats: a piece is two K-slices and has one scale per output. The scales follow the pieces, [outputs,
// kPieces]. Inputs are two planes of 8-bit floats; the second holds the rounding error of the first. Together they have
// eight significant bits, like bf16. In the first plane the largest of 128 inputs lies in [2^7, 2^8). The inputs of a
// stage form a matrix in which row 2 i is the first plane of piece i.
template <>
struct QuantizedWeights<quant::Fp8> {
  static constexpr int kSlices = kPieces * kSlicesOfScaled, kPaddedSlices = kSlices;
  static constexpr int kWeights = kPieces * kPieceBytes;
  static constexpr int kBytes = kWeights + kPieces * kPanelOutputs * static_cast<int>(sizeof(float));
  static constexpr bool kByWarpGroup = true, kExperts = true, kBiasedExperts = false;
  static constexpr int kMultiple = kScaled;
  static constexpr float kBelow = 32.0f;  // the second plane is stored multiplied by this
  static_assert(quant::Fp8::kElements == kScaled);

  struct Source {
    const TensorMaps* maps;
    __device__ explicit Source(const MatmulInstruction& p) : maps(p.maps) {}
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_tma_tile(to, from.maps->weights_or_keys, 0, panel * kPanelOutputs, first / kSlicesOfScaled, barrier, policy);
    copy_tma_tile(to + kWeights, from.maps->scales_or_values, first / kSlicesOfScaled, panel * kPanelOutputs, barrier,
                  policy);
  }

  static constexpr int bytes(int rows, int slices) {
    return matrices_bytes(rows, slices, kSlices) +
           (slices + kSlices - 1) / kSlices * kPieces * kMostDecodeKernelRows * static_cast<int>(sizeof(float));
  }

  static __device__ void store_inputs(const Inputs& in, int row, int quad, const float4& v) {
    const Fp8Scale power = fp8_power(__uint_as_float(largest_bits(v)));
    const float up = power.inverse;
    const uint32_t first = pack_fp8(v, up);
    const float2 low = unpack2<__half>(widen_fp8(first)), high = unpack2<__half>(widen_fp8(first >> 16));
    const float4 rest = {fmaf(v.x, up, -low.x), fmaf(v.y, up, -low.y), fmaf(v.z, up, -high.x), fmaf(v.w, up, -high.y)};
    const uint32_t second = pack_fp8(rest, kBelow);
    const int piece = quad / kQuadsOfScaled, matrix = piece / kPieces, matrix_row = piece % kPieces * 2;
    const int pack = quad % kQuadsOfScaled / 4, at = quad % 4 * 4;
    *reinterpret_cast<uint32_t*>(in_matrix(in, matrix, row, matrix_row, pack) + at) = first;
    *reinterpret_cast<uint32_t*>(in_matrix(in, matrix, row, matrix_row + 1, pack) + at) = second;
    if (quad % kQuadsOfScaled == 0) scales_of(in)[piece * kMostDecodeKernelRows + row] = power.scale;
  }

  template <int rows>
  class Panel {
   public:
    static constexpr int kSets = 2;
    template <int set>
    __device__ void begin(const std::byte* stage, int index, const Inputs& in) {
      multiply_stage<__nv_fp8_e4m3, rows>(d_[set], stage, in, index, 0);
      const int piece = group_warp();
      const float* scales = reinterpret_cast<const float*>(stage + kWeights) + lane() / 4 * kPieces + piece;
      const float* of_x = scales_of(in) + (index * kPieces + piece) * kMostDecodeKernelRows + in.row;
#pragma unroll
      for (int i = 0; i < 2; ++i) scales_[set][i] = scales[i * 8 * kPieces];
#pragma unroll
      for (int row = 0; row < rows; ++row) of_x_[set][row] = of_x[row];
    }
    template <int set, int pending>
    __device__ void end() {
      wgmma_wait<pending>();
      wgmma_fence_operands(d_[set]);
#pragma unroll
      for (int i = 0; i < 2 * rows; ++i) {
        const float dot = fmaf(d_[set][2 * i + 1], 1.0f / kBelow, d_[set][2 * i]);
        sums_[i] = fmaf(scales_[set][i % 2] * of_x_[set][i / 2], dot, sums_[i]);
      }
    }
    // The other lanes hold results of a piece with another piece's inputs.
    __device__ void store_sums(float* sums, int pitch) const {
      if (lane() % 4 != group_warp()) return;
#pragma unroll
      for (int i = 0; i < 2 * rows; ++i) sums[(lane() / 4 + i % 2 * 8) * pitch + i / 2] = sums_[i];
    }

   private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
    float d_[kSets][4 * rows], scales_[kSets][2], of_x_[kSets][rows];
    float sums_[2 * rows] = {};
  };

 private:
  static __device__ float* scales_of(const Inputs& in) {
    return reinterpret_cast<float*>(in.data + matrices_bytes(in.rows, in.slices, kSlices));
  }
};

// Packed panels of int4 in groups of 128 (panel_layout.h). Weights become bytes, two instructions for eight of them.
// Inputs become 14-bit integers in two planes of int8: 128 high + low. Row i of the inputs is columns 2 i and 2 i + 1
// of the matmul, whose sums are exact. In each byte the low nibble is a weight of output g. The high nibble is a weight
// of output g + 8, which is not shifted and so counts sixteen times.
template <>
struct QuantizedWeights<quant::Int4G128> {
  static constexpr PanelLayout kLayout = panel_layout<quant::Int4G128>();
  static constexpr int kSlices = 16, kPaddedSlices = kSlicesOfScaled, kQuarter = kSlices / kWarpgroupWarps;
  static constexpr bool kByWarpGroup = false, kExperts = false, kBiasedExperts = false;
  static constexpr int kMultiple = kScaled;
  static constexpr int kSliceBytes = static_cast<int>(kLayout.slice_bytes());
  static constexpr int kScaleBytes = kLayout.scale_words * kPairsOfRows * 4;
  static constexpr int kScalesAt = kSlices * kSliceBytes;
  static constexpr int kBytes = kScalesAt + kSlices / kSlicesOfScaled * kScaleBytes;
  static constexpr uint32_t kBits = 12;  // the largest of 128 inputs lies in (2^12, 2^13)
  static_assert(kLayout.low == 4 && kLayout.high == 0 && kLayout.super_scale_words == 0);
  static_assert(kLayout.scale_words == 2 && kLayout.scale_slices == kSlicesOfScaled);

  struct Source {
    const std::byte* panels;
    int64_t pitch, scales_at;
    int slices;
    __device__ explicit Source(const MatmulInstruction& p) : panels(p.panels), pitch(p.pitch), slices(p.slices) {
      constexpr PanelLayout layout = kLayout;
      scales_at = layout.scales_at(slices);
    }
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    const int slices = min(kSlices, from.slices - first), scales = slices / kSlicesOfScaled * kScaleBytes;
    const std::byte* begin = from.panels + panel * from.pitch;
    expect_bytes(barrier, slices * kSliceBytes + scales);
    copy_bulk(to, begin + first * kSliceBytes, slices * kSliceBytes, barrier, policy);
    copy_bulk(to + kScalesAt, begin + from.scales_at + first / kSlicesOfScaled * kScaleBytes, scales, barrier, policy);
  }

  struct Scaled {  // the scale and the sum of 128 inputs of a row
    float scale;
    int sum;
  };
  static __device__ Scaled* scaled_of(const Inputs& in) {
    return reinterpret_cast<Scaled*>(in.data + 2 * in.rows * pitch(in.slices));
  }

  // Bytes from one plane to the next. The number of K-slices is even, so planes begin in different banks.
  static constexpr __host__ __device__ int pitch(int slices) { return slices * kPanelSlice + 64; }
  static constexpr int bytes(int rows, int slices) {
    return 2 * rows * pitch(slices) +
           slices / kSlicesOfScaled * kMostDecodeKernelRows * static_cast<int>(sizeof(Scaled));
  }

  // Lane t's quads of the steps of a K-slice lie side by side. In a quad, inputs 0 and 2 come before 1 and 3, as the
  // nibbles do.
  static __device__ void store_inputs(const Inputs& in, int row, int quad, const float4& v) {
    const uint32_t largest = largest_bits(v), exponent = largest & kInfinityBits;
    const bool any = exponent > kBits << 23;
    const float up = any ? __uint_as_float(((254 + kBits) << 23) - exponent) : 0.0f;
    const auto whole = [&](float x) { return __float_as_int(fmaf(x, up, 0x1.8p23f)) - 0x4b400000; };
    const int q[4] = {whole(v.x), whole(v.z), whole(v.y), whole(v.w)};
    const auto bytes = [&](int shift) {
      return __byte_perm(__byte_perm(q[0] >> shift, q[1] >> shift, 0x0040),
                         __byte_perm(q[2] >> shift, q[3] >> shift, 0x0040), 0x5410);
    };
    std::byte* to = in.data + 2 * row * pitch(in.slices) + quad / 16 * kPanelSlice + quad % 4 * 16 + quad / 4 % 4 * 4;
    *reinterpret_cast<uint32_t*>(to) = bytes(7);
    *reinterpret_cast<uint32_t*>(to + pitch(in.slices)) = bytes(0) & 0x7f7f7f7fu;
    const int sum = __reduce_add_sync(kFullWarp, q[0] + q[1] + q[2] + q[3]);
    if (quad % kQuadsOfScaled == 0) {
      const uint32_t scale = largest < kInfinityBits ? (any ? exponent - (kBits << 23) : 0) : kNanBits;
      scaled_of(in)[quad / kQuadsOfScaled * kMostDecodeKernelRows + row] = {__uint_as_float(scale), sum};
    }
  }

  template <int rows>
  class Panel {
   public:
    static constexpr int kSets = 1;
    template <int set>
    __device__ void begin(const std::byte* stage, int index, const Inputs& in) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, begin = group_warp() * kQuarter;
      const int first = index * kSlices + begin, x_row = min(lane / 4, 2 * in.rows - 1);
      const std::byte* weights = stage + begin * kSliceBytes + lane * 16;
      const std::byte* scales = stage + kScalesAt + begin / kSlicesOfScaled * kScaleBytes + lane / 4 * 8;
      const std::byte* x = in.data + x_row * pitch(in.slices) + first * kPanelSlice + lane % 4 * 16;
      const Scaled* scaled =
          scaled_of(in) + first / kSlicesOfScaled * kMostDecodeKernelRows + min(lane % 4, in.rows - 1);
      Set& s = set_;
#pragma unroll
      for (int i = 0; i < kQuarter; ++i) {
        s.a[i] = *reinterpret_cast<const uint4*>(weights + i * kSliceBytes);
        s.b[i] = *reinterpret_cast<const uint4*>(x + i * kPanelSlice);
      }
      const int groups = (in.slices - first) / kSlicesOfScaled;  // groups beyond these are multiplied by zero
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const bool is_one = c < groups;
        s.of_x[c] = is_one ? scaled[c * kMostDecodeKernelRows] : Scaled{0.0f, 0};
        s.of_w[c] = is_one ? *reinterpret_cast<const uint2*>(scales + c * kScaleBytes) : uint2{0, 0};
      }
    }
    template <int set, int pending>
    __device__ void end() {
      constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;
      const Set& s = set_;
      int part[kCount][4] = {};
#pragma unroll
      for (int i = 0; i < kSlicesOfScaled; ++i) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          const uint4 &w = s.a[c * kSlicesOfScaled + i], &y = s.b[c * kSlicesOfScaled + i];
          mma_int8(part[c], w.x & kLow, w.x & kHigh, w.y & kLow, w.y & kHigh, y.x, y.y);
        }
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          const uint4 &w = s.a[c * kSlicesOfScaled + i], &y = s.b[c * kSlicesOfScaled + i];
          mma_int8(part[c], w.z & kLow, w.z & kHigh, w.w & kLow, w.w & kHigh, y.z, y.w);
        }
      }
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t word = r == 0 ? s.of_w[c].x : s.of_w[c].y;
          const int zero = static_cast<int>(word & quant::Int4G128::kZeroBits) << (r == 0 ? 0 : 4);
          const int sum = part[c][2 * r] * 128 + part[c][2 * r + 1] - zero * s.of_x[c].sum;
          const float scale = __uint_as_float(word & ~quant::Int4G128::kZeroBits) * s.of_x[c].scale;
          sums_[r] = fmaf(r == 0 ? scale : scale * 0.0625f, static_cast<float>(sum), sums_[r]);
        }
      }
    }
    __device__ void store_sums(float* sums, int sums_pitch) const {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % 4;
      if (row >= rows) return;
      sums[lane / 4 * sums_pitch + row] = sums_[0];
      sums[(lane / 4 + 8) * sums_pitch + row] = sums_[1];
    }

   private:
    static constexpr int kCount = kQuarter / kSlicesOfScaled;
    struct Set {
      uint4 a[kQuarter], b[kQuarter];
      Scaled of_x[kCount];
      uint2 of_w[kCount];
    };

    Set set_;
    float sums_[2] = {0.0f, 0.0f};
  };
};

struct NoWeights {  // stands for "no quantized type"
  static constexpr bool kExperts = false, kBiasedExperts = false;
};

// Whether the kernel of this type, and of plain weights, executes experts. Their code takes registers, so a kernel
// whose quantized experts are launches has none.
template <class Quantized>
inline constexpr bool kExecutesExperts = std::is_same_v<Quantized, NoWeights> || Quantized::kExperts;

template <class Format>
struct WeightsOf {
  using Type = QuantizedWeights<Format>;
};
template <>
struct WeightsOf<void> {
  using Type = NoWeights;
};

}  // namespace sluice::cuda::persistent
