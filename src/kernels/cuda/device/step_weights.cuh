// How a program (step_kernel.cuh) multiplies weights: stages of a ring in shared memory, the copies that fill them, the
// inputs beside them, and the product of a stage, which is one warp's.
//
// A type of weights has
//   kLines      of a stage
//   kBytes      of a stage
//   Source      where a product's weights lie, in registers: what is behind a pointer would be read again for every
//   stage fill()      the copies of a stage, by one lane bytes()     of the inputs leave()     four inputs to where
//   multiply() looks for them, by whole warps: lane l has a quad behind lane l - 1's multiply()  adds the products of
//   `lines` lines of a stage, which is the row's from line `first` on, to sums place()     which output and row of
//   inputs sums[i] of a lane is of; there may be no such row
//
// Of rows, a stage holds kPieces pieces of 128 bytes of 16 outputs each, a piece of all outputs after the other, packs
// of 16 bytes exchanged within 128 so that eight rows of a column lie in different banks (CU_TENSOR_MAP_SWIZZLE_128B).
#pragma once

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

inline constexpr int kPieces = 4, kPieceBytes = kPanelOutputs * 128;

// The inputs of a product in shared memory.
struct Inputs {
  std::byte* data;
  int rows, lines;
};

__device__ inline void prefetch_maps(const StepProduct& p) {
  if (p.maps == nullptr) return;
  asm volatile("prefetch.tensormap [%0];" ::"l"(&p.maps->rows) : "memory");
  if (p.quantized) asm volatile("prefetch.tensormap [%0];" ::"l"(&p.maps->scales) : "memory");
}

struct SumPlace {
  int output, row;
};

// Rows of 16-bit elements, from one to the next in bytes: off each other's banks.
__host__ __device__ constexpr int half_pitch(int lines) { return lines * kPanelLine * 2 + 64; }

// Where the a operands of two steps of 16 bytes of each row begin, as ldmatrix asks for them: lane l names row l % 16
// of pack l / 16; packs 2 i and 2 i + 1 lie at from ^ 32 i.
struct PackAddress {
  uint32_t from;
  __device__ PackAddress(const std::byte* stage, int lane)
      : from(shared_address(stage) + lane % 16 * 128 + ((lane / 16 ^ lane) & 7) * 16) {}
  __device__ uint32_t operator()(int piece, int pair) const { return (from + piece * kPieceBytes) ^ 32 * pair; }
};

__device__ inline SumPlace place_of_mma(int i, int lane) { return {i / 2 * 8 + lane / 4, lane % 4 * 2 + i % 2}; }

// Plain weights of 16 bits: a piece is a line.
template <class T>
struct PlainWeights {
  static constexpr int kLines = kPieces, kBytes = kPieces * kPieceBytes;

  struct Source {
    const WeightMaps* maps;
    __device__ explicit Source(const StepProduct& p) : maps(p.maps) {}
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_box(to, from.maps->rows, 0, panel * kPanelOutputs, first, barrier, policy);
  }

  static constexpr int bytes(int rows, int lines) { return rows * half_pitch(lines); }

  // A step of 16 inputs is 8 bytes of each of four lanes, lane t's 2t, 2t + 1 and 2t + 8, 2t + 9; two steps are a pack.
  static __device__ void leave(const Inputs& in, int row, int quad, const float4& v) {
    const int step = quad / 4 % 4, pair = quad % 4 * 2;
    std::byte* to = in.data + row * half_pitch(in.lines) + quad / 16 * (kPanelLine * 2) + step / 2 * 64 +
                    pair % 4 * 16 + step % 2 * 8 + pair / 4 * 4;
    *reinterpret_cast<uint32_t*>(to) = pack2<T>(v.x, v.y);
    *reinterpret_cast<uint32_t*>(to + 16) = pack2<T>(v.z, v.w);
  }

  static __device__ void multiply(float (&sums)[4], const std::byte* stage, int first, int lines, const Inputs& in,
                                  int lane) {
    const PackAddress a(stage, lane);
    const std::byte* x =
        in.data + min(lane / 4, in.rows - 1) * half_pitch(in.lines) + first * (kPanelLine * 2) + lane % 4 * 16;
    float part[kLines][4];
    if (lines == kLines) {
#pragma unroll
      for (int line = 0; line < kLines; ++line) multiply_line(part[line], a, x, line);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += part[0][i] + part[1][i] + (part[2][i] + part[3][i]);
    } else {
#pragma unroll 1
      for (int line = 0; line < lines; ++line) {
        multiply_line(part[0], a, x, line);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] += part[0][i];
      }
    }
  }

  static __device__ SumPlace place(int i, int lane) { return place_of_mma(i, lane); }

 private:
  static __device__ void multiply_line(float (&sums)[4], const PackAddress& a, const std::byte* x, int line) {
    uint32_t weights[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) ldmatrix4(weights[step], a(line, step));
    uint4 b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) b[i] = *reinterpret_cast<const uint4*>(x + line * (kPanelLine * 2) + i * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t(&w)[4] = weights[2 * i], (&v)[4] = weights[2 * i + 1];
      mma<T>(sums, w[0], w[1], w[2], w[3], b[i].x, b[i].y);
      mma<T>(sums, v[0], v[1], v[2], v[3], b[i].z, b[i].w);
    }
  }
};

// Quantized weights have scales for 128 inputs, and so have their inputs, which take the form that makes a weight an
// operand with the fewest instructions.
inline constexpr int kScaled = 128, kLinesOfScaled = kScaled / kPanelLine, kQuadsOfScaled = kScaled / 4;
static_assert(kQuadsOfScaled == kWarp);

// The largest magnitude of a warp's quads, as bits: those of a NaN are above all others.
__device__ inline uint32_t largest_bits(const float4& v) {
  const auto bits = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
  return __reduce_max_sync(kFullWarp, max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w))));
}
inline constexpr uint32_t kInfinityBits = 0x7f800000u, kNanBits = 0x7fffffffu;

template <class Format>
struct QuantizedWeights;

// Rows of 8-bit floats: a piece is two lines and has one scale for each output. The scales follow the pieces,
// [outputs, kPieces]. Weights become fp16, which one instruction does for two of them, and inputs are fp16 times the
// power of two below the largest.
template <>
struct QuantizedWeights<quant::Fp8> {
  static constexpr int kLines = kPieces * kLinesOfScaled;
  static constexpr int kWeights = kPieces * kPieceBytes;
  static constexpr int kBytes = kWeights + kPieces * kPanelOutputs * static_cast<int>(sizeof(float));
  static_assert(quant::Fp8::kElements == kScaled);

  struct Source {
    const WeightMaps* maps;
    __device__ explicit Source(const StepProduct& p) : maps(p.maps) {}
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_box(to, from.maps->rows, 0, panel * kPanelOutputs, first / kLinesOfScaled, barrier, policy);
    copy_box(to + kWeights, from.maps->scales, first / kLinesOfScaled, panel * kPanelOutputs, barrier, policy);
  }

  static constexpr int bytes(int rows, int lines) {
    return rows * half_pitch(lines) + lines / kLinesOfScaled * kMostStepRows * static_cast<int>(sizeof(float));
  }

  // A step of 16 inputs is 8 bytes of each of four lanes, lane t's 4t .. 4t + 3; two steps are a pack.
  static __device__ void leave(const Inputs& in, int row, int quad, const float4& v) {
    const uint32_t largest = largest_bits(v), exponent = largest & kInfinityBits;
    const float up = __uint_as_float((254u << 23) - exponent);  // of one over a power of two
    const float scale = __uint_as_float(largest < kInfinityBits ? exponent : kNanBits);
    const int step = quad / 4 % 4;
    std::byte* to = in.data + row * half_pitch(in.lines) + quad / 16 * (kPanelLine * 2) + step / 2 * 64 +
                    quad % 4 * 16 + step % 2 * 8;
    *reinterpret_cast<uint2*>(to) = {pack2<__half>(v.x * up, v.y * up), pack2<__half>(v.z * up, v.w * up)};
    if (quad % kQuadsOfScaled == 0) scales_of(in)[quad / kQuadsOfScaled * kMostStepRows + row] = scale;
  }

  static __device__ void multiply(float (&sums)[4], const std::byte* stage, int first, int lines, const Inputs& in,
                                  int lane) {
    const PackAddress a(stage, lane);
    const std::byte* x =
        in.data + min(lane / 4, in.rows - 1) * half_pitch(in.lines) + first * (kPanelLine * 2) + lane % 4 * 16;
    // Columns beyond the rows are multiplied by whatever there is.
    const float* x_scales = scales_of(in) + first / kLinesOfScaled * kMostStepRows + lane % 2 * 2;
    const float* scales = reinterpret_cast<const float*>(stage + kWeights) + lane / 4 * kPieces;
#pragma unroll 2
    for (int piece = 0; piece < lines / kLinesOfScaled; ++piece) {
      uint32_t words[kLinesOfScaled][2][4];
      uint4 b[kLinesOfScaled][2];
      float part[kLinesOfScaled][4] = {};
#pragma unroll
      for (int line = 0; line < kLinesOfScaled; ++line) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ldmatrix4(words[line][i], a(piece, line * 2 + i));
          b[line][i] = *reinterpret_cast<const uint4*>(x + (piece * kLinesOfScaled + line) * (kPanelLine * 2) + i * 64);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int line = 0; line < kLinesOfScaled; ++line) {
          const uint32_t(&w)[4] = words[line][i];
          const uint4& y = b[line][i];
          mma<__half>(part[line], widen_fp8(w[0]), widen_fp8(w[1]), widen_fp8(w[0] >> 16), widen_fp8(w[1] >> 16), y.x,
                      y.y);
          mma<__half>(part[line], widen_fp8(w[2]), widen_fp8(w[3]), widen_fp8(w[2] >> 16), widen_fp8(w[3] >> 16), y.z,
                      y.w);
        }
      }
      const float2 of_x = *reinterpret_cast<const float2*>(x_scales + piece * kMostStepRows);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = scales[r * kPairsOfRows * kPieces + piece];
        sums[2 * r] = fmaf(scale * of_x.x, part[0][2 * r] + part[1][2 * r], sums[2 * r]);
        sums[2 * r + 1] = fmaf(scale * of_x.y, part[0][2 * r + 1] + part[1][2 * r + 1], sums[2 * r + 1]);
      }
    }
  }

  static __device__ SumPlace place(int i, int lane) { return place_of_mma(i, lane); }

 private:
  static __device__ float* scales_of(const Inputs& in) {
    return reinterpret_cast<float*>(in.data + in.rows * half_pitch(in.lines));
  }
};

// Panels of int4 in groups of 128 (panels.h). Weights become bytes, three instructions for eight of them, and inputs
// integers of 14 bits in two planes of int8: 128 high + low. Row i of the inputs is columns 2 i and 2 i + 1 of the
// product, whose sums are exact.
template <>
struct QuantizedWeights<quant::Int4G128> {
  static constexpr PanelLayout kLayout = panel_layout<quant::Int4G128>();
  static constexpr int kLines = 16;
  static constexpr int kLineBytes = static_cast<int>(kLayout.line_bytes());
  static constexpr int kScaleBytes = kLayout.scale_words * kPairsOfRows * 4;
  static constexpr int kScalesAt = kLines * kLineBytes;
  static constexpr int kBytes = kScalesAt + kLines / kLinesOfScaled * kScaleBytes;
  static constexpr uint32_t kBits = 12;  // the largest input of 128 is above 2^12, below 2^13
  static_assert(kLayout.low == 4 && kLayout.high == 0 && kLayout.super_words == 0);
  static_assert(kLayout.scale_words == 2 && kLayout.scale_lines == kLinesOfScaled);

  struct Source {
    const std::byte* panels;
    int64_t pitch, scales_at;
    int lines;
    __device__ explicit Source(const StepProduct& p) : panels(p.panels), pitch(p.pitch), lines(p.lines) {
      constexpr PanelLayout layout = kLayout;
      scales_at = layout.scales_at(lines);
    }
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    const int lines = min(kLines, from.lines - first), scales = lines / kLinesOfScaled * kScaleBytes;
    const std::byte* begin = from.panels + panel * from.pitch;
    expect_bytes(barrier, lines * kLineBytes + scales);
    copy_bulk(to, begin + first * kLineBytes, lines * kLineBytes, barrier, policy);
    copy_bulk(to + kScalesAt, begin + from.scales_at + first / kLinesOfScaled * kScaleBytes, scales, barrier, policy);
  }

  // Of a plane, from one to the next. Lines are even, so that planes lie off each other's banks.
  static constexpr __host__ __device__ int pitch(int lines) { return lines * kPanelLine + 64; }
  static constexpr int bytes(int rows, int lines) {
    return 2 * rows * pitch(lines) + lines / kLinesOfScaled * kMostStepRows * static_cast<int>(sizeof(Scaled));
  }

  // Lane t's fours of a line's steps lie side by side, first and third before second and fourth, as nibbles do.
  static __device__ void leave(const Inputs& in, int row, int quad, const float4& v) {
    const uint32_t largest = largest_bits(v), exponent = largest & kInfinityBits;
    const bool any = exponent > kBits << 23;
    const float up = any ? __uint_as_float(((254 + kBits) << 23) - exponent) : 0.0f;
    const auto whole = [&](float x) { return __float_as_int(fmaf(x, up, 0x1.8p23f)) - 0x4b400000; };
    const int q[4] = {whole(v.x), whole(v.z), whole(v.y), whole(v.w)};
    const auto bytes = [&](int shift) {
      return __byte_perm(__byte_perm(q[0] >> shift, q[1] >> shift, 0x0040),
                         __byte_perm(q[2] >> shift, q[3] >> shift, 0x0040), 0x5410);
    };
    std::byte* to = in.data + 2 * row * pitch(in.lines) + quad / 16 * kPanelLine + quad % 4 * 16 + quad / 4 % 4 * 4;
    *reinterpret_cast<uint32_t*>(to) = bytes(7);
    *reinterpret_cast<uint32_t*>(to + pitch(in.lines)) = bytes(0) & 0x7f7f7f7fu;
    const int sum = __reduce_add_sync(kFullWarp, q[0] + q[1] + q[2] + q[3]);
    if (quad % kQuadsOfScaled == 0) {
      const uint32_t scale = largest < kInfinityBits ? (any ? exponent - (kBits << 23) : 0) : kNanBits;
      scaled_of(in)[quad / kQuadsOfScaled * kMostStepRows + row] = {__uint_as_float(scale), sum};
    }
  }

  static __device__ void multiply(float (&sums)[4], const std::byte* stage, int first, int lines, const Inputs& in,
                                  int lane) {
    constexpr uint32_t kNibbles = 0x0f0f0f0fu;
    const std::byte *weights = stage + lane * 16, *scales = stage + kScalesAt + lane / 4 * 8;
    const std::byte* x =
        in.data + min(lane / 4, 2 * in.rows - 1) * pitch(in.lines) + first * kPanelLine + lane % 4 * 16;
    const Scaled* scaled = scaled_of(in) + first / kLinesOfScaled * kMostStepRows + min(lane % 4, in.rows - 1);
#pragma unroll 4
    for (int line = 0; line < lines; line += kLinesOfScaled) {
      int part[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kLinesOfScaled; ++i) {
        const uint4 a = *reinterpret_cast<const uint4*>(weights + (line + i) * kLineBytes);
        const uint4 b = *reinterpret_cast<const uint4*>(x + (line + i) * kPanelLine);
        mma_int8(part, a.x & kNibbles, a.x >> 4 & kNibbles, a.y & kNibbles, a.y >> 4 & kNibbles, b.x, b.y);
        mma_int8(part, a.z & kNibbles, a.z >> 4 & kNibbles, a.w & kNibbles, a.w >> 4 & kNibbles, b.z, b.w);
      }
      const Scaled of_x = scaled[line / kLinesOfScaled * kMostStepRows];
      const uint2 of_w = *reinterpret_cast<const uint2*>(scales + line / kLinesOfScaled * kScaleBytes);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t word = r == 0 ? of_w.x : of_w.y;
        const int zero = static_cast<int>(word & quant::Int4G128::kZeroBits);
        const int sum = part[2 * r] * 128 + part[2 * r + 1] - zero * of_x.sum;
        const float scale = __uint_as_float(word & ~quant::Int4G128::kZeroBits) * of_x.scale;
        sums[r] = fmaf(scale, static_cast<float>(sum), sums[r]);
      }
    }
  }

  static __device__ SumPlace place(int i, int lane) {
    return i < 2 ? SumPlace{i * 8 + lane / 4, lane % 4} : SumPlace{0, kMostStepRows};
  }

 private:
  struct Scaled {  // of 128 inputs of a row
    float scale;
    int sum;
  };
  static __device__ Scaled* scaled_of(const Inputs& in) {
    return reinterpret_cast<Scaled*>(in.data + 2 * in.rows * pitch(in.lines));
  }
};

struct NoWeights {};  // of the kernel without a quantized type

template <class Format>
struct WeightsOf {
  using Type = QuantizedWeights<Format>;
};
template <>
struct WeightsOf<void> {
  using Type = NoWeights;
};

}  // namespace sluice::cuda::step
