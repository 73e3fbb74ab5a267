// Matmul of activations [tokens, k] with weights of plain types. One tile kernel (matmul_tile.h) serves every number of
// rows.
//
// Few rows (GEMV path): each group of panels is one stream from memory, bound by bandwidth. Many rows: a block of
// weights that fits in L1 is read once and multiplied with all rows of a chunk, bound by multiply-adds.
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/matmul_tile.h"

namespace sluice::SLUICE_ISA {
namespace {

constexpr int64_t kBlockBytes = 6 << 10;  // bytes of a panel per block over k: four panels fill half of L1

struct F16 : F32 {
  static constexpr int64_t kBytes = 2;
  template <int>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    return load(reinterpret_cast<const Fp16*>(p), All{});
  }
};

#ifdef __AVX512BF16__
// Two inputs at a time. x is rounded to bf16; multiplications and sums are fp32.
struct B16 {
  using Input = uint32_t;
  static constexpr int kUnits = 1;
  static constexpr int64_t kStored = 2, kBytes = 2;
  template <int>
  SLUICE_INLINE static __m512i weights(const std::byte* p) {
    return _mm512_loadu_si512(p);
  }
  SLUICE_INLINE static Vec multiply_add(__m512i w, Input x, Vec sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(_mm512_set1_epi32(int(x))));
  }
};
#else
// Even and odd inputs are the low and high halves of the stored pairs.
struct B16 : F32 {
  static constexpr int kUnits = 2;
  static constexpr int64_t kStored = 2, kBytes = 2;
  template <int Unit>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    // Reads the pairs again: kept for both units, they would push sums out of the registers.
    if (Unit == 1) __asm__("" : "+r"(p));
    const Vec pairs = load(reinterpret_cast<const float*>(p), All{});
    return widen_part<Unit>(pairs, Bf16{});
  }
};
#endif

// One task: rows [row, row + rows) of the result, with inputs x, by `panels` panels starting at `panel`.
template <class Codec>
void multiply(const ops::MatmulArgs& args, Rows<Codec> x, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  constexpr int64_t kUnitBytes = kPanel * Codec::kStored * Codec::kBytes / Codec::kUnits;
  constexpr int64_t kInputsPerUnit = Codec::kStored / Codec::kUnits;
  constexpr int64_t kBlock = kBlockBytes / kUnitBytes / 2 * 2;
  const int64_t units = (args.weight->k + kInputsPerUnit - 1) / kInputsPerUnit;
  const int64_t bytes = kernels::panel_bytes(args.weight->k, Codec::kStored, Codec::kBytes);
  const std::byte* weights = args.weight->data + panel * bytes;
  const int64_t tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t step = tiles == 1 ? units : kBlock;
  alignas(64) float partial[kRowChunk * kGroup * kPanel];
  for (int64_t begin = 0; begin < units; begin += step) {
    const int64_t count = units - begin < step ? units - begin : step;
    const bool last = begin + count == units;
    const Block block{weights + begin * kUnitBytes, bytes, panels, count, last ? 0 : count * kUnitBytes};
    int64_t at = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t next = (t + 1) * rows / tiles;  // tiles of nearly equal height
      const Sums sums{.partial = step < units ? partial + at * kGroup * kPanel : nullptr,
                      .first = begin == 0,
                      .last = last,
                      .args = &args,
                      .row = row + at,
                      .column = panel * kPanel};
      tile_rows<Codec>(next - at, {x.data + at * x.stride + begin, x.stride}, block, sums, {t, tiles});
      at = next;
    }
  }
}

#ifdef __AVX512BF16__
// Rounds rows [row, row + rows) of x to bf16 in the pool's scratch memory (at most kPassRows * k * 2 bytes). Rows are
// padded to pairs with zeros. Their stride is an odd number of cache lines, so that a tile's rows fall into different
// cache sets.
Rows<B16> inputs(ops::Queue& queue, const Tensor& x, int64_t row, int64_t rows, const B16*) {
  constexpr int64_t kLinePairs = 16;
  const int64_t k = x.shape[1];
  const int64_t stride = ((k + 1) / 2 + kLinePairs - 1) / kLinePairs / 2 * 2 * kLinePairs + 3 * kLinePairs;
  auto* pairs =
      reinterpret_cast<uint32_t*>(queue.threads().scratch(static_cast<size_t>(rows * stride) * sizeof(uint32_t)));
  constexpr int64_t kGrain = 1 << 15;  // elements worth handing to another thread
  queue.threads().parallel_for(rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = reinterpret_cast<const float*>(x.data) + (row + r) * x.row_stride;
      auto* to = reinterpret_cast<Bf16*>(pairs + r * stride);
      each_vec(k, [&](int64_t i, auto n) { store(to + i, load(from + i, n), n); });
      if (k % 2 != 0) to[k].bits = 0;
    }
  });
  return {pairs, stride};
}
#endif

// Codecs that multiply in fp32 read x in place.
template <class Codec>
Rows<Codec> inputs(ops::Queue&, const Tensor& x, int64_t row, int64_t, const Codec*) {
  return {reinterpret_cast<const float*>(x.data) + row * x.row_stride, x.row_stride};
}

template <class Codec>
void matmul(ops::Queue& queue, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t total = args.x.shape[0];
  for (int64_t pass = 0; pass < total; pass += kPassRows) {
    const int64_t rows = total - pass < kPassRows ? total - pass : kPassRows;
    const Rows<Codec> x = inputs(queue, args.x, pass, rows, static_cast<const Codec*>(nullptr));
    const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
    // Chunks of the same group of panels are consecutive, so its weights are read from memory once.
    queue.threads().parallel_for(groups * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / chunks, chunk = task % chunks;
        const int64_t first = chunk * rows / chunks, last = (chunk + 1) * rows / chunks;
        const int64_t count = panels - group * kGroup < kGroup ? panels - group * kGroup : kGroup;
        multiply<Codec>(args, {x.data + first * x.stride, x.stride}, pass + first, last - first, group * kGroup, count);
      }
    });
  }
}

}  // namespace

void matmul_f32(ops::Queue& queue, const ops::MatmulArgs& args) { matmul<F32>(queue, args); }
void matmul_bf16(ops::Queue& queue, const ops::MatmulArgs& args) { matmul<B16>(queue, args); }
void matmul_fp16(ops::Queue& queue, const ops::MatmulArgs& args) { matmul<F16>(queue, args); }

}  // namespace sluice::SLUICE_ISA
