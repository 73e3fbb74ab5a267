// Layouts of quantized weights in device memory. A matrix [n, k] is a sequence of packed panels of 16 outputs. A
// K-slice, or slice, is 64 consecutive inputs of a panel: what a warp multiplies in one go.
//
// Panels of integers (quant/integers.h) lie in the order in which the tensor cores read them. With g = l / 4 and
// t = l % 4, lane l of a warp holds the weights of outputs g and g + 8 for inputs 16 j + 4 t .. 16 j + 4 t + 3 of each
// step j of 16 inputs. Its eight weights of a step are four pairs: pairs 0 and 2 of output g (inputs 0, 1 and 2, 3 of
// its four), pairs 1 and 3 of output g + 8. A panel is
//   slices: the low bits of each slice, then its high bits, in words per lane:
//     low 4     word j: the first of pair p in nibble p, the second in nibble p + 4; lane after lane, 16 bytes each.
//               NF4: the first of pair p is in nibble 2 p, the second in nibble 2 p + 1.
//               FP4: pairs have the bits of kFp4Pair, rotated so that pairs 0 to 2 of a step fill 24 bits of its word.
//               Pair 3 lies in the eight bits that are left, half of it in the word of the other step of two (Fp4Words)
//     low 8     words 2 j and 2 j + 1 hold pairs 0, 1 and 2, 3: firsts in bytes 0 and 1, seconds in bytes 2 and 3;
//               words 0 .. 3 of all lanes, then words 4 .. 7. Two's complement, without the offset
//     2 bits    word j / 2: the first of pair p in bit 2 (4 (j % 2) + p), the second 16 bits above
//     1 bit     the first of pair p in bit 4 j + p, the second 16 bits above
//   scale blocks: scale_words words per g, for outputs g and g + 8 (`r` is 0 and 1); i counts the sub-blocks:
//     kHalf      word r: fp16 scales of i = 0, 1
//     kHalfMin   word 2 r + i: fp16 scale, minimum
//     kExponent  byte 2 r + i: 2^(byte - 127) is twice the scale, so that no scale is subnormal
//     kSuper     bytes of int8 multipliers, i running first, then r
//     kSuperMin  bytes of uint8 multipliers in this order, those of the scales, then those of the minima
//     kFloat     word r: fp32
//     kFloat8    word r: E4M3 for i = 0 .. 3, without NaN: 0x7f is 480
//   super-scales, per 256 inputs and g:
//     kSuper     one word of fp16 scales for r = 0, 1
//     kSuperMin  word r: fp16 scale, minimum
//   or per row and g:
//     kFloat8    word r: fp32
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "quant/integers.h"

namespace sluice::cuda {

inline constexpr int kPanelOutputs = 16;
inline constexpr int kPanelSlice = 64;         // inputs of a K-slice
inline constexpr int kPanelStep = 16;          // inputs of one tensor-core instruction
inline constexpr int kPairsOfRows = 8;         // outputs g and g + 8 of a panel
inline constexpr int kSlicesOfSuperScale = 4;  // slices that share a super-scale
inline constexpr int kSlicesOfRow = 1 << 30;   // more slices than any row has: one super-scale per row

// The format in which panels hold the weights of a codec.
template <class Codec>
inline constexpr quant::Integers kPanelFormat = quant::kIntegers<Codec>;
template <>
inline constexpr quant::Integers kPanelFormat<quant::ScaledNVFP4>{4, 0, 12, 16, quant::Scales::kFloat8};
template <>
inline constexpr quant::Integers kPanelFormat<quant::NF4>{4, 0, 0, 64, quant::Scales::kFloat};
template <>
inline constexpr quant::Integers kPanelFormat<quant::TQ2_0>{2, 0, 1, 32, quant::Scales::kSuper};

// The format whose panels and kernels a codec uses.
template <class Codec>
struct PanelsOf {
  using Type = Codec;
};
template <>
struct PanelsOf<quant::NVFP4> {
  using Type = quant::ScaledNVFP4;
};
template <>
struct PanelsOf<quant::TQ1_0> {
  using Type = quant::TQ2_0;
};

constexpr int64_t panel_slices(int64_t k) { return (k + kPanelSlice - 1) / kPanelSlice; }

struct PanelLayout {
  int low = 0, high = 0;  // words per lane of a slice: one word for each bit of its 32 weights
  int scale_words = 0, super_scale_words = 0;
  int scale_slices = 1,
      super_scale_slices = kSlicesOfSuperScale;  // slices that share a scale block, or super-scales

  constexpr int64_t slice_bytes() const { return int64_t{low + high} * 32 * 4; }
  // Bytes of the scales of scale_slices slices.
  constexpr int64_t scale_bytes() const { return int64_t{scale_words} * kPairsOfRows * 4; }
  // Bytes of the super-scales of super_scale_slices slices.
  constexpr int64_t super_scale_bytes() const { return int64_t{super_scale_words} * kPairsOfRows * 4; }
  static constexpr int64_t scale_blocks(int64_t slices, int shared_by) { return (slices + shared_by - 1) / shared_by; }
  constexpr int64_t scales_at(int64_t slices) const { return slices * slice_bytes(); }
  constexpr int64_t super_scales_at(int64_t slices) const {
    return scales_at(slices) + scale_blocks(slices, scale_slices) * scale_bytes();
  }
  // Bytes of this many slices with their scales.
  constexpr int64_t bytes_of(int64_t slices) const {
    return super_scales_at(slices) + scale_blocks(slices, super_scale_slices) * super_scale_bytes();
  }
  constexpr int64_t panel_bytes(int64_t k) const { return (bytes_of(panel_slices(k)) + 127) / 128 * 128; }
};

template <class Codec>
constexpr PanelLayout panel_layout() {
  constexpr quant::Integers kFormat = kPanelFormat<Codec>;
  constexpr int kSubs = kPanelSlice / kFormat.sub_block;
  PanelLayout layout{.low = kFormat.low, .high = kFormat.high};
  switch (kFormat.scales) {
    case quant::Scales::kHalf:
      layout.scale_words = kSubs;
      break;
    case quant::Scales::kHalfMin:
      layout.scale_words = 2 * kSubs;
      break;
    case quant::Scales::kExponent:
      layout.scale_words = kSubs / 2;
      break;
    case quant::Scales::kSuper:
      layout.scale_words = kSubs / 2, layout.super_scale_words = 1;
      break;
    case quant::Scales::kSuperMin:
      layout.scale_words = kSubs, layout.super_scale_words = 2;
      break;
    case quant::Scales::kFloat:
      layout.scale_words = 2;
      break;
    case quant::Scales::kFloat8:
      layout.scale_words = kSubs / 2, layout.super_scale_words = 2, layout.super_scale_slices = kSlicesOfRow;
      break;
    case quant::Scales::kGroup:
      layout.scale_words = 2 * (kFormat.sub_block < kPanelSlice ? kSubs : 1);
      layout.scale_slices = kFormat.sub_block > kPanelSlice ? kFormat.sub_block / kPanelSlice : 1;
      break;
  }
  return layout;
}

template <class Codec>
inline constexpr bool kFp4Panels = std::is_same_v<Codec, quant::MXFP4> || std::is_same_v<Codec, quant::ScaledNVFP4>;

// A pair of FP4 codes (sign, two bits of exponent, one of mantissa) at the places of their bits in a pair of bf16. The
// value is lower by 2^126, which a multiplication corrects, subnormal or not.
inline constexpr uint32_t kFp4Pair = 0x81c081c0u;

// Where the pairs of two steps lie in their two words. A word rotated left by turn(p) has pair p in the bits of
// kFp4Pair. The second word rotated by kSecond has its unused bits where pairs 0 to 2 are in the first word. Combining
// it with the unused bits of the first word gives a word with pair 3 of both steps. (No four places of a pair fill 16
// bits; these rotations were found by trying all.)
struct Fp4Words {
  static constexpr int turn(int pair) { return pair == 0 ? 0 : pair == 1 ? 4 : 10; }
  static constexpr int last_turn(int step) { return step == 0 ? 6 : 12; }  // for the combined word
  static constexpr int kSecond = 2;
  static constexpr uint32_t kFirstRest = 0x06030603u;  // the bits that pairs 0 to 2 leave unused in the first word
};

// How many sets of inputs with separate scales two slices have.
template <class Codec>
constexpr int sets_of_pair() {
  return panel_layout<Codec>().scale_slices > 1 ? 1 : std::max(1, 2 * kPanelSlice / kPanelFormat<Codec>.sub_block);
}

// 8-bit floats (quant::Fp8) stay row-major, as cuBLASLt expects: k weights, then the fp32 scales of every 128. Behind
// the last panel of a matrix lies the first scale of every row once more, for weights with one scale per row.
constexpr int64_t fp8_row_bytes(int64_t k) {
  return (k + k / quant::Fp8::kElements * static_cast<int64_t>(sizeof(float)) + 15) / 16 * 16;
}
constexpr int64_t fp8_panels_bytes(int64_t n, int64_t k) {
  return (n + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs * fp8_row_bytes(k);
}

template <class Codec>
constexpr int64_t panel_bytes(int64_t k) {
  return panel_layout<Codec>().panel_bytes(k);
}
template <>
constexpr int64_t panel_bytes<quant::Fp8>(int64_t k) {
  return kPanelOutputs * fp8_row_bytes(k);
}

// Whether a format has panels.
template <class Codec>
inline constexpr bool kHasPanels =
    kPanelFormat<typename PanelsOf<Codec>::Type>.low != 0 || std::is_same_v<Codec, quant::Fp8>;

// See PanelKernels. panels.cuh has the first and the last of these functions, bytes.cuh the other one. Each is compiled
// for the formats of a list (quant/all.h) in a .cu file of its own.
template <class Codec>
void matmul_panels(const Launch&, const MatmulProblem&);
template <class Codec>
bool matmul_panels_by_tiles(const Launch&, const MatmulProblem&);
template <class Codec>
void unpack_panels(const Launch&, std::byte* to, DType type, const std::byte* weight, int64_t begin, int64_t count,
                   int64_t k);

// The kernels for a quantized type.
struct PanelKernels {
  size_t (*packed_bytes)(int64_t n, int64_t k) = nullptr;
  int64_t (*panel_bytes)(int64_t k) = nullptr;
  // Writes rows [row, row + from.rows()) of `into` through host memory; see ops::MatmulKernels::pack.
  void (*pack)(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) = nullptr;
  // Rows of a matrix from which matmul_by_tiles takes less time than multiply, and of an expert, on average.
  int64_t tiled_rows, tiled_expert_rows;
  // Takes any number of rows; the weights are read once for up to 32.
  void (*multiply)(const Launch&, const MatmulProblem&) = nullptr;
  // Does the same in tiles of up to 256 rows, for many rows with weights rounded to bf16 (tiles.cuh, bytes.cuh).
  // Returns false, having done nothing, if it cannot.
  bool (*matmul_by_tiles)(const Launch&, const MatmulProblem&) = nullptr;
  // Unpacks outputs [begin, begin + count) of the matrix to rows of padded_k(k) elements of fp32 or bf16. `begin` is a
  // multiple of kPanelOutputs.
  void (*unpack)(const Launch&, std::byte* to, DType type, const std::byte* weight, int64_t begin, int64_t count,
                 int64_t k) = nullptr;
};
// Returns nullptr for types without panels.
const PanelKernels* panel_kernels(DType type);
// Unpacks the weights to bf16 and multiplies them by cuBLASLt. False if that library is not installed.
bool matmul_by_unpacking(const Launch&, const MatmulProblem&);

}  // namespace sluice::cuda
