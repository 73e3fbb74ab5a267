// Layout of block-quantized weights packed for int8 dot products, the same for every instruction set.
//
// A panel is 16 outputs (columns of the product) with all k inputs, in chunks of 256 inputs of which the last may be
// shorter: first the chunk's scales, then the quants of every 32 inputs. A product reads a panel as one ascending
// stream: scales that lie elsewhere cost a third of the bandwidth. Quants are stored unsigned, `offset` above their
// value, and seen as eight rows of [16 columns][4 inputs]: the way vpdpbusd reads them. Their low bits come first, row
// r in bits low * (r / n) .. of the byte rows r % n, where n = low is the number of byte rows for low = 4 and 8; two
// low bits have row r in bits 2 * (r % 4) of byte row r / 4. Then the high bits: one in bit r of a single byte row, two
// as two low bits. n is padded with columns of zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/panels.h"
#include "quant/all.h"

namespace sluice::kernels {

inline constexpr int64_t kQuantBlock = 32;  // inputs of x that share a scale
inline constexpr int64_t kChunk = 256;      // inputs per chunk, and per record of two-level scales
inline constexpr int64_t kChunkBlocks = kChunk / kQuantBlock;

// Scales of a chunk, all [..][16]. kHalf: fp16 per block. kHalfMin: fp16 scale and fp16 minimum per block. kExponent:
// a power of two (e8m0) per block. kSuper: fp16 per 256 inputs, then an int8 multiplier per sub-block. kSuperMin: fp16
// scale and negative fp16 minimum per 256 inputs, then uint8 multipliers of the scales, then of the minima.
enum class Scales { kHalf, kHalfMin, kExponent, kSuper, kSuperMin };

// Functions are always inlined: no copy compiled for one instruction set may be linked into code for another.
struct Int8Layout {
  int low = 0, high = 0;  // bits: 2, 4 or 8; 0, 1 or 2
  int offset = 0;         // of the stored values
  int sub_block = 0;      // inputs per scale: 16 or 32
  Scales scales = Scales::kHalf;

  [[gnu::always_inline]] constexpr bool two_level() const {
    return scales == Scales::kSuper || scales == Scales::kSuperMin;
  }
  [[gnu::always_inline]] constexpr bool mins() const {
    return scales == Scales::kHalfMin || scales == Scales::kSuperMin;
  }
  [[gnu::always_inline]] constexpr int subs() const { return static_cast<int>(kQuantBlock) / sub_block; }
  [[gnu::always_inline]] constexpr int64_t record() const { return two_level() ? kChunk : kQuantBlock; }  // inputs
  [[gnu::always_inline]] constexpr int64_t multipliers() const { return two_level() ? kChunk / sub_block * kPanel : 0; }
  [[gnu::always_inline]] constexpr int64_t record_bytes() const {  // of a panel
    if (scales == Scales::kExponent) return kPanel;
    return mins() ? 4 * kPanel + 2 * multipliers() : 2 * kPanel + multipliers();
  }
  [[gnu::always_inline]] constexpr int64_t quant_bytes() const {  // of a block of a panel
    return kPanel * kQuantBlock * (low + high) / 8;
  }
  // Of a chunk of `blocks` blocks; whole cache lines, so that quants are aligned.
  [[gnu::always_inline]] constexpr int64_t scale_bytes(int64_t blocks) const {
    return (blocks * kQuantBlock / record() * record_bytes() + 63) / 64 * 64;
  }
  [[gnu::always_inline]] constexpr int64_t chunk_bytes(int64_t blocks = kChunkBlocks) const {
    return scale_bytes(blocks) + blocks * quant_bytes();
  }
  [[gnu::always_inline]] constexpr int64_t panel_bytes(int64_t k) const {
    return k / kChunk * chunk_bytes() + chunk_bytes(k % kChunk / kQuantBlock);
  }
};

// The layout of a format of src/quant; the default: it has none, and the generic kernels multiply it.
template <class Format>
inline constexpr Int8Layout kInt8Layout{};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q8_0>{8, 0, 128, 32, Scales::kHalf};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q4_0>{4, 0, 8, 32, Scales::kHalf};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q4_1>{4, 0, 0, 32, Scales::kHalfMin};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q5_0>{4, 1, 16, 32, Scales::kHalf};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q5_1>{4, 1, 0, 32, Scales::kHalfMin};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q2_K>{2, 0, 0, 16, Scales::kSuperMin};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q3_K>{2, 1, 4, 16, Scales::kSuper};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q4_K>{4, 0, 0, 32, Scales::kSuperMin};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q5_K>{4, 1, 0, 32, Scales::kSuperMin};
template <>
inline constexpr Int8Layout kInt8Layout<quant::Q6_K>{4, 2, 32, 16, Scales::kSuper};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ4_NL>{4, 0, 128, 32, Scales::kHalf};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ4_XS>{4, 0, 128, 32, Scales::kSuper};
template <>
inline constexpr Int8Layout kInt8Layout<quant::MXFP4>{4, 0, 12, 32, Scales::kExponent};

template <class Format>
inline constexpr bool kHasInt8 = kInt8Layout<Format>.low != 0;

}  // namespace sluice::kernels
