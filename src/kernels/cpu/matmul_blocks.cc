// Matmul with weights in block formats (src/quant): one template over the codecs, for formats without kernels of their
// own. Weights stay in their blocks. 256 inputs of a group of panels are decoded to fp32 in the CPU cache, once for all
// rows of a chunk. The tile kernel of the plain types multiplies them. Bound by decoding for few rows, by multiply-adds
// for many.
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/int8_panels.h"
#include "kernels/cpu/matmul_tile.h"
#include "quant/all.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kAhead = 4 << 10;            // prefetch distance
constexpr int64_t kStep = quant::kSuperBlock;  // inputs decoded at a time: a whole number of blocks in every format

// Moves values[lane][i] to panel[i][lane]; `count` is a multiple of 16.
SLUICE_INLINE void transpose(const float (&values)[kPanel][kStep], int64_t count, float* panel) {
  for (int64_t i = 0; i < count; i += kPanel) {
    for (int64_t j = 0; j < kPanel; ++j) {
      for (int64_t lane = 0; lane < kPanel; ++lane) panel[(i + j) * kPanel + lane] = values[lane][i + j];
    }
  }
}

// A panel of 8-bit floats: per 128 inputs [kPanel] scales, then [64][kPanel] pairs of adjacent inputs.
constexpr int64_t kFp8Scales = kPanel * int64_t{sizeof(float)};
constexpr int64_t kFp8Block = kPanel * int64_t{sizeof(quant::Fp8::Block)};

// Decodes `count` inputs of one panel.
void decode_fp8_panel(const std::byte* block, int64_t count, float* panel) {
  for (const float* end = panel + count * kPanel; panel < end; block += kFp8Block) {
    const std::byte* pairs = block + kFp8Scales;
    for (int64_t i = 0; i < quant::Fp8::kElements; i += 2, panel += 2 * kPanel, pairs += 2 * kPanel) {
      __builtin_prefetch(pairs + kAhead);
      SLUICE_UNROLL
      for (int64_t v = 0; v < kPanel; v += kLanes) {
        const Vec scale = load(reinterpret_cast<const float*>(block) + v, All{});
        Vec first, second;
        widen_fp8_pairs(pairs + 2 * v, first, second);
        store(panel + v, first * scale, All{});
        store(panel + kPanel + v, second * scale, All{});
      }
    }
  }
}

// R rows by P panels from `panel` on, decoded in registers. It uses the operations of a tile in the same order.
template <int R, int P>
void stream_fp8(const ops::MatmulArgs& args, int64_t panel) {
  const int64_t k = args.weight->k, panel_bytes = k / quant::Fp8::kElements * kFp8Block;
  const std::byte* block = args.weight->data + panel * panel_bytes;
  const auto* x = reinterpret_cast<const float*>(args.x.data);
  Vec acc[R][P * kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) acc[r][v] = zero();
  }
  for (const float* end = x + k; x < end; block += kFp8Block) {
    Vec scale[P * kVecs];
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) {
      scale[v] = load(reinterpret_cast<const float*>(block + v / kVecs * panel_bytes) + v % kVecs * kLanes, All{});
    }
    for (int64_t i = 0; i < quant::Fp8::kElements; i += 2, x += 2) {
      SLUICE_UNROLL
      for (int v = 0; v < P * kVecs; ++v) {
        const std::byte* pairs = block + v / kVecs * panel_bytes + kFp8Scales + i * kPanel + v % kVecs * 2 * kLanes;
        __builtin_prefetch(pairs + kAhead);
        Vec first, second;
        widen_fp8_pairs(pairs, first, second);
        first = first * scale[v], second = second * scale[v];
        SLUICE_UNROLL
        for (int r = 0; r < R; ++r) {
          const float* in = x + r * args.x.row_stride;
          acc[r][v] = fma(second, broadcast(in[1]), fma(first, broadcast(in[0]), acc[r][v]));
        }
      }
    }
  }
  finish<R, P>({.partial = nullptr, .first = true, .last = true, .args = &args, .row = 0, .column = panel * kPanel},
               acc);
}

// GEMV path: up to kMaxRows rows. Each panel is one stream from memory.
void multiply_few_fp8(ops::Queue& queue, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel;
  queue.threads().parallel_runs((panels + kGroup - 1) / kGroup, [&](int64_t begin, int64_t end) {
    const int64_t last = end * kGroup < panels ? end * kGroup : panels;
    const auto run = [&]<int R>() {
      constexpr int P = kRegisters == 16 ? 1 : R <= 2 ? kGroup : 2;
      int64_t panel = begin * kGroup;
      for (; panel + P <= last; panel += P) stream_fp8<R, P>(args, panel);
      for (; panel < last; ++panel) stream_fp8<R, 1>(args, panel);
    };
    static_assert(kMaxRows == 6);
    switch (args.x.shape[0]) {
      case 1:
        return run.template operator()<1>();
      case 2:
        return run.template operator()<2>();
      case 3:
        return run.template operator()<3>();
      case 4:
        return run.template operator()<4>();
      case 5:
        return run.template operator()<5>();
      case 6:
        return run.template operator()<6>();
    }
  });
}

// Decodes `count` inputs of one panel. The blocks are [count / kElements][kPanel], the layout of pack_blocks.
template <class Codec>
void decode_panel(const std::byte* blocks, int64_t count, float* panel) {
  if constexpr (std::is_same_v<Codec, quant::Fp8>) return decode_fp8_panel(blocks, count, panel);
  const auto* from = reinterpret_cast<const typename Codec::Block*>(blocks);
  alignas(64) float values[kPanel][kStep];
  for (int64_t i = 0; i < count; i += Codec::kElements) {
    for (int64_t lane = 0; lane < kPanel; ++lane) Codec::dequantize(*from++, values[lane] + i);
  }
  transpose(values, count, panel);
}

// One task: rows [row, row + rows) of the result, with inputs x, by `panels` panels starting at `panel`.
template <class Codec>
void multiply(const ops::MatmulArgs& args, Rows<F32> x, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  const int64_t k = args.weight->k;
  const auto bytes_of = [](int64_t inputs) {
    return inputs / Codec::kElements * kPanel * static_cast<int64_t>(sizeof(typename Codec::Block));
  };
  const std::byte* weights = args.weight->data + panel * bytes_of(k);
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  alignas(64) float decoded[kGroup][kStep * kPanel];
  alignas(64) float partial[kRowChunk * kGroup * kPanel];
  for (int64_t begin = 0; begin < k; begin += kStep) {
    const int64_t count = k - begin < kStep ? k - begin : kStep;
    for (int64_t p = 0; p < panels; ++p) {
      decode_panel<Codec>(weights + p * bytes_of(k) + bytes_of(begin), count, decoded[p]);
    }
    const Block block{reinterpret_cast<const std::byte*>(decoded), sizeof decoded[0], panels, count, 0};
    int64_t at = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t next = (t + 1) * rows / tiles;  // tiles of nearly equal height
      const Sums sums{.partial = partial + at * kGroup * kPanel,
                      .first = begin == 0,
                      .last = begin + count == k,
                      .args = &args,
                      .row = row + at,
                      .column = panel * kPanel};
      tile_rows<F32>(next - at, {x.data + at * x.stride + begin, x.stride}, block, sums, {t, tiles});
      at = next;
    }
  }
}

template <class Codec>
void matmul(ops::Queue& queue, const ops::MatmulArgs& args) {
  if constexpr (std::is_same_v<Codec, quant::Fp8>) {
    if (args.x.shape[0] <= kMaxRows) return multiply_few_fp8(queue, args);
  }
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t rows = args.x.shape[0], chunks = (rows + kRowChunk - 1) / kRowChunk;
  const Rows<F32> x{reinterpret_cast<const float*>(args.x.data), args.x.row_stride};
  queue.threads().parallel_for(groups * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / chunks, chunk = task % chunks;
      const int64_t first = chunk * rows / chunks, last = (chunk + 1) * rows / chunks;
      const int64_t count = panels - group * kGroup < kGroup ? panels - group * kGroup : kGroup;
      multiply<Codec>(args, {x.data + first * x.stride, x.stride}, first, last - first, group * kGroup, count);
    }
  });
}

template <class... Codecs>
kernels::Matmul find(DType format, quant::CodecList<Codecs...>) {
  kernels::Matmul found = nullptr;
  const auto look_at = [&]<class Codec>(const Codec*) {
    if constexpr (!kernels::kHasInt8<Codec>) {
      if (format == &Codec::kType) found = matmul<Codec>;
    }
  };
  (look_at(static_cast<const Codecs*>(nullptr)), ...);
  return found;
}

}  // namespace

kernels::Matmul matmul_blocks(DType format) { return find(format, quant::AllCodecs{}); }

}  // namespace sluice::SLUICE_ISA
