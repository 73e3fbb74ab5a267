// How the persistent decode kernel multiplies packed panels of MXFP4 (matmul/panel_layout.h), see weights.cuh.
//
// A warp's quarter of a stage is four K-slices, whose weights have eight scales per output: one for every 32 inputs.
// The tensor cores multiply eight columns, but a row of inputs needs one. So column f has the inputs of the 32 that
// belong to scale f, and zeros elsewhere. All steps of the quarter add to the same sums, which are those of every scale
// in a column of its own.
#pragma once

#include "kernels/cuda/decode_kernel/weights.cuh"

namespace sluice::cuda::persistent {

template <>
struct QuantizedWeights<quant::MXFP4> {
  using Codec = PanelCodec<quant::MXFP4>;
  static constexpr PanelLayout kLayout = panel_layout<quant::MXFP4>();
  static constexpr int kSlices = 16, kPaddedSlices = kSlices, kQuarter = kSlices / kWarpgroupWarps;
  static constexpr bool kByWarpGroup = false, kExperts = true, kBiasedExperts = true;
  static constexpr int kMultiple = quant::MXFP4::kElements;
  static constexpr int kSliceBytes = static_cast<int>(kLayout.slice_bytes());
  static constexpr int kScaleBytes = static_cast<int>(kLayout.scale_bytes());
  static constexpr int kScalesAt = kSlices * kSliceBytes, kBytes = kScalesAt + kSlices * kScaleBytes;
  static constexpr int kSteps = kPanelSlice / kPanelStep;
  static constexpr int kSliceInputs = 2 * kPanelSlice;  // bytes
  static_assert(kLayout.low == 4 && kLayout.high == 0 && kLayout.super_scale_words == 0);
  static_assert(kLayout.scale_words == 1 && kLayout.scale_slices == 1);
  static_assert(2 * Codec::kFold == kPanelSlice && kQuarter * 2 == 8 && Codec::kLowered != 0);
  // Operands are lowered (device/panel_codec.cuh). Inputs, of up to 2^63, are raised by half of that, so that no sum is
  // too small for fp32. The sums are raised by the rest.
  static constexpr float kRaised = 0x1p64f, kLifted = 0x1p61f;
  static_assert(Codec::kLowered == 64 + 61);

  struct Source {
    const std::byte* panels;
    int64_t pitch, scales_at;
    int slices;  // in a panel
    __device__ explicit Source(const MatmulInstruction& p) : panels(p.panels), pitch(p.pitch), slices(p.slices) {
      constexpr PanelLayout layout = kLayout;
      if (p.experts.part == ExpertPart::kOut) slices = (p.experts.quads * 4 + kPanelSlice - 1) / kPanelSlice;
      scales_at = layout.scales_at(slices);
    }
  };
  static __device__ void fill(const Source& from, int panel, int first, uint32_t to, uint32_t barrier,
                              uint64_t policy) {
    const int slices = min(kSlices, from.slices - first);
    const std::byte* begin = from.panels + panel * from.pitch;
    expect_bytes(barrier, slices * (kSliceBytes + kScaleBytes));
    copy_bulk(to, begin + first * kSliceBytes, slices * kSliceBytes, barrier, policy);
    copy_bulk(to + kScalesAt, begin + from.scales_at + first * kScaleBytes, slices * kScaleBytes, barrier, policy);
  }

  // Bytes from one row of inputs to the next.
  static constexpr __host__ __device__ int pitch(int slices) {
    return (slices + kPaddedSlices - 1) / kPaddedSlices * kPaddedSlices * kSliceInputs;
  }
  static constexpr int bytes(int rows, int slices) { return rows * pitch(slices); }

  // Lane t's quads of both steps of 32 inputs lie side by side.
  static __device__ void store_inputs(const Inputs& in, int row, int quad, const float4& v) {
    std::byte* to = in.data + row * pitch(in.slices) + quad / 8 * 64 + quad % 4 * 16 + quad / 4 % 2 * 8;
    *reinterpret_cast<uint2*>(to) = {pack2<__nv_bfloat16>(v.x * kRaised, v.y * kRaised),
                                     pack2<__nv_bfloat16>(v.z * kRaised, v.w * kRaised)};
  }

  template <int rows>
  class Panel {
   public:
    static constexpr int kSets = 1;
    template <int set>
    __device__ void begin(const std::byte* stage, int index, const Inputs& in) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, first = group_warp() * kQuarter;
#pragma unroll
      for (int i = 0; i < kQuarter; ++i) {
        const uint4 words = *reinterpret_cast<const uint4*>(stage + (first + i) * kSliceBytes + lane * 16);
        slices_[i].low[0] = words.x, slices_[i].low[1] = words.y;
        slices_[i].low[2] = words.z, slices_[i].low[3] = words.w;
      }
      scales_.scales[0] =
          *reinterpret_cast<const uint32_t*>(stage + kScalesAt + (first + lane % 4) * kScaleBytes + lane / 4 * 4);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const std::byte* of_row = in.data + min(in.row + row, in.rows - 1) * pitch(in.slices);
        x_[row] = *reinterpret_cast<const uint4*>(of_row + (index * kSlices + first) * kSliceInputs + lane * 16);
      }
    }
    template <int set, int pending>
    __device__ void end() {
      constexpr int kChains = rows > 2 ? 1 : 2;  // a chain of matmuls waits for each of them
      const int column = static_cast<int>(threadIdx.x) % kWarp / 4;
      float c[kChains][rows][4] = {};
#pragma unroll
      for (int i = 0; i < kQuarter; ++i) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          uint32_t a[4];
          Codec::lowered(slices_[i], step, a);
          const bool own = column == 2 * i + step / 2;
#pragma unroll
          for (int row = 0; row < rows; ++row) {
            const uint4& x = x_[row];
            mma<__nv_bfloat16>(c[i % kChains][row], a[0], a[1], a[2], a[3], own ? (step % 2 == 0 ? x.x : x.z) : 0,
                               own ? (step % 2 == 0 ? x.y : x.w) : 0);
          }
        }
      }
      // This lane's two columns belong to the scales of slice t. Behind the last slice of a panel a stage has old
      // bytes: their inputs are zeros, but their scales may be infinite.
#pragma unroll
      for (int row = 0; row < rows; ++row) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float sum = c[0][row][i];
          if constexpr (kChains > 1) sum += c[1][row][i];
          const float scale = Codec::factors(scales_, i / 2, i % 2).scale;
          sums_[row][i / 2] = fmaf(sum == 0.0f ? 0.0f : scale, sum, sums_[row][i / 2]);
        }
      }
    }
    __device__ void store_sums(float* sums, int sums_pitch) const {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int row = 0; row < rows; ++row) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float sum = sums_[row][r];
          sum += __shfl_xor_sync(kFullWarp, sum, 1);
          sum += __shfl_xor_sync(kFullWarp, sum, 2);
          if (lane % 4 == 0) sums[(lane / 4 + r * kPairsOfRows) * sums_pitch + row] = sum * kLifted;
        }
      }
    }

   private:
    Codec::Slice slices_[kQuarter], scales_;
    uint4 x_[rows];
    float sums_[rows][2] = {};
  };
};

}  // namespace sluice::cuda::persistent
