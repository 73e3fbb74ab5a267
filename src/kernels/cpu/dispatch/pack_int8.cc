// Packs weights for int8 matmuls. Each thread fills whole panels, column by column, four inputs (a word) at a time.
#include "kernels/cpu/dispatch/pack_int8.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/int8_panels.h"
#include "quant/integer_blocks.h"
#include "sluice/error.h"

namespace sluice::kernels {
namespace {

using quant::every_byte;
using quant::kWords;
using quant::ScaleBlock;
using quant::Words;

// Stores two bits of each word, from bit `shift` on, in two byte rows.
void store_pairs(const Words& w, int shift, uint32_t* to) {
  for (int half = 0; half < 2; ++half) {
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) packed |= (w[4 * half + i] >> shift & every_byte(3)) << (2 * i);
    to[half * kPanel] = packed;
  }
}

// Stores the words of a block into one column of a panel. `to` points at the column's word in the first byte row.
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
    for (int i = 0; i < kWords; ++i) {
      // `bits` needs a name because of GCC 12 with -fsanitize=bounds,shift. In templates it computes the checked index
      // of a shift operand with a call only on the error path, so w[i] would read another element.
      const uint32_t bits = w[i] >> Layout.low & every_byte(1);
      packed |= bits << i;
    }
    *high = packed;
  }
}

template <Int8Layout Layout>
void store_scales(const ScaleBlock& s, std::byte* scale_block, int64_t column) {
  if constexpr (Layout.scales == Scales::kExponent) {
    scale_block[column] = static_cast<std::byte>(s.halves[0]);
    return;
  }
  if constexpr (Layout.scales == Scales::kGroup) {
    const uint32_t word = s.halves[0] | static_cast<uint32_t>(s.halves[1]) << 16;
    std::memcpy(scale_block + column * 4, &word, sizeof word);
    return;
  }
  constexpr int kHalves = Layout.mins() ? 2 : Layout.halves;
  for (int i = 0; i < kHalves; ++i) std::memcpy(scale_block + (i * kPanel + column) * 2, &s.halves[i], 2);
  if constexpr (Layout.two_level()) {
    std::byte* multipliers = scale_block + kHalves * 2 * kPanel;
    for (int i = 0; i < kHalves; ++i) {
      for (int64_t j = 0; j < Layout.multipliers() / kPanel; ++j) {
        multipliers[i * Layout.multipliers() + j * kPanel + column] = static_cast<std::byte>(s.multipliers[i][j]);
      }
    }
  }
}

// Packs one row of blocks into a column of a panel.
template <class Codec>
void store_column(const typename Codec::Block* blocks, int64_t k, std::byte* panel, int64_t column) {
  constexpr Int8Layout kLayout = kInt8Layout<Codec>;
  constexpr int64_t kBlocks = Codec::kElements / kQuantBlock, kScaleBlocks = kChunk / Codec::kElements;
  const int64_t scale_blocks = k / Codec::kElements;
  for (int64_t first = 0; first < scale_blocks; first += kScaleBlocks) {
    const int64_t count = std::min(kScaleBlocks, scale_blocks - first);
    std::byte* scales = panel;
    panel += kLayout.scale_bytes(count * kBlocks);
    for (int64_t r = first; r < first + count; ++r, scales += kLayout.scale_block_bytes()) {
      store_scales<kLayout>(quant::Parts<Codec>::scales(blocks[r]), scales, column);
      for (int64_t b = 0; b < kBlocks; ++b, panel += kLayout.quant_bytes()) {
        Words words;
        quant::Parts<Codec>::words(blocks[r], static_cast<int>(b), words);
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
void pack(ops::Queue& queue, const ops::Weight& into, int64_t row, const Tensor& from) {
  using Block = typename Codec::Block;
  const int64_t k = into.k, blocks = k / Codec::kElements;
  CHECK(from.shape.rank() == 2 && from.shape[1] == k && row >= 0 && row + from.rows() <= into.n,
        "rows from {} of {} into [{}, {}]", row, from.shape.str(), into.n, k);
  CHECK(k % Codec::kElements == 0, "{} inputs in blocks of {}", k, Codec::kElements);
  const bool same = from.dtype == into.dtype;
  if (!same && (from.dtype->decode == nullptr || into.dtype->encode == nullptr)) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("cannot convert weights of type {} to {}", from.dtype->name, into.dtype->name));
  }
  const int64_t bytes = kInt8Layout<Codec>.panel_bytes(k), last = row + from.rows();
  const int64_t source_row = from.row_stride / from.dtype->block_size * from.dtype->block_bytes;
  queue.threads().parallel_for((last + kPanel - 1) / kPanel - row / kPanel, 1, [&](int64_t begin, int64_t end) {
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
