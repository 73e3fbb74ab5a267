// Packs quantized rows into the panels of panel_layout.h, in host memory. Instantiated by panel_kernels.cc.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "quant/integer_blocks.h"
#include "sluice/error.h"

namespace sluice::cuda {

// Words of the four lanes of a row's group of eight, lane t's in element t. (A compiler vector, which the compiler maps
// to the machine's instructions.)
using FourWords = uint32_t __attribute__((vector_size(16)));

// Inputs of a row that are packed at a time: whole blocks of every format, and so little of a panel that the following
// rows find it in L1.
inline constexpr int64_t kPackedInputs = 256;

// Packs a row into its place in a panel. The memory of that place must be zero.
template <class Codec>
class RowPacker {
 public:
  RowPacker(std::byte* panel, int64_t k, int output)
      : panel_(panel), slices_(panel_slices(k)), g_(output % kPairsOfRows), r_(output / kPairsOfRows) {}

  // Packs inputs [begin, end). `begin` is a multiple of kPackedInputs, and so is `end` unless it is the end of the row.
  void pack(const typename Codec::Block* blocks, int64_t begin, int64_t end) {
    const int64_t parts = end / kPart;
    for (int64_t part = begin / kPart; part < parts; part += 2) {
      FourWords steps[kSteps];
      take_part(blocks, part, steps[0], steps[1]);
      if (part + 1 < parts) {
        take_part(blocks, part + 1, steps[2], steps[3]);
      } else {
        steps[2] = steps[3] = unused();
      }
      place(part / 2, steps);
    }
    for (int64_t i = begin / Codec::kElements; i < end / Codec::kElements; ++i) place_scales(i, scales_of(blocks[i]));
  }

 private:
  using Form = typename PanelsOf<Codec>::Type;
  static constexpr quant::Integers kFormat = kPanelFormat<Form>;
  static constexpr PanelLayout kLayout = panel_layout<Form>();
  static constexpr int64_t kPart = 32;  // weights of quant::Words
  static constexpr int kSteps = kPanelSlice / kPanelStep;

  static quant::ScaleBlock scales_of(const typename Codec::Block& block) {
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
  void add(int64_t at, FourWords bits) {
    FourWords words;
    std::memcpy(&words, panel_ + at, sizeof words);
    words |= bits;
    std::memcpy(panel_ + at, &words, sizeof words);
  }
  // Adds `count` words of each lane, lane after lane.
  template <int count>
  void add_lanes(int64_t at, const FourWords (&words)[count]) {
    static_assert(count == 1 || count == 2 || count == 4);
    at += g_ * int64_t{sizeof words};
    if constexpr (count == 1) return add(at, words[0]);
    if constexpr (count > 1) {
      const FourWords low = __builtin_shufflevector(words[0], words[1], 0, 4, 1, 5),
                      high = __builtin_shufflevector(words[0], words[1], 2, 6, 3, 7);
      if constexpr (count == 2) {
        add(at, low);
        add(at + 16, high);
      } else {
        const FourWords next_low = __builtin_shufflevector(words[2], words[3], 0, 4, 1, 5),
                        next_high = __builtin_shufflevector(words[2], words[3], 2, 6, 3, 7);
        add(at, __builtin_shufflevector(low, next_low, 0, 1, 4, 5));
        add(at + 16, __builtin_shufflevector(low, next_low, 2, 3, 6, 7));
        add(at + 32, __builtin_shufflevector(high, next_high, 0, 1, 4, 5));
        add(at + 48, __builtin_shufflevector(high, next_high, 2, 3, 6, 7));
      }
    }
  }

  // The weights of two steps, one per byte.
  static void take_part(const typename Codec::Block* blocks, int64_t part, FourWords& first, FourWords& second) {
    constexpr int64_t kParts = Codec::kElements / kPart;
    quant::Words words;
    quant::Parts<Codec>::words(blocks[part / kParts], static_cast<int>(part % kParts), words);
    std::memcpy(&first, words, sizeof first);
    std::memcpy(&second, words + 4, sizeof second);
  }

  // A value that leaves zeros where a row ends within a slice.
  static FourWords unused() { return FourWords{} + (kFormat.low == 8 ? quant::every_byte(0x80) : 0); }

  // Spreads `unit` bits of each of four weights: pairs r and 2 + r at `unit` bits each, seconds 16 bits above.
  FourWords spread(FourWords four, int unit) const {
    return ((four & 0xff) | (four >> 8 & 0xff) << 16 | (four >> 16 & 0xff) << (2 * unit) |
            (four >> 24) << (16 + 2 * unit))
           << (unit * r_);
  }

  // Places the weights of a slice. For each step, lane t's bytes are those of inputs 4 t to 4 t + 3.
  void place(int64_t slice, const FourWords (&steps)[kSteps]) {
    const int64_t at = slice * kLayout.slice_bytes();
    if constexpr (kFp4Panels<Form>) {
      FourWords words[kSteps];
      for (int i = 0; i < kSteps; i += 2) place_fp4(steps[i], steps[i + 1], words[i], words[i + 1]);
      add_lanes(at, words);
    } else if constexpr (kFormat.low == 8) {
      for (int two = 0; two < 2; ++two) {
        FourWords words[4];
        for (int i = 0; i < 2; ++i) {
          const FourWords four = steps[2 * two + i] ^ quant::every_byte(0x80);  // two's complement
          words[2 * i] = ((four & 0xff) | (four >> 8 & 0xff) << 16) << (8 * r_);
          words[2 * i + 1] = ((four >> 16 & 0xff) | (four >> 24) << 16) << (8 * r_);
        }
        add_lanes(at + two * 512, words);
      }
    } else if constexpr (std::is_same_v<Form, quant::NF4>) {
      FourWords words[kSteps];
      for (int i = 0; i < kSteps; ++i) {
        const FourWords four = steps[i];
        words[i] = ((four & 15) | (four >> 4 & 0xf0) | (four & 0xf0000) | (four >> 4 & 0xf00000)) << (8 * r_);
      }
      add_lanes(at, words);
    } else if constexpr (kFormat.low == 4) {
      FourWords words[kSteps];
      for (int i = 0; i < kSteps; ++i) words[i] = spread(steps[i] & quant::every_byte(15), 4);
      add_lanes(at, words);
    } else {
      add_twos(at, steps, 0);
    }
    const int64_t high = at + kLayout.low * 128;
    if constexpr (kFormat.high == 2) {
      add_twos(high, steps, kFormat.low);
    } else if constexpr (kFormat.high == 1) {
      FourWords words[1] = {};
      for (int i = 0; i < kSteps; ++i) {
        words[0] |= spread(steps[i] >> kFormat.low & quant::every_byte(1), 1) << (i * 4);
      }
      add_lanes(high, words);
    }
  }

  // Adds two bits of each weight, from bit `shift` on.
  void add_twos(int64_t at, const FourWords (&steps)[kSteps], int shift) {
    const auto bits = [&](int step) { return spread(steps[step] >> shift & quant::every_byte(3), 2); };
    add_lanes(at, {bits(0) | bits(1) << 8, bits(2) | bits(3) << 8});
  }

  // Makes the words of two steps of FP4.
  void place_fp4(FourWords first, FourWords second, FourWords& word, FourWords& next) const {
    const FourWords ends[2] = {fp4_pairs(first >> 16), fp4_pairs(second >> 16)};
    static_assert(Fp4Words::turn(0) == 0);
    if (r_ == 0) {
      word = fp4_pairs(first) | turned_back<Fp4Words::turn(2)>(ends[0]);
      next = fp4_pairs(second) | turned_back<Fp4Words::turn(2)>(ends[1]);
    } else {
      const FourWords both =
          turned_back<Fp4Words::last_turn(0)>(ends[0]) | turned_back<Fp4Words::last_turn(1)>(ends[1]);
      word = turned_back<Fp4Words::turn(1)>(fp4_pairs(first)) | (both & Fp4Words::kFirstRest);
      next = turned_back<Fp4Words::turn(1)>(fp4_pairs(second)) |
             turned_back<Fp4Words::kSecond>(both & ~Fp4Words::kFirstRest);
    }
  }
  // The codes in bytes 0 and 1 as a pair (kFp4Pair).
  static FourWords fp4_pairs(FourWords fours) {
    const FourWords both = (fours & 15) | (fours & 15 << 8) << 8;
    return (both & 0x00070007) << 6 | (both & 0x00080008) << 12;
  }
  template <int by>
  static FourWords turned_back(FourWords x) {
    static_assert(by > 0);
    return x >> by | x << (32 - by);
  }

  // Places the scales of block `i` of the row.
  void place_scales(int64_t i, const quant::ScaleBlock& s) {
    using quant::Scales;
    const auto scale_block = [&](int64_t slice) {
      return kLayout.scales_at(slices_) + (slice / kLayout.scale_slices * kPairsOfRows + g_) * kLayout.scale_words * 4;
    };
    const int half = static_cast<int>(i % 2);  // half of the slice, for blocks of 32
    const uint32_t both = s.halves[0] | static_cast<uint32_t>(s.halves[1]) << 16;
    if constexpr (kFormat.scales == Scales::kHalf) {
      add(scale_block(i / 2) + r_ * 4, static_cast<uint32_t>(s.halves[0]) << (16 * half));
    } else if constexpr (kFormat.scales == Scales::kHalfMin) {
      add(scale_block(i / 2) + (2 * r_ + half) * 4, both);
    } else if constexpr (kFormat.scales == Scales::kExponent) {
      if (s.halves[0] >= 0xfe) {
        throw Error(
            ErrorCode::kCorruptFile,
            fmt::format("weights of type {}: a scale is NaN or 2^127, which is not supported", Codec::kType.name));
      }
      add(scale_block(i / 2), static_cast<uint32_t>(s.halves[0] + 1) << (8 * (2 * r_ + half)));
    } else if constexpr (kFormat.scales == Scales::kFloat8) {
      static_assert(Codec::kElements == kPanelSlice);
      add(scale_block(i) + r_ * 4, quant::word_at(s.multipliers[0], 0));
      const int64_t row = kLayout.super_scales_at(slices_) + (g_ * kLayout.super_scale_words + r_) * 4;
      if (i == 0) add(row, both);
      CHECK(word_at(row) == both, "weights of type {}: a row has several scales of the tensor", Codec::kType.name);
    } else if constexpr (kFormat.scales == Scales::kGroup || kFormat.scales == Scales::kFloat) {
      constexpr int kSubs = kLayout.scale_words / 2;
      add(scale_block(i * Codec::kElements / kPanelSlice) + (kSubs * r_ + (kSubs == 2 ? half : 0)) * 4, both);
    } else {
      constexpr int kSubs = kPanelSlice / kFormat.sub_block;
      constexpr int kKinds = kFormat.mins() ? 2 : 1;
      for (int slice = 0; slice < kSlicesOfSuperScale; ++slice) {
        for (int kind = 0; kind < kKinds; ++kind) {
          for (int sub = 0; sub < kSubs; ++sub) {
            const int byte = (kind * 2 + r_) * kSubs + sub;
            add(scale_block(i * kSlicesOfSuperScale + slice) + byte / 4 * 4,
                static_cast<uint32_t>(s.multipliers[kind][slice * kSubs + sub]) << (8 * (byte % 4)));
          }
        }
      }
      const int64_t super_scale =
          kLayout.super_scales_at(slices_) + (i * kPairsOfRows + g_) * kLayout.super_scale_words * 4;
      if constexpr (kFormat.mins()) {
        add(super_scale + r_ * 4, both);
      } else {
        add(super_scale, static_cast<uint32_t>(s.halves[0]) << (16 * r_));
      }
    }
  }

  std::byte* panel_;
  const int64_t slices_;
  const int g_, r_;
};

// Packs rows of blocks into their places in a panel; null: no such row.
template <class Codec>
void pack_rows(const std::array<const typename Codec::Block*, kPanelOutputs>& rows, int64_t k, std::byte* panel) {
  static_assert(kPackedInputs % Codec::kElements == 0);
  for (int64_t begin = 0; begin < k; begin += kPackedInputs) {
    for (int output = 0; output < kPanelOutputs; ++output) {
      if (rows[output] == nullptr) continue;
      RowPacker<Codec>(panel, k, output).pack(rows[output], begin, std::min(begin + kPackedInputs, k));
    }
  }
}

}  // namespace sluice::cuda
