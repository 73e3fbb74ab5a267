// How a program (step_kernel.cuh) multiplies weights: stages of a ring in shared memory, what copies fill them, and the
// products of a stage's lines.
#pragma once

#include "kernels/cuda/device/panel_codec.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/weight_ring.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

// From a row of inputs in shared memory to the next one, in bytes.
__host__ __device__ constexpr int input_pitch(int lines) { return lines * kPanelLine * 2 + 64; }

// sums += lines of quantized weights times inputs, whose sums by scale are `x_sums`; both are those of the first line.
template <class Weights, int lines>
__device__ void multiply_lines(float (&sums)[4], const typename Weights::Codec::Line (&weights)[lines],
                               const std::byte* x, const float* x_sums, int lane);

// Where a codec's steps look for four inputs, in bytes.
template <class Codec>
__device__ inline int panel_place(int quad) {
  const int slot = Codec::slot(quad % 16);
  return quad / 16 * (kPanelLine * 2) + slot / 8 * 64 + slot % 4 * 16 + slot / 4 % 2 * 8;
}

// How the weights of one type come into a stage, and out of it:
//   kLines      of a stage
//   kBytes      of a stage
//   fill()      the copies of a stage, by one lane
//   place()     where four inputs belong in a line of inputs, in bytes
//   Multiplier  of a lane and a stage: adds the products of lines to sums
//   kTogether   lines that a warp multiplies side by side
//
// Of rows, a stage holds kPieces pieces of 128 bytes of 16 outputs each, a piece of all outputs after the other, packs
// of 16 bytes exchanged within 128 so that eight rows of a column lie in different banks (CU_TENSOR_MAP_SWIZZLE_128B).
inline constexpr int kPieces = 8, kPieceBytes = kPanelOutputs * 128;

__device__ inline int pack_at(int row, int pack) { return row * 128 + ((pack ^ row) & 7) * 16; }

// Plain weights of 16 bits: a piece is a line.
template <class T>
struct PlainWeights {
  static constexpr int kLines = kPieces, kBytes = kPieces * kPieceBytes, kTogether = 1;
  static constexpr int kFold = kPanelLine;
  static constexpr bool kShifted = false;
  using Input = T;

  static __device__ void fill(const StepProduct& p, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_box(to, p.maps->rows, 0, panel * kPanelOutputs, first, barrier, policy);
  }

  static __device__ int place(int quad) { return quad * 8; }

  struct Multiplier {
    const std::byte *low, *high;
    int first, second;
    __device__ Multiplier(const std::byte* stage, int lane)
        : low(stage),
          high(stage + kPairsOfRows * 128),
          first(pack_at(lane / 4, lane % 4)),
          second(pack_at(lane / 4, lane % 4 + 4)) {}
    // x: this lane's row of inputs, from the stage's first line on
    template <int lines>
    __device__ void multiply(float (&sums)[4], int line, const std::byte* x, const float*, int) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = line * kPieceBytes + (half == 0 ? first : second);
        const uint4 a = *reinterpret_cast<const uint4*>(low + at), c = *reinterpret_cast<const uint4*>(high + at);
        const uint4 b = *reinterpret_cast<const uint4*>(x + line * (kPanelLine * 2) + half * 64);
        mma<T>(sums, a.x, c.x, a.y, c.y, b.x, b.y);
        mma<T>(sums, a.z, c.z, a.w, c.w, b.z, b.w);
      }
    }
  };
};

// Quantized weights as PanelCodec reads them.
template <class Format>
struct QuantizedWeights {
  using Codec = PanelCodec<Format>;
  static constexpr PanelLayout kLayout = panel_layout<Format>();
  static constexpr int kLines = static_cast<int>((16 << 10) / kLayout.line_bytes()) / kLinesOfSuper * kLinesOfSuper;
  static constexpr int kBytes = static_cast<int>(kLayout.panel_bytes(kLines * kPanelLine));
  static constexpr int kFold = Codec::kFold, kTogether = kLines / kStepWarps < 4 ? kLines / kStepWarps : 4;
  static constexpr bool kShifted = Codec::kShifted;
  using Input = __nv_bfloat16;
  static_assert(kLines % kLayout.scale_lines == 0);

  static __device__ void fill(const StepProduct& p, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    constexpr PanelLayout layout = panel_layout<Format>();
    constexpr int kLineBytes = static_cast<int>(layout.line_bytes());
    constexpr int kScaleBytes = layout.scale_words * kPairsOfRows * 4,
                  kSuperBytes = layout.super_words * kPairsOfRows * 4;
    constexpr int kScalesAt = static_cast<int>(layout.scales_at(kLines)),
                  kSupersAt = static_cast<int>(layout.supers_at(kLines)), kScaleLines = layout.scale_lines;
    const int lines = min(kLines, p.lines - first);
    const int scales = (lines + kScaleLines - 1) / kScaleLines;
    const int supers = kSuperBytes == 0 ? 0 : (lines + kLinesOfSuper - 1) / kLinesOfSuper;
    const std::byte* from = p.panels + panel * p.pitch;
    expect_bytes(barrier, lines * kLineBytes + scales * kScaleBytes + supers * kSuperBytes);
    copy_bulk(to, from + int64_t{first} * kLineBytes, lines * kLineBytes, barrier, policy);
    copy_bulk(to + kScalesAt, from + layout.scales_at(p.lines) + int64_t{first / kScaleLines} * kScaleBytes,
              scales * kScaleBytes, barrier, policy);
    if (supers > 0) {
      copy_bulk(to + kSupersAt, from + layout.supers_at(p.lines) + int64_t{first / kLinesOfSuper} * kSuperBytes,
                supers * kSuperBytes, barrier, policy);
    }
  }

  static __device__ int place(int quad) { return panel_place<Codec>(quad); }

  struct Multiplier {
    const Codec codec;
    __device__ Multiplier(const std::byte* stage, int lane) : codec(stage, kLines * kPanelLine, lane) {}
    template <int lines>
    __device__ void multiply(float (&sums)[4], int line, const std::byte* x, const float* x_sums, int lane) const {
      typename Codec::Line weights[lines];
#pragma unroll
      for (int i = 0; i < lines; ++i) codec.template load<FromShared>(weights[i], 0, line + i);
      multiply_lines<QuantizedWeights, lines>(sums, weights, x + line * (kPanelLine * 2),
                                              x_sums + line * (kPanelLine / kFold) * kMostStepRows, lane);
    }
  };
};

// Rows of 8-bit floats: a piece is two lines and has one scale for each output. The scales follow the pieces,
// [outputs, kPieces].
template <>
struct QuantizedWeights<quant::Fp8> {
  using Codec = PanelCodec<quant::Fp8>;
  static constexpr int kLinesOfPiece = 128 / kPanelLine, kLines = kPieces * kLinesOfPiece;
  static constexpr int kWeights = kPieces * kPieceBytes;
  static constexpr int kBytes = kWeights + kPieces * kPanelOutputs * static_cast<int>(sizeof(float));
  static constexpr int kFold = Codec::kFold, kTogether = kLines / kStepWarps < 4 ? kLines / kStepWarps : 4;
  static constexpr bool kShifted = Codec::kShifted;
  using Input = __nv_bfloat16;
  static_assert(quant::Fp8::kElements == 128);

  static __device__ void fill(const StepProduct& p, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    expect_bytes(barrier, kBytes);
    copy_box(to, p.maps->rows, 0, panel * kPanelOutputs, first / kLinesOfPiece, barrier, policy);
    copy_box(to + kWeights, p.maps->scales, first / kLinesOfPiece, panel * kPanelOutputs, barrier, policy);
  }

  static __device__ int place(int quad) { return panel_place<Codec>(quad); }

  struct Multiplier {
    const std::byte* stage;
    int lane_row, pack;
    __device__ Multiplier(const std::byte* stage, int lane) : stage(stage), lane_row(lane / 4), pack(lane % 4) {}
    template <int lines>
    __device__ void multiply(float (&sums)[4], int line, const std::byte* x, const float*, int lane) const {
      typename Codec::Line weights[lines];
#pragma unroll
      for (int i = 0; i < lines; ++i) {
        const int piece = (line + i) / kLinesOfPiece, own = (line + i) % kLinesOfPiece * 4 + pack;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = lane_row + r * kPairsOfRows;
          const uint4 v = *reinterpret_cast<const uint4*>(stage + piece * kPieceBytes + pack_at(row, own));
          uint32_t(&to)[4] = weights[i].rows[r];
          to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
          weights[i].scales[r] = reinterpret_cast<const float*>(stage + kWeights)[row * kPieces + piece];
        }
      }
      multiply_lines<QuantizedWeights, lines>(sums, weights, x + line * (kPanelLine * 2), nullptr, lane);
    }
  };
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

template <class Weights, int lines>
__device__ void multiply_lines(float (&sums)[4], const typename Weights::Codec::Line (&weights)[lines],
                               const std::byte* x, const float* x_sums, int lane) {
  using Codec = typename Weights::Codec;
  constexpr int kSteps = Codec::kFold / kPanelStep, kScales = kPanelLine / Codec::kFold;  // steps that share a scale
  float part[lines][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 b[lines];
#pragma unroll
    for (int n = 0; n < lines; ++n) b[n] = *reinterpret_cast<const uint4*>(x + n * (kPanelLine * 2) + half * 64);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int step = half * 2 + i;
#pragma unroll
      for (int n = 0; n < lines; ++n) {
        uint32_t a[4];
        Codec::weights(weights[n], step, a);
        const uint32_t b0 = i == 0 ? b[n].x : b[n].z, b1 = i == 0 ? b[n].y : b[n].w;
        if (step % kSteps == 0) {
          mma_first(part[n], a, b0, b1);
        } else {
          mma<__nv_bfloat16>(part[n], a[0], a[1], a[2], a[3], b0, b1);
        }
      }
      if (step % kSteps != kSteps - 1) continue;
#pragma unroll
      for (int n = 0; n < lines; ++n) {
        float2 x_sum = {0.0f, 0.0f};
        if constexpr (Codec::kShifted) {
          x_sum =
              *reinterpret_cast<const float2*>(x_sums + (n * kScales + step / kSteps) * kMostStepRows + lane % 4 * 2);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Factors f = Codec::factors(weights[n], r, step / kSteps);
          sums[2 * r] = fmaf(f.scale, part[n][2 * r], sums[2 * r]);
          sums[2 * r + 1] = fmaf(f.scale, part[n][2 * r + 1], sums[2 * r + 1]);
          if constexpr (Codec::kShifted) {
            const float shift = f.minimum - f.scale * f.base;
            sums[2 * r] = fmaf(shift, x_sum.x, sums[2 * r]);
            sums[2 * r + 1] = fmaf(shift, x_sum.y, sums[2 * r + 1]);
          }
        }
      }
    }
  }
}

}  // namespace sluice::cuda::step
