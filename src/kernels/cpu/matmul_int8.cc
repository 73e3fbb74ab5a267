// Matmul with block-quantized weights (kernels/cpu/int8_panels.h) in int8. x is rounded to int8 per 32 inputs. Dot
// products of blocks are exact integers. fp32 sums add them times both scales, in ascending order of blocks, then the
// minima. The order is the same on every path, so a row's bits depend only on the row.
//
// Up to kFewRows rows take the GEMV path: every panel is one stream from memory, decoded in registers for at most
// kStreamRows rows at a time. With more rows, a chunk of kGroup panels is decoded once, stays in L1, and is multiplied
// with a chunk of rows.
#include <type_traits>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/cpu/int8_codecs.h"
#include "kernels/cpu/int8_input.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_emit.h"
#ifdef __AMX_INT8__
#include "kernels/cpu/amx/int8_tile.h"
#endif

namespace sluice::SLUICE_ISA {
namespace {

using kernels::kChunkBlocks;
using kernels::kQuantBlock;

constexpr int kVecs = kPanel / kLanes;                 // vectors per panel
constexpr int kStreamRows = kRegisters == 32 ? 8 : 4;  // rows per pass over a stream
constexpr int kFewRows = 2 * kStreamRows;              // most rows on the GEMV path
constexpr int kGroup = 4;                              // panels handed out together
constexpr int kColumns = kGroup * kPanel;              // columns of a group
#ifdef __AMX_INT8__
constexpr bool kTiles = true;
constexpr int kMaxRows = kTileRows;
#else
constexpr bool kTiles = false;
constexpr int kMaxRows = kRegisters == 32 ? 6 : 4;  // rows of a tile of two vectors of columns
#endif
constexpr int64_t kRowChunk = 32 * 6;         // rows multiplied with one decoded chunk
constexpr int64_t kPassRows = 4 * kRowChunk;  // rows per pass over the weights: bounds the scratch memory
// Prefetch distance of the GEMV path, and the locality hint that selects the target cache. Multiples of 4 KiB are
// slower than the values next to them.
constexpr int64_t kAheadBytes = kRegisters == 32 ? 4 << 10 : 10 << 10;
constexpr int kAheadInto = kRegisters == 32 ? 3 : 2;

template <class Codec>
constexpr Int8Traits kTraits{Codec::kSubs, Codec::kLayout.mins(), Codec::kWide, Codec::kTogether};

// Returns sum + (dot product) * scales of a block's part, + minimum.
template <Int8Traits Traits>
SLUICE_INLINE Vec add_part(Vec sum, Bytes products, const InputBlock<Traits>& x, int part, Vec scale, Vec min) {
  sum = fma(lanes_to_float(products), scale * broadcast(x.scale), sum);
  if constexpr (Traits.mins) sum = fma(min, broadcast(x.sums[part]), sum);
  return sum;
}

template <Int8Traits Traits>
SLUICE_INLINE Bytes start(const InputBlock<Traits>& x, int part) {
  if constexpr (Traits.mins)
    return broadcast_lane(0);
  else
    return broadcast_lane(x.sums[part]);
}

// Prefetches kAheadBytes past a part of a stream. Functions that only prefetch must be inlined: GCC considers them free
// of effects and drops their calls.
template <int64_t Bytes>
SLUICE_INLINE void ask_ahead(const std::byte* part) {
  SLUICE_UNROLL
  for (int64_t i = 0; i < Bytes; i += 64) __builtin_prefetch(part + kAheadBytes + i, 0, kAheadInto);
}

// Calls f.operator()<I>() for the rows of part `Sub` of a block.
template <int Subs, int Sub, class F>
SLUICE_INLINE void each_row(F&& f) {
  constexpr int kCount = kRows / Subs;
  const auto all = [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f.template operator()<Sub * kCount + I>(), ...);
  };
  all(std::make_integer_sequence<int, kCount>());
}

// Sums of R rows by W vectors of columns.
template <int R, int W>
using Sums = Vec[R][W];

// Adds part `Sub` of a block to the sums: R rows of x by vectors [V, V + W) of a panel's columns.
template <class Codec, int R, int V, int W, int Sub>
SLUICE_INLINE void stream_part(const std::byte* quants, Int8Rows<kTraits<Codec>> x, const Vec (&scale)[W][2],
                               const Vec (&min)[W][2], Sums<R, W>& sums) {
  constexpr Int8Traits kT = kTraits<Codec>;
  Bytes products[R][W], pairs[R][W] = {};
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < W; ++v) products[r][v] = start<kT>(x.data[r * x.stride], Sub);
  }
  each_row<kT.subs, Sub>([&]<int I>() __attribute__((always_inline)) {
    const Bytes w[2] = {Codec::template row<V, I>(quants), Codec::template row<V + W - 1, I>(quants)};
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto in = load_quad(x.data[r * x.stride].quants + 4 * I);
      SLUICE_UNROLL
      for (int v = 0; v < W; ++v) add_dot<kT.together>(products[r][v], pairs[r][v], I, w[v], in);
    }
  });
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < W; ++v) {
      sums[r][v] = add_part<kT>(sums[r][v], products[r][v], x.data[r * x.stride], Sub, scale[v][Sub], min[v][Sub]);
    }
  }
}

// Adds all parts of block `b` of a chunk to the sums.
template <class Codec, int R, int V, int W>
SLUICE_INLINE void stream_block(const std::byte* quants, const std::byte* scales, int64_t b, Int8Rows<kTraits<Codec>> x,
                                Sums<R, W>& sums) {
  Vec scale[W][2], min[W][2];
  Codec::template scales<V>(scales, b, scale[0], min[0]);
  if constexpr (W == 2) Codec::template scales<V + 1>(scales, b, scale[1], min[1]);
  stream_part<Codec, R, V, W, 0>(quants, x, scale, min, sums);
  if constexpr (Codec::kSubs == 2) stream_part<Codec, R, V, W, 1>(quants, x, scale, min, sums);
}

// R rows by a panel on the GEMV path: all columns of a block before the next block, so that memory reads never pause.
template <class Codec, int R>
void stream(const ops::MatmulArgs& args, Int8Rows<kTraits<Codec>> x, int64_t row, int64_t panel) {
  constexpr Int8Layout kLayout = Codec::kLayout;
  // Vectors of columns at once: as many as leave registers for weights and inputs.
  constexpr int kSumsEach = Codec::kTogether < kRows / Codec::kSubs && Codec::kTogether > 1 ? 2 : 1;
  constexpr int W = kVecs == 2 && R * kSumsEach <= 4 ? 2 : 1;
  const int64_t blocks = args.weight->k / kQuantBlock;
  const std::byte* at = args.weight->data + panel * kLayout.panel_bytes(args.weight->k);
  Sums<R, W> sums[kVecs / W] = {};
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) expect_emit(args, row + r, panel * kPanel);
  for (int64_t first = 0; first < blocks; first += kChunkBlocks) {
    const int64_t count = blocks - first < kChunkBlocks ? blocks - first : kChunkBlocks;
    const std::byte* scales = at;
    at += kLayout.scale_bytes(count);
    ask_ahead<kLayout.scale_bytes(kChunkBlocks)>(scales);
    for (int64_t b = 0; b < count; ++b, at += kLayout.quant_bytes()) {
      ask_ahead<kLayout.quant_bytes()>(at);
      auto rows = x.from(0, first + b);
      stream_block<Codec, R, 0, W>(at, scales, b, rows, sums[0]);
      if constexpr (W < kVecs) {
        __asm__("" : "+r"(rows.data));  // reads x again: GCC would spill it to the stack for the second vector
        stream_block<Codec, R, 1, W>(at, scales, b, rows, sums[1]);
      }
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int v = 0; v < kVecs; ++v) emit(args, row + r, panel * kPanel + v * kLanes, sums[v / W][r][v % W]);
  }
}

template <class Codec>
void stream_rows(const ops::MatmulArgs& args, Int8Rows<kTraits<Codec>> x, int64_t rows, int64_t panel) {
  const int64_t tiles = (rows + kStreamRows - 1) / kStreamRows;
  for (int64_t t = 0, at = 0, next; t < tiles; ++t, at = next) {
    next = (t + 1) * rows / tiles;  // tiles of nearly equal height
    const auto run = [&]<int... R>(std::integer_sequence<int, R...>) {
      static_cast<void>(((next - at == R + 1 && (stream<Codec, R + 1>(args, x.from(at, 0), at, panel), true)) || ...));
    };
    run(std::make_integer_sequence<int, kStreamRows>());
  }
}

// The operand of a step: a chunk of the panels of a group. Vector v of columns belongs to panel v / kVecs.
struct Decoded {
  alignas(64) std::byte quants[kGroup][kChunkBlocks][kRows][kByteRow];
  alignas(64) float scales[kGroup][kChunkBlocks][2][kPanel];
  alignas(64) float mins[kGroup][kChunkBlocks][2][kPanel];
};

template <class Codec, int V>
SLUICE_INLINE void decode_vector(const std::byte* chunk, int64_t count, int panel, Decoded& to) {
  const std::byte* quants = chunk + Codec::kLayout.scale_bytes(count);
  for (int64_t b = 0; b < count; ++b, quants += Codec::kLayout.quant_bytes()) {
    each_row<1, 0>([&]<int I>() __attribute__((always_inline)) {
      Bytes w = Codec::template row<V, I>(quants);
      if constexpr (kTiles && !Codec::kLayout.mins()) w = subtract_bytes(w, Codec::kLayout.offset);
      store_bytes(to.quants[panel][b][I] + V * int64_t{sizeof(Bytes)}, w);
    });
    Vec scale[2], min[2];
    Codec::template scales<V>(chunk, b, scale, min);
    SLUICE_UNROLL
    for (int s = 0; s < Codec::kSubs; ++s) {
      store(to.scales[panel][b][s] + V * kLanes, scale[s], All{});
      if constexpr (Codec::kLayout.mins()) store(to.mins[panel][b][s] + V * kLanes, min[s], All{});
    }
  }
}

// Decodes a chunk of `count` blocks of several panels, which are `panel_bytes` apart.
template <class Codec>
void decode(const std::byte* chunk, int64_t panel_bytes, int64_t panels, int64_t count, Decoded& to) {
  for (int p = 0; p < panels; ++p, chunk += panel_bytes) {
    decode_vector<Codec, 0>(chunk, count, p, to);
    if constexpr (kVecs == 2) decode_vector<Codec, 1>(chunk, count, p, to);
  }
}

#ifdef __AMX_INT8__
// Multiplies a decoded chunk with all rows of a chunk of rows. It reads, but does not use, rows up to a whole tile.
template <Int8Traits Traits>
void tile_rows(int64_t, Int8Rows<Traits> x, const Decoded& weights, int64_t count, float* sums) {
  const TileScope scope(kTileRows, 0, static_cast<int>(kQuantBlock) / Traits.subs);
  for (int p = 0; p < kGroup; ++p) {
    const TilePanel panel{&weights.quants[p][0][0][0], &weights.scales[p][0][0][0], &weights.mins[p][0][0][0]};
    multiply_tile<Traits>(x, panel, count, sums + p * kPanel, kColumns);
  }
}
#else
// sums[R][kColumns] += R rows of x by `count` decoded blocks of vectors [v, v + V) of columns.
template <Int8Traits Traits, int R, int V>
void tile(Int8Rows<Traits> x, const Decoded& weights, int64_t count, int v, float* sums) {
  constexpr int kRowsPerSub = kRows / Traits.subs;
  Vec acc[R][V];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int c = 0; c < V; ++c) acc[r][c] = load(sums + r * kColumns + (v + c) * kLanes, All{});
  }
  const auto* quants = reinterpret_cast<const std::byte*>(weights.quants);
  const auto at = [](int vector, int64_t bytes) {  // address of a vector of columns in an array of `bytes` per block
    return vector / kVecs * kChunkBlocks * bytes;
  };
  for (int64_t b = 0; b < count; ++b) {
    SLUICE_UNROLL
    for (int s = 0; s < Traits.subs; ++s) {
      Bytes products[R][V], pairs[R][V] = {};
      SLUICE_UNROLL
      for (int r = 0; r < R; ++r) {
        SLUICE_UNROLL
        for (int c = 0; c < V; ++c) products[r][c] = start<Traits>(x.data[r * x.stride + b], s);
      }
      SLUICE_UNROLL
      for (int i = s * kRowsPerSub; i < (s + 1) * kRowsPerSub; ++i) {
        Bytes w[V];
        SLUICE_UNROLL
        for (int c = 0; c < V; ++c) {
          w[c] = load_bytes(quants + at(v + c, kRows * kByteRow) + (b * kRows + i) * kByteRow +
                            (v + c) % kVecs * int64_t{sizeof(Bytes)});
        }
        SLUICE_UNROLL
        for (int r = 0; r < R; ++r) {
          const auto in = load_quad(x.data[r * x.stride + b].quants + 4 * i);
          SLUICE_UNROLL
          for (int c = 0; c < V; ++c) {
            add_dot<Traits.together>(products[r][c], pairs[r][c], i, w[c], in);
          }
        }
      }
      Vec scale[V], min[V];
      SLUICE_UNROLL
      for (int c = 0; c < V; ++c) {
        const int64_t offset = at(v + c, 2 * kPanel) + (b * 2 + s) * kPanel + (v + c) % kVecs * kLanes;
        scale[c] = load(&weights.scales[0][0][0][0] + offset, All{});
        if constexpr (Traits.mins) min[c] = load(&weights.mins[0][0][0][0] + offset, All{});
      }
      SLUICE_UNROLL
      for (int r = 0; r < R; ++r) {
        SLUICE_UNROLL
        for (int c = 0; c < V; ++c) {
          acc[r][c] = add_part<Traits>(acc[r][c], products[r][c], x.data[r * x.stride + b], s, scale[c], min[c]);
        }
      }
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int c = 0; c < V; ++c) store(sums + r * kColumns + (v + c) * kLanes, acc[r][c], All{});
  }
}

// R rows by all columns of the group.
template <Int8Traits Traits, int R>
void tile_row(Int8Rows<Traits> x, const Decoded& weights, int64_t count, float* sums) {
  for (int v = 0; v < kGroup * kVecs; v += 2) tile<Traits, R, 2>(x, weights, count, v, sums);
}

template <Int8Traits Traits>
void tile_rows(int64_t rows, Int8Rows<Traits> x, const Decoded& weights, int64_t count, float* sums) {
  const auto run = [&]<int... R>(std::integer_sequence<int, R...>) {
    static_cast<void>(((rows == R + 1 && (tile_row<Traits, R + 1>(x, weights, count, sums), true)) || ...));
  };
  run(std::make_integer_sequence<int, kMaxRows>());
}
#endif

// Prefetches share `part` of `parts` of what the next step decodes, while the current step computes.
struct Ahead {
  const std::byte* chunk;  // null: nothing to prefetch
  int64_t panel_bytes, panels, bytes;

  SLUICE_INLINE void ask(int64_t part, int64_t parts) const {
    if (chunk == nullptr) return;
    const int64_t lines = bytes / 64, first = part * lines / parts, last = (part + 1) * lines / parts;
    for (int64_t p = 0; p < panels; ++p) {
      const std::byte* from = chunk + p * panel_bytes;
      for (int64_t line = first; line < last; ++line) __builtin_prefetch(from + line * 64, 0, 2);
    }
  }
};

// Rows [row, row + rows) of the result, with inputs x, by `panels` panels starting at `panel`. During its last step it
// prefetches the panels of the thread's next task, if there is one.
template <class Codec>
void multiply(const ops::MatmulArgs& args, Int8Rows<kTraits<Codec>> x, int64_t row, int64_t rows, int64_t panel,
              int64_t panels, const std::byte* next_panels) {
  constexpr Int8Layout kLayout = Codec::kLayout;
  const int64_t blocks = args.weight->k / kQuantBlock, tiles = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t panel_bytes = kLayout.panel_bytes(args.weight->k);
  const std::byte* chunk = args.weight->data + panel * panel_bytes;
  Decoded weights;
  if (panels < kGroup) weights = {};  // tiles read whole groups
  alignas(64) float sums[(kRowChunk + kMaxRows) * kColumns];
  for (int64_t i = 0; i < tiles * kMaxRows * kColumns; i += kLanes) store(sums + i, zero(), All{});
  for (int64_t begin = 0; begin < blocks; begin += kChunkBlocks, chunk += kLayout.chunk_bytes()) {
    const int64_t count = blocks - begin < kChunkBlocks ? blocks - begin : kChunkBlocks;
    decode<Codec>(chunk, panel_bytes, panels, count, weights);
    const int64_t left = blocks - begin - count, soon = left < kChunkBlocks ? left : kChunkBlocks;
    const int64_t next_count = soon > 0 ? soon : blocks < kChunkBlocks ? blocks : kChunkBlocks;
    const Ahead ahead{soon > 0 ? chunk + kLayout.chunk_bytes() : next_panels, panel_bytes, panels,
                      kLayout.chunk_bytes(next_count)};
    int64_t at = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      // Tiles of nearly equal height, or whole tiles.
      const int64_t next = kTiles ? (at + kMaxRows < rows ? at + kMaxRows : rows) : (t + 1) * rows / tiles;
      ahead.ask(t, tiles);
      if (soon == 0) {
        for (int64_t i = at; i < next; ++i) {
          for (int64_t p = 0; p < panels; ++p) expect_emit(args, row + i, (panel + p) * kPanel);
        }
      }
      tile_rows<kTraits<Codec>>(next - at, x.from(at, begin), weights, count, sums + at * kColumns);
      at = next;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t column = 0; column < panels * kPanel; column += kLanes) {
      emit(args, row + r, panel * kPanel + column, load(sums + r * kColumns + column, All{}));
    }
  }
}

template <class Codec>
void matmul(ops::Queue& queue, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t total = args.x.shape[0], panel_bytes = Codec::kLayout.panel_bytes(args.weight->k);
  const auto panels_of = [&](int64_t group) {
    return panels - group * kGroup < kGroup ? panels - group * kGroup : int64_t{kGroup};
  };
  for (int64_t pass = 0; pass < total; pass += kPassRows) {
    const int64_t rows = total - pass < kPassRows ? total - pass : kPassRows;
    const auto x = quantize_rows<kTraits<Codec>>(queue, args.x, pass, rows, Codec::kLayout.offset);
    if (total <= kFewRows) {
      return queue.threads().parallel_runs(panels, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; ++panel) stream_rows<Codec>(args, x, rows, panel);
      });
    }
    const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
    // Chunks of the same group of panels are consecutive, so its weights are read from memory once.
    queue.threads().parallel_runs(groups * chunks, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / chunks, chunk = task % chunks, next = (task + 1) / chunks;
        const int64_t first = chunk * rows / chunks, last = (chunk + 1) * rows / chunks;
        const bool new_panels = task + 1 < end && next > group;
        multiply<Codec>(args, x.from(first, 0), pass + first, last - first, group * kGroup, panels_of(group),
                        new_panels ? args.weight->data + next * kGroup * panel_bytes : nullptr);
      }
    });
  }
}

template <class... Formats>
kernels::Matmul find(DType format, quant::CodecList<Formats...>) {
  kernels::Matmul found = nullptr;
  const auto look_at = [&]<class Format>(const Format*) {
    if constexpr (kernels::kHasInt8<Format>) {
      if (format == &Format::kType) found = matmul<Int8Codec<Format>>;
    }
  };
  (look_at(static_cast<const Formats*>(nullptr)), ...);
  return found;
}

}  // namespace

kernels::Matmul matmul_int8(DType format) { return find(format, quant::AllCodecs{}); }

}  // namespace sluice::SLUICE_ISA
