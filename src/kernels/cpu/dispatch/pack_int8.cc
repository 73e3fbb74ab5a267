// Packing for int8: each thread fills whole panels, column by column, four inputs (a word) at a time.
#include "kernels/cpu/dispatch/pack_int8.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/int8_panels.h"
#include "sluice/error.h"

namespace sluice::kernels {
namespace {

constexpr int kWords = 8;  // of four inputs, in a block of 32

// What is stored for one block of one column: eight words of unsigned quants.
using Words = uint32_t[kWords];

uint32_t word_at(const uint8_t* p, int i) { return quant::load_u32(p + 4 * i); }
constexpr uint32_t every_byte(uint32_t byte) { return byte * 0x01010101u; }

// 32 nibbles, element i beside element i + 16, as the 32-element formats store them.
void split_nibbles(const uint8_t* p, Words& words) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t both = word_at(p, i);
    words[i] = both & every_byte(15);
    words[i + 4] = both >> 4 & every_byte(15);
  }
}

// 32 bytes' bits [shift, shift + bits).
void take_bits(const uint8_t* p, int shift, uint32_t mask, Words& words) {
  for (int i = 0; i < kWords; ++i) words[i] = word_at(p, i) >> shift & every_byte(mask);
}

// Adds bit i of a 32-bit number to element i, at bit `to`.
void add_bits(uint32_t bits, int to, Words& words) {
  for (int i = 0; i < kWords; ++i) {
    const uint32_t four = bits >> (4 * i);
    words[i] |= ((four & 1) | (four & 2) << 7 | (four & 4) << 14 | (four & 8) << 21) << to;
  }
}

// Scales of a record in the order of Int8Layout: numbers of 16 bits, then multipliers.
struct RecordScales {
  uint16_t halves[2];
  uint8_t multipliers[2][16];  // of scales (int8 for kSuper), of minima
};

uint16_t negative_half(uint16_t half) { return half ^ 0x8000; }

// A source format: the quants of block `b` of a record, the record's scales.
template <class Codec>
struct Source;

template <>
struct Source<quant::Q8_0> {
  static void words(const quant::Q8_0::Block& block, int, Words& out) {
    for (int i = 0; i < kWords; ++i) {
      out[i] = word_at(reinterpret_cast<const uint8_t*>(block.qs), i) ^ every_byte(0x80);
    }
  }
  static RecordScales scales(const quant::Q8_0::Block& block) { return {.halves = {block.d}, .multipliers = {}}; }
};

template <class Codec>
struct NibbleSource {
  static void words(const typename Codec::Block& block, int, Words& out) {
    split_nibbles(block.qs, out);
    if constexpr (kInt8Layout<Codec>.high == 1) add_bits(quant::load_u32(block.qh), 4, out);
  }
  static RecordScales scales(const typename Codec::Block& block) {
    if constexpr (kInt8Layout<Codec>.mins()) {
      return {.halves = {block.d, block.m}, .multipliers = {}};
    } else {
      return {.halves = {block.d}, .multipliers = {}};
    }
  }
};
template <>
struct Source<quant::Q4_0> : NibbleSource<quant::Q4_0> {};
template <>
struct Source<quant::Q4_1> : NibbleSource<quant::Q4_1> {};
template <>
struct Source<quant::Q5_0> : NibbleSource<quant::Q5_0> {};
template <>
struct Source<quant::Q5_1> : NibbleSource<quant::Q5_1> {};
template <>
struct Source<quant::IQ4_NL> : NibbleSource<quant::IQ4_NL> {};

template <>
struct Source<quant::MXFP4> {
  static void words(const quant::MXFP4::Block& block, int, Words& out) { split_nibbles(block.qs, out); }
  static RecordScales scales(const quant::MXFP4::Block& block) { return {.halves = {block.e}, .multipliers = {}}; }
};

template <>
struct Source<quant::Q2_K> {
  static void words(const quant::Q2_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
  }
  static RecordScales scales(const quant::Q2_K::Block& block) {
    RecordScales s{.halves = {block.d, negative_half(block.dmin)}, .multipliers = {}};
    for (int i = 0; i < 16; ++i) {
      s.multipliers[0][i] = block.scales[i] & 15;
      s.multipliers[1][i] = block.scales[i] >> 4;
    }
    return s;
  }
};

template <>
struct Source<quant::Q3_K> {
  static void words(const quant::Q3_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 4 * 32, b % 4 * 2, 3, out);
    Words high;
    take_bits(block.hmask, b, 1, high);
    for (int i = 0; i < kWords; ++i) out[i] |= high[i] << 2;
  }
  static RecordScales scales(const quant::Q3_K::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 16; ++i) {
      const int low = block.scales[i % 8] >> (i / 8 * 4) & 15, high = block.scales[8 + i % 4] >> (i / 4 * 2) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
  }
};

RecordScales super_scales(uint16_t d, uint16_t dmin, const uint8_t (&packed)[12]) {
  RecordScales s{.halves = {d, negative_half(dmin)}, .multipliers = {}};
  const quant::ScalesAndMins unpacked = quant::unpack_scales(packed);
  std::copy_n(unpacked.scale, 8, s.multipliers[0]);
  std::copy_n(unpacked.min, 8, s.multipliers[1]);
  return s;
}

template <>
struct Source<quant::Q4_K> {
  static void words(const quant::Q4_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 2 * 32, b % 2 * 4, 15, out);
  }
  static RecordScales scales(const quant::Q4_K::Block& block) {
    return super_scales(block.d, block.dmin, block.scales);
  }
};

template <>
struct Source<quant::Q5_K> {
  static void words(const quant::Q5_K::Block& block, int b, Words& out) {
    take_bits(block.qs + b / 2 * 32, b % 2 * 4, 15, out);
    Words high;
    take_bits(block.qh, b, 1, high);
    for (int i = 0; i < kWords; ++i) out[i] |= high[i] << 4;
  }
  static RecordScales scales(const quant::Q5_K::Block& block) {
    return super_scales(block.d, block.dmin, block.scales);
  }
};

template <>
struct Source<quant::Q6_K> {
  static void words(const quant::Q6_K::Block& block, int b, Words& out) {
    const int half = b / 4, group = b % 4;
    take_bits(block.ql + half * 64 + group % 2 * 32, group / 2 * 4, 15, out);
    Words high;
    take_bits(block.qh + half * 32, group * 2, 3, high);
    for (int i = 0; i < kWords; ++i) out[i] |= high[i] << 4;
  }
  static RecordScales scales(const quant::Q6_K::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    std::memcpy(s.multipliers[0], block.scales, 16);
    return s;
  }
};

template <>
struct Source<quant::IQ4_XS> {
  static void words(const quant::IQ4_XS::Block& block, int b, Words& out) { split_nibbles(block.qs + b * 16, out); }
  static RecordScales scales(const quant::IQ4_XS::Block& block) {
    RecordScales s{.halves = {block.d}, .multipliers = {}};
    for (int i = 0; i < 8; ++i) {
      const int low = block.scales_l[i / 2] >> (i % 2 * 4) & 15, high = block.scales_h >> (2 * i) & 3;
      s.multipliers[0][i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    return s;
  }
};

// Rows of two bits of each word, from bit `shift` on, two byte rows in all.
void store_pairs(const Words& w, int shift, uint32_t* to) {
  for (int half = 0; half < 2; ++half) {
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) packed |= (w[4 * half + i] >> shift & every_byte(3)) << (2 * i);
    to[half * kPanel] = packed;
  }
}

// Words into one column (`to` points at its word of the first byte row) of a block of a panel.
template <Int8Layout Layout>
void store_words(const Words& w, uint32_t* to) {
  if constexpr (Layout.low == 8) {
    for (int i = 0; i < kWords; ++i) to[i * kPanel] = w[i];
  } else if constexpr (Layout.low == 4) {
    for (int i = 0; i < 4; ++i) to[i * kPanel] = (w[i] & every_byte(15)) | (w[i + 4] & every_byte(15)) << 4;
  } else {
    store_pairs(w, 0, to);
  }
  uint32_t* high = to + Layout.low * kPanel;
  if constexpr (Layout.high == 2) {
    store_pairs(w, Layout.low, high);
  } else if constexpr (Layout.high == 1) {
    uint32_t packed = 0;
    for (int i = 0; i < kWords; ++i) packed |= (w[i] >> Layout.low & every_byte(1)) << i;
    *high = packed;
  }
}

template <Int8Layout Layout>
void store_scales(const RecordScales& s, std::byte* record, int64_t column) {
  if constexpr (Layout.scales == Scales::kExponent) {
    record[column] = static_cast<std::byte>(s.halves[0]);
    return;
  }
  constexpr int kHalves = Layout.mins() ? 2 : 1;
  for (int i = 0; i < kHalves; ++i) std::memcpy(record + (i * kPanel + column) * 2, &s.halves[i], 2);
  if constexpr (Layout.two_level()) {
    std::byte* multipliers = record + kHalves * 2 * kPanel;
    for (int i = 0; i < kHalves; ++i) {
      for (int64_t j = 0; j < Layout.multipliers() / kPanel; ++j) {
        multipliers[i * Layout.multipliers() + j * kPanel + column] = static_cast<std::byte>(s.multipliers[i][j]);
      }
    }
  }
}

// One row of blocks into a column of a panel.
template <class Codec>
void store_column(const typename Codec::Block* blocks, int64_t k, std::byte* panel, int64_t column) {
  constexpr Int8Layout kLayout = kInt8Layout<Codec>;
  constexpr int64_t kBlocks = Codec::kElements / kQuantBlock, kRecords = kChunk / Codec::kElements;
  const int64_t records = k / Codec::kElements;
  for (int64_t first = 0; first < records; first += kRecords) {
    const int64_t count = std::min(kRecords, records - first);
    std::byte* scales = panel;
    panel += kLayout.scale_bytes(count * kBlocks);
    for (int64_t r = first; r < first + count; ++r, scales += kLayout.record_bytes()) {
      store_scales<kLayout>(Source<Codec>::scales(blocks[r]), scales, column);
      for (int64_t b = 0; b < kBlocks; ++b, panel += kLayout.quant_bytes()) {
        Words words;
        Source<Codec>::words(blocks[r], static_cast<int>(b), words);
        store_words<kLayout>(words, reinterpret_cast<uint32_t*>(panel) + column);
      }
    }
  }
}

template <class Codec>
size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>((n + kPanel - 1) / kPanel * kInt8Layout<Codec>.panel_bytes(k));
}

template <class Codec>
void pack(ThreadPool& pool, const ops::Weight& into, int64_t row, const Tensor& from) {
  using Block = typename Codec::Block;
  const int64_t k = into.k, blocks = k / Codec::kElements;
  CHECK(from.shape.rank() == 2 && from.shape[1] == k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, k);
  CHECK(k % Codec::kElements == 0, "{} inputs in blocks of {}", k, Codec::kElements);
  const bool same = from.dtype == into.dtype;
  if (!same && (from.dtype->decode == nullptr || into.dtype->encode == nullptr)) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("weights of type {} are not converted to {}", from.dtype->name, into.dtype->name));
  }
  const int64_t bytes = kInt8Layout<Codec>.panel_bytes(k), last = row + from.rows();
  const int64_t source_row = from.row_stride / from.dtype->block_size * from.dtype->block_bytes;
  pool.parallel_for((last + kPanel - 1) / kPanel - row / kPanel, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    std::vector<Block> quantized;
    for (int64_t panel = row / kPanel + begin; panel < row / kPanel + end; ++panel) {
      const int64_t first = std::max(row, panel * kPanel), stop = std::min(last, (panel + 1) * kPanel);
      for (int64_t r = first; r < stop; ++r) {
        const std::byte* source = from.data + (r - row) * source_row;
        if (!same) {
          values.resize(static_cast<size_t>(k));
          quantized.resize(static_cast<size_t>(blocks));
          to_float(from.dtype, source, values.data(), values.size());
          from_float(into.dtype, values.data(), reinterpret_cast<std::byte*>(quantized.data()), values.size());
          source = reinterpret_cast<const std::byte*>(quantized.data());
        }
        store_column<Codec>(reinterpret_cast<const Block*>(source), k, into.data + panel * bytes, r % kPanel);
      }
    }
  });
}

template <class... Codecs>
ops::MatmulKernels find(DType format, quant::CodecList<Codecs...>) {
  ops::MatmulKernels found;
  const auto look_at = [&]<class Codec>(const Codec*) {
    if constexpr (kHasInt8<Codec>) {
      if (format == &Codec::kType) found = {.packed_bytes = packed_bytes<Codec>, .pack = pack<Codec>};
    }
  };
  (look_at(static_cast<const Codecs*>(nullptr)), ...);
  found.int8_block = kQuantBlock;
  return found;
}

}  // namespace

ops::MatmulKernels int8_packing(DType format) { return find(format, quant::AllCodecs{}); }

}  // namespace sluice::kernels
