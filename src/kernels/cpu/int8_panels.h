// Layout of block-quantized weights packed for int8 dot products, the same for every instruction set.
//
// A panel is 16 outputs (columns of the matmul) with all k inputs. It is divided into chunks of 256 inputs; the last
// one may be shorter. A chunk holds its scales first, then the quants of every 32 inputs. A matmul reads a panel as one
// ascending stream: storing scales elsewhere costs a third of the bandwidth.
//
// Quants are stored unsigned, `offset` above their value. They form eight rows of [16 columns][4 inputs], the order in
// which vpdpbusd reads them. The low bits come first. For low = n = 4 or 8, there are n byte rows, and row r has bits
// low * (r / n) .. of byte row r % n. For low = 2, row r has bits 2 * (r % 4) .. of byte row r / 4. Then come the high
// bits: one high bit is bit r of a single byte row; two are stored like two low bits. n is padded with columns of
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/panels.h"
#include "quant/integers.h"

namespace sluice::kernels {

inline constexpr int64_t kQuantBlock = 32;  // inputs of x that share a scale
inline constexpr int64_t kChunk = 256;      // inputs per chunk, and per scale block of two-level scales
inline constexpr int64_t kChunkBlocks = kChunk / kQuantBlock;

using quant::Scales;

// A format in this layout. The scales of a chunk, all [..][16], are:
// kHalf, kHalfMin  fp16 per block or sub-block, then fp16 minima (kHalfMin)
// kExponent        a power of two per block
// kSuper           fp16 per 256 inputs, then an int8 multiplier per sub-block
// kSuperMin        fp16 scale and negative fp16 minimum per 256 inputs, then uint8 multipliers of the scales,
//                  then those of the minima
// kGroup           the word of scale and zero point per group; its minimum is -scale * zero point
// Functions are always inlined, so no copy compiled for one instruction set can be linked into code for another.
struct Int8Layout : quant::Integers {
  float factor = 1.0f;  // factor of kSuper's scales
  int halves = 1;       // fp16 scales (kHalf) in a scale block

  [[gnu::always_inline]] constexpr bool mins() const { return Integers::mins() || scales == Scales::kGroup; }
  [[gnu::always_inline]] constexpr int subs() const {
    return sub_block < kQuantBlock ? static_cast<int>(kQuantBlock) / sub_block : 1;
  }
  [[gnu::always_inline]] constexpr int64_t scale_block() const {  // inputs per scale block
    if (two_level()) return kChunk;
    return scales == Scales::kGroup ? sub_block : scales == Scales::kHalf ? halves * sub_block : kQuantBlock;
  }
  [[gnu::always_inline]] constexpr int64_t multipliers() const { return two_level() ? kChunk / sub_block * kPanel : 0; }
  [[gnu::always_inline]] constexpr int64_t scale_block_bytes() const {  // bytes of a panel's scale block
    if (scales == Scales::kExponent) return kPanel;
    if (scales == Scales::kGroup) return 4 * kPanel;
    return mins() ? 4 * kPanel + 2 * multipliers() : 2 * halves * kPanel + multipliers();
  }
  [[gnu::always_inline]] constexpr int64_t quant_bytes() const {  // bytes of a panel's block of quants
    return kPanel * kQuantBlock * (low + high) / 8;
  }
  // Bytes of the scales of a chunk of `blocks` blocks: whole cache lines, so that quants are aligned.
  [[gnu::always_inline]] constexpr int64_t scale_bytes(int64_t blocks) const {
    return (blocks * kQuantBlock / scale_block() * scale_block_bytes() + 63) / 64 * 64;
  }
  [[gnu::always_inline]] constexpr int64_t chunk_bytes(int64_t blocks = kChunkBlocks) const {
    return scale_bytes(blocks) + blocks * quant_bytes();
  }
  [[gnu::always_inline]] constexpr int64_t panel_bytes(int64_t k) const {
    return k / kChunk * chunk_bytes() + chunk_bytes(k % kChunk / kQuantBlock);
  }
};

// The default, for formats without int8 kernels: the generic kernels multiply them.
template <class Format>
inline constexpr Int8Layout kInt8Layout{quant::kIntegers<Format>};

template <class Format>
inline constexpr bool kHasInt8 = kInt8Layout<Format>.low != 0;

// Formats whose files hold codebook entries or digits. Packing turns a weight into a code of 2, 3 or 4 bits that stands
// for a level (quant/integer_blocks.h). That takes more memory than the file and a fiftieth of the time.
template <>
inline constexpr Int8Layout kInt8Layout<quant::TQ1_0>{{2, 0, 1, 32, Scales::kSuper}};
template <>
inline constexpr Int8Layout kInt8Layout<quant::TQ2_0>{{2, 0, 1, 32, Scales::kSuper}};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ1_S>{{2, 1, 9, 32, Scales::kSuper}, 0.125f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ1_M>{{2, 1, 9, 16, Scales::kSuper}, 0.125f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ2_XXS>{{2, 1, 43, 32, Scales::kSuper}, 0.125f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ2_XS>{{2, 1, 43, 16, Scales::kSuper}, 0.125f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ2_S>{{2, 1, 43, 16, Scales::kSuper}, 0.125f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ3_XXS>{{4, 0, 62, 32, Scales::kSuper}, 0.25f};
template <>
inline constexpr Int8Layout kInt8Layout<quant::IQ3_S>{{4, 0, 15, 32, Scales::kSuper}};
template <>
inline constexpr Int8Layout kInt8Layout<quant::NVFP4>{{4, 0, 12, 16, Scales::kHalf}, 1.0f, 4};

}  // namespace sluice::kernels
