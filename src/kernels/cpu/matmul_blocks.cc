// Products with weights in block formats (src/quant): one template over their codecs for all that has no kernel of its
// own. Weights stay in their blocks; 256 inputs of a group of panels are decoded to fp32 in the cache, once for all
// rows of a chunk, and multiplied by the tile kernel of the plain types. Bound by the decoding for few rows, by
// multiply-adds for many.
#include "base/thread_pool.h"
#include "kernels/cpu/int8_panels.h"
#include "kernels/cpu/matmul_tile.h"
#include "quant/all.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kAhead = 4 << 10;            // how far memory is asked for what comes
constexpr int64_t kStep = quant::kSuperBlock;  // inputs decoded at a time: a whole number of blocks of every format

// values[lane][i] to panel[i][lane]; `count` is a multiple of 16.
SLUICE_INLINE void transpose(const float (&values)[kPanel][kStep], int64_t count, float* panel) {
  for (int64_t i = 0; i < count; i += kPanel) {
    for (int64_t j = 0; j < kPanel; ++j) {
      for (int64_t lane = 0; lane < kPanel; ++lane) panel[(i + j) * kPanel + lane] = values[lane][i + j];
    }
  }
}

// `count` inputs of one panel: per 128 of them [kPanel] scales and [128][kPanel] numbers.
void decode_fp8_panel(const std::byte* blocks, int64_t count, float* panel) {
  for (const float* end = panel + count * kPanel; panel < end;) {
    const auto* scales = reinterpret_cast<const float*>(blocks);
    const auto* numbers = reinterpret_cast<const Fp8*>(scales + kPanel);
    blocks += kPanel * sizeof(quant::Fp8::Block);
    for (int64_t i = 0; i < quant::Fp8::kElements; ++i, panel += kPanel, numbers += kPanel) {
      SLUICE_UNROLL
      for (int64_t v = 0; v < kPanel; v += kLanes) {
        __builtin_prefetch(numbers + kAhead);
        store(panel + v, load(numbers + v, All{}) * load(scales + v, All{}), All{});
      }
    }
  }
}

// `count` inputs of one panel: blocks are [count / kElements][kPanel], as pack_blocks orders them.
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

// One task: rows [row, row + rows) of the result, whose inputs are x, by `panels` panels from `panel` on.
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
void matmul(ThreadPool& pool, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t rows = args.x.shape[0], chunks = (rows + kRowChunk - 1) / kRowChunk;
  const Rows<F32> x{reinterpret_cast<const float*>(args.x.data), args.x.row_stride};
  pool.parallel_for(groups * chunks, 1, [&](int64_t begin, int64_t end) {
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
