// Packing of quantized rows into the panels of panels.h, in host memory. Instantiated by panel_kernels.cc.
#pragma once

#include <fmt/core.h>

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/panels.h"
#include "quant/integer_blocks.h"
#include "sluice/error.h"

namespace sluice::cuda {

// One row into its place in a panel whose memory is zero where the row belongs.
template <class Codec>
class RowPacker {
 public:
  RowPacker(std::byte* panel, int64_t k, int output)
      : panel_(panel), lines_(panel_lines(k)), g_(output % kPairsOfRows), r_(output / kPairsOfRows) {}

  void pack(const typename Codec::Block* blocks, int64_t k) {
    constexpr int64_t kParts = Codec::kElements / kPart;
    for (int64_t i = 0; i < k / Codec::kElements; ++i) {
      for (int64_t b = 0; b < kParts; ++b) {
        quant::Words words;
        quant::Parts<Codec>::words(blocks[i], static_cast<int>(b), words);
        const int64_t part = i * kParts + b;
        for (int w = 0; w < quant::kWords; ++w) {
          if constexpr (kFp4Panels<Form>) {
            if (w < 4) place_fp4(part / 2, static_cast<int>(part % 2), w, words[w], words[w + 4]);
          } else {
            place(part / 2, static_cast<int>(part % 2) * 2 + w / 4, w % 4, words[w]);
          }
        }
      }
      place_scales(i, scales_of(blocks[i]));
    }
  }

 private:
  using Form = typename PanelsOf<Codec>::Type;
  static constexpr quant::Integers kFormat = kPanelFormat<Form>;
  static constexpr PanelLayout kLayout = panel_layout<Form>();
  static constexpr int64_t kPart = 32;  // weights of quant::Words

  static quant::RecordScales scales_of(const typename Codec::Block& block) {
    if constexpr (std::is_same_v<Codec, quant::NVFP4>) {
      return quant::Parts<quant::ScaledNVFP4>::scales({1.0f, block});
    } else {
      return quant::Parts<Codec>::scales(block);
    }
  }

  uint32_t word_at(int64_t at) const {
    uint32_t word;
    std::memcpy(&word, panel_ + at, sizeof word);
    return word;
  }
  void add(int64_t at, uint32_t bits) {
    const uint32_t word = word_at(at) | bits;
    std::memcpy(panel_ + at, &word, sizeof word);
  }

  // Two bits and one bit of each of four weights: pairs r and 2 + r at `unit` bits each, seconds 16 bits above.
  uint32_t spread(uint32_t four, int unit) const {
    return ((four & 0xff) | (four >> 8 & 0xff) << 16 | (four >> 16 & 0xff) << (2 * unit) |
            (four >> 24) << (16 + 2 * unit))
           << (unit * r_);
  }

  // The weights of inputs 16 step + 4 t .. of a line, one per byte.
  void place(int64_t line, int step, int t, uint32_t four) {
    const int64_t at = line * kLayout.line_bytes();
    const int lane = g_ * 4 + t;
    if constexpr (kFormat.low == 8) {
      four ^= quant::every_byte(0x80);  // two's complement
      const int64_t word = at + step / 2 * 512 + lane * 16 + step % 2 * 8;
      add(word, ((four & 0xff) | (four >> 8 & 0xff) << 16) << (8 * r_));
      add(word + 4, ((four >> 16 & 0xff) | (four >> 24) << 16) << (8 * r_));
    } else if constexpr (std::is_same_v<Form, quant::NF4>) {
      add(at + lane * 16 + step * 4, ((four & 15) | (four >> 4 & 0xf0) | (four & 0xf0000) | (four >> 4 & 0xf00000))
                                         << (8 * r_));
    } else if constexpr (kFormat.low == 4) {
      add(at + lane * 16 + step * 4, spread(four & quant::every_byte(15), 4));
    } else {
      add(at + lane * 8 + step / 2 * 4, spread(four & quant::every_byte(3), 2) << (step % 2 * 8));
    }
    const int64_t high = at + kLayout.low * 128 + lane * 4 * kLayout.high;
    if constexpr (kFormat.high == 2) {
      add(high + step / 2 * 4, spread(four >> kFormat.low & quant::every_byte(3), 2) << (step % 2 * 8));
    } else if constexpr (kFormat.high == 1) {
      add(high, spread(four >> kFormat.low & quant::every_byte(1), 1) << (step * 4));
    }
  }

  // The weights of steps 2 two and 2 two + 1, likewise: both at once, in halves of 64 bits.
  void place_fp4(int64_t line, int two, int t, uint32_t first, uint32_t second) {
    const uint64_t fours = first | uint64_t{second} << 32, begin = fp4_pairs(fours), end = fp4_pairs(fours >> 16);
    static_assert(Fp4Words::turn(0) == 0);
    uint64_t words;
    if (r_ == 0) {
      words = begin | turned_back<Fp4Words::turn(2)>(end);
    } else {
      const uint32_t both = std::rotr(static_cast<uint32_t>(end), Fp4Words::last_turn(0)) |
                            std::rotr(static_cast<uint32_t>(end >> 32), Fp4Words::last_turn(1));
      words = turned_back<Fp4Words::turn(1)>(begin) | (both & Fp4Words::kFirstRest) |
              uint64_t{std::rotr(both & ~Fp4Words::kFirstRest, Fp4Words::kSecond)} << 32;
    }
    std::byte* to = panel_ + line * kLayout.line_bytes() + (g_ * 4 + t) * 16 + two * 8;
    uint64_t now;
    std::memcpy(&now, to, sizeof now);
    now |= words;
    std::memcpy(to, &now, sizeof now);
  }
  static constexpr uint64_t twice(uint32_t x) { return x | uint64_t{x} << 32; }
  // The codes in bytes 0 and 1 of either half as a pair (kFp4Pair).
  static uint64_t fp4_pairs(uint64_t fours) {
    const uint64_t both = (fours & twice(15)) | (fours & twice(15 << 8)) << 8;
    return (both & twice(0x00070007)) << 6 | (both & twice(0x00080008)) << 12;
  }
  // Either half, turned to the right.
  template <int by>
  static uint64_t turned_back(uint64_t x) {
    static_assert(by > 0);
    return (x >> by & twice(~0U >> by)) | (x << (32 - by) & twice(~0U << (32 - by)));
  }

  // Of block `i` of the row.
  void place_scales(int64_t i, const quant::RecordScales& s) {
    using quant::Scales;
    const auto record = [&](int64_t line) {
      return kLayout.scales_at(lines_) + (line / kLayout.scale_lines * kPairsOfRows + g_) * kLayout.scale_words * 4;
    };
    const int half = static_cast<int>(i % 2);  // of the line, for blocks of 32
    const uint32_t both = s.halves[0] | static_cast<uint32_t>(s.halves[1]) << 16;
    if constexpr (kFormat.scales == Scales::kHalf) {
      add(record(i / 2) + r_ * 4, static_cast<uint32_t>(s.halves[0]) << (16 * half));
    } else if constexpr (kFormat.scales == Scales::kHalfMin) {
      add(record(i / 2) + (2 * r_ + half) * 4, both);
    } else if constexpr (kFormat.scales == Scales::kExponent) {
      if (s.halves[0] >= 0xfe) {
        throw Error(ErrorCode::kCorruptFile, fmt::format("scales of type {} that are NaN or 2^127", Codec::kType.name));
      }
      add(record(i / 2), static_cast<uint32_t>(s.halves[0] + 1) << (8 * (2 * r_ + half)));
    } else if constexpr (kFormat.scales == Scales::kFloat8) {
      static_assert(Codec::kElements == kPanelLine);
      add(record(i) + r_ * 4, quant::word_at(s.multipliers[0], 0));
      const int64_t row = kLayout.supers_at(lines_) + (g_ * kLayout.super_words + r_) * 4;
      if (i == 0) add(row, both);
      CHECK(word_at(row) == both, "a row of {} with several scales of a tensor", Codec::kType.name);
    } else if constexpr (kFormat.scales == Scales::kGroup || kFormat.scales == Scales::kFloat) {
      constexpr int kSubs = kLayout.scale_words / 2;
      add(record(i * Codec::kElements / kPanelLine) + (kSubs * r_ + (kSubs == 2 ? half : 0)) * 4, both);
    } else {
      constexpr int kSubs = kPanelLine / kFormat.sub_block;
      constexpr int kKinds = kFormat.mins() ? 2 : 1;
      for (int line = 0; line < kLinesOfSuper; ++line) {
        for (int kind = 0; kind < kKinds; ++kind) {
          for (int sub = 0; sub < kSubs; ++sub) {
            const int byte = (kind * 2 + r_) * kSubs + sub;
            add(record(i * kLinesOfSuper + line) + byte / 4 * 4,
                static_cast<uint32_t>(s.multipliers[kind][line * kSubs + sub]) << (8 * (byte % 4)));
          }
        }
      }
      const int64_t super = kLayout.supers_at(lines_) + (i * kPairsOfRows + g_) * kLayout.super_words * 4;
      if constexpr (kFormat.mins()) {
        add(super + r_ * 4, both);
      } else {
        add(super, static_cast<uint32_t>(s.halves[0]) << (16 * r_));
      }
    }
  }

  std::byte* panel_;
  const int64_t lines_;
  const int g_, r_;
};

}  // namespace sluice::cuda
