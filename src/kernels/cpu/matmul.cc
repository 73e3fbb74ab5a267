// Products of activations [tokens, k] with packed weights (kernels/cpu/panels.h), templates over a codec that knows one
// stored type. One tile kernel serves every number of rows: Rows x Panels accumulators in registers, k ascending, one
// accumulator per (row, column). Blocks over k spill and reload exact fp32, so a row's bits depend on nothing but the
// row: not on the batch, the tile it fell into, or the thread.
//
// Few rows: each panel group is one stream from memory, bound by bandwidth. Many rows: a block of weights sized for
// the first cache is read once and multiplied with all rows of a chunk, bound by multiply-adds.
#include <type_traits>

#include "base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/simd.h"

namespace sluice::SLUICE_ISA {
namespace {

using kernels::kPanel;

constexpr int kVecs = kPanel / kLanes;        // vectors per panel
constexpr int kMaxRows = 6;                   // rows of the largest tile
constexpr int kGroup = 4;                     // panels handed out together
constexpr int64_t kRowChunk = 32 * kMaxRows;  // rows multiplied with a block of weights while it is in the cache
constexpr int64_t kPassRows = 4 * kRowChunk;  // rows per pass over the weights: bounds the scratch memory
constexpr int64_t kBlockBytes = 6 << 10;      // of one panel per block over k: four panels fill half the first cache

constexpr int64_t kAheadBytes = 2 << 10;  // how far a lone tile asks memory for what comes in its panels

// Panels per tile: as many accumulators as leave registers for weights and inputs.
template <int Rows>
constexpr int kPanels = kRegisters == 32 ? kGroup
                        : Rows == 1      ? 4
                        : Rows <= 3      ? 2
                                         : 1;

// A codec: Input is one element of x as the kernel reads it, kUnits inputs are stored side by side in kUnitBytes for
// each panel, weights<U>() decodes 16 columns of unit U.
struct F32 {
  using Input = float;
  static constexpr int kUnits = 1;
  static constexpr int64_t kStored = 1, kBytes = 4;
  template <int>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    return load(reinterpret_cast<const float*>(p), All{});
  }
  SLUICE_INLINE static Vec multiply_add(Vec w, Input x, Vec sum) { return fma(w, broadcast(x), sum); }
};

struct F16 : F32 {
  static constexpr int64_t kBytes = 2;
  template <int>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    return load(reinterpret_cast<const Fp16*>(p), All{});
  }
};

#ifdef __AVX512BF16__
// Two inputs at a time, x rounded to bf16; products and sums in fp32.
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
// Even and odd inputs are the low and the high halves of the stored pairs.
struct B16 : F32 {
  static constexpr int kUnits = 2;
  static constexpr int64_t kStored = 2, kBytes = 2;
  template <int Unit>
  SLUICE_INLINE static Vec weights(const std::byte* p) {
    // Reads the pairs twice: kept for both units they would push sums out of the registers.
    if (Unit == 1) __asm__("" : "+r"(p));
    const Vec pairs = load(reinterpret_cast<const float*>(p), All{});
    return Unit == 0 ? widen_low(pairs, Bf16{}) : widen_high(pairs, Bf16{});
  }
};
#endif

// Where a tile's sums come from and go to.
struct Sums {
  float* partial;    // [rows][kGroup * kPanel]: sums of the blocks before, null when there is one block
  bool first, last;  // of the blocks over k
  const ops::MatmulArgs* args;
  int64_t row, column;  // of the tile in args->out
};

// The rows of x the kernel reads, `stride` inputs apart.
template <class Codec>
struct Rows {
  const typename Codec::Input* data;
  int64_t stride;
};

template <int R, int P>
SLUICE_INLINE void finish(const Sums& sums, const Vec (&acc)[R][P * kVecs]) {
  const ops::MatmulArgs& args = *sums.args;
  const int64_t n = args.weight->n;
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    float* out = reinterpret_cast<float*>(args.out.data) + (sums.row + r) * args.out.row_stride;
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) {
      const int64_t column = sums.column + v * kLanes;
      const auto emit = [&](auto extent) {
        Vec y = acc[r][v];
        if (args.bias != nullptr) y = y + load(args.bias + column, extent);
        if (args.accumulate) y = load(out + column, extent) + y;
        store(out + column, y, extent);
      };
      if (column + kLanes <= n) {
        emit(All{});
      } else if (column < n) {
        emit(First{static_cast<int>(n - column)});
      }
    }
  }
}

// One unit of k: decodes P panels' weights and multiplies them with R inputs.
template <class Codec, int Unit, int R, int P>
SLUICE_INLINE void step(const std::byte* weights, int64_t panel_bytes, const typename Codec::Input* x, int64_t stride,
                        Vec (&acc)[R][P * kVecs]) {
  constexpr int64_t kVecBytes = kLanes * Codec::kStored * Codec::kBytes;
  decltype(Codec::template weights<Unit>(weights)) w[P * kVecs];
  SLUICE_UNROLL
  for (int v = 0; v < P * kVecs; ++v) {
    w[v] = Codec::template weights<Unit>(weights + v / kVecs * panel_bytes + v % kVecs * kVecBytes);
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) acc[r][v] = Codec::multiply_add(w[v], x[r * stride], acc[r][v]);
  }
}

// The weights that a tile multiplies: `units` of k of `panels` panels, `panel_bytes` apart.
struct Block {
  const std::byte* weights;
  int64_t panel_bytes;
  int64_t panels;
  int64_t units;
  int64_t next;  // bytes to the block multiplied after this one; 0 when there is none

  Block from(int64_t panel) const { return {weights + panel * panel_bytes, panel_bytes, panels - panel, units, next}; }
};

// What a tile asks memory for while it computes: lines of the next block over k, of two panels, one of each per step.
struct Ahead {
  const std::byte* first;
  const std::byte* second;
};

// R rows by the first P panels of the block.
template <class Codec, int R, int P>
void tile(Rows<Codec> x, const Block& block, const Sums& sums, Ahead ahead) {
  constexpr int64_t kStepBytes = kPanel * Codec::kStored * Codec::kBytes;
  Vec acc[R][P * kVecs];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) {
      acc[r][v] = sums.first ? zero() : load(sums.partial + r * kGroup * kPanel + v * kLanes, All{});
    }
  }
  const typename Codec::Input* input = x.data;
  const std::byte* weights = block.weights;
  const int64_t panel_bytes = block.panel_bytes, steps = block.units / Codec::kUnits;
  for (int64_t i = 0; i < steps; ++i) {
    __builtin_prefetch(ahead.first + i * kStepBytes, 0, 2);
    __builtin_prefetch(ahead.second + i * kStepBytes, 0, 2);
    step<Codec, 0, R, P>(weights, panel_bytes, input, x.stride, acc);
    if constexpr (Codec::kUnits == 2) step<Codec, 1, R, P>(weights, panel_bytes, input + 1, x.stride, acc);
    weights += kStepBytes;
    input += Codec::kUnits;
  }
  if constexpr (Codec::kUnits == 2) {
    if (block.units % 2 != 0) step<Codec, 0, R, P>(weights, panel_bytes, input, x.stride, acc);
  }
  if (sums.last) return finish<R, P>(sums, acc);
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < P * kVecs; ++v) store(sums.partial + r * kGroup * kPanel + v * kLanes, acc[r][v], All{});
  }
}

// Which of the tiles that multiply the same block in turn.
struct Turn {
  int64_t tile, tiles;
};

// R rows by all panels of the block. Tiles share out the panels of the next block to ask for: the memory works while
// all of them compute, not only while the first one finds its weights missing.
template <class Codec, int R>
void tile_row(Rows<Codec> x, const Block& block, Sums sums, Turn turn) {
  constexpr int P = kPanels<R>;
  const int64_t sharing = turn.tiles < kGroup ? turn.tiles : kGroup;
  int64_t panel = 0;
  const auto run = [&]<int Panels>() {
    const Block rest = block.from(panel);
    const std::byte* soon = rest.weights + (turn.tiles == 1 ? kAheadBytes : 0);  // without: asks for nothing new
    Ahead ahead{soon, soon + (Panels - 1) * rest.panel_bytes};
    if (rest.next != 0 && turn.tile < sharing) {
      const std::byte* next = rest.weights + rest.next;
      if (Panels == kGroup) {
        ahead.first = next + turn.tile * kGroup / sharing * rest.panel_bytes;
        ahead.second = next + ((turn.tile + 1) * kGroup - 1) / sharing * rest.panel_bytes;
      } else if (panel % sharing == turn.tile) {
        ahead = {next, next + (Panels - 1) * rest.panel_bytes};
      }
    }
    tile<Codec, R, Panels>(x, rest, sums, ahead);
    panel += Panels;
    sums.column += Panels * kPanel;
    if (sums.partial != nullptr) sums.partial += Panels * kPanel;
  };
  while (panel + P <= block.panels) run.template operator()<P>();
  while (panel < block.panels) run.template operator()<1>();
}

template <class Codec>
void tile_rows(int64_t rows, Rows<Codec> x, const Block& block, const Sums& sums, Turn turn) {
  static_assert(kMaxRows == 6);
  switch (rows) {
    case 1:
      return tile_row<Codec, 1>(x, block, sums, turn);
    case 2:
      return tile_row<Codec, 2>(x, block, sums, turn);
    case 3:
      return tile_row<Codec, 3>(x, block, sums, turn);
    case 4:
      return tile_row<Codec, 4>(x, block, sums, turn);
    case 5:
      return tile_row<Codec, 5>(x, block, sums, turn);
    case 6:
      return tile_row<Codec, 6>(x, block, sums, turn);
  }
}

// One task: rows [row, row + rows) of the result, whose inputs are x, by `panels` panels from `panel` on.
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
// Rows [row, row + rows) of x rounded to bf16 in the pool's scratch memory (at most kPassRows * k * 2 bytes). Rows are
// padded to pairs with zeros, and apart by an odd number of cache lines so that a tile's rows fall into different sets.
Rows<B16> inputs(ThreadPool& pool, const Tensor& x, int64_t row, int64_t rows, const B16*) {
  constexpr int64_t kLinePairs = 16;
  const int64_t k = x.shape[1];
  const int64_t stride = ((k + 1) / 2 + kLinePairs - 1) / kLinePairs / 2 * 2 * kLinePairs + 3 * kLinePairs;
  auto* pairs = reinterpret_cast<uint32_t*>(pool.scratch(static_cast<size_t>(rows * stride) * sizeof(uint32_t)));
  constexpr int64_t kGrain = 1 << 15;  // elements worth handing to another thread
  pool.parallel_for(rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
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

// Codecs that multiply fp32 read x where it is.
template <class Codec>
Rows<Codec> inputs(ThreadPool&, const Tensor& x, int64_t row, int64_t, const Codec*) {
  return {reinterpret_cast<const float*>(x.data) + row * x.row_stride, x.row_stride};
}

template <class Codec>
void matmul(ThreadPool& pool, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t total = args.x.shape[0];
  for (int64_t pass = 0; pass < total; pass += kPassRows) {
    const int64_t rows = total - pass < kPassRows ? total - pass : kPassRows;
    const Rows<Codec> x = inputs(pool, args.x, pass, rows, static_cast<const Codec*>(nullptr));
    const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
    // Chunks of one group of panels follow each other, so that its weights come from memory once.
    pool.parallel_for(groups * chunks, 1, [&](int64_t begin, int64_t end) {
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

void matmul_f32(ThreadPool& pool, const ops::MatmulArgs& args) { matmul<F32>(pool, args); }
void matmul_bf16(ThreadPool& pool, const ops::MatmulArgs& args) { matmul<B16>(pool, args); }
void matmul_fp16(ThreadPool& pool, const ops::MatmulArgs& args) { matmul<F16>(pool, args); }

}  // namespace sluice::SLUICE_ISA
