// How decoding cuts the keys of sequences, and where the results of the pieces lie: what the host decides and the
// kernels (device/decode_units.cuh) follow.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {

inline constexpr int kQueries = 8;    // packed rows of a tile of the tensor cores
inline constexpr int kMostWarps = 8;  // of a block, as many as have room for their rings

// How warps share the keys. A line is the keys of a sequence for one kv head and tile of packed rows; a chunk is what a
// warp takes of it at a time.
//
// `shared_by` > 0: that many warps have equal parts of all lines laid end to end, `least` grains or more. A chunk is
// what a part has of a line; a part has at most one of a line that begins before it, and one of a line that goes on
// behind it. If parts need to be no more than `unit` grains longer for every line to begin with a part of its own, they
// are: a second unit of work costs a warp as much as so many grains.
// Else chunks are `longest` keys, a power of two, more only where that would make more than kMostChunks, and warps take
// them in turn.
struct Cut {
  int shared_by, least, longest, unit;
};
inline constexpr int kGrain = 32;  // keys; parts are whole grains
// What a warp could read of keys and values while it ends a unit and begins another one, in 8 us (Cut::unit).
inline constexpr int kUnitBytes = 48 << 10, kMostUnitGrains = 7;
inline constexpr int kLongestChunk = 4096, kMostChunks = 128;
// From so many lines for each warp on, warps take them in turn: they are many enough to balance, and whole.
inline constexpr double kLinesInTurn = 3.5;

// What one chunk gives a row: its largest score (in powers of two) and the sum of weights relative to it; the mixed
// values lie apart.
struct ChunkSum {
  float top, sum;
};

// A slot for every unit, in the order of units, or two for every warp that shares the keys; used by units of lines of
// more than one chunk.
struct Partials {
  float* values;      // [slots, rows, value_dim]
  ChunkSum* sums;     // [slots, rows]
  int rows;           // of a slot, what units have at most
  int32_t* arrivals;  // [slots] zeros, and zeros again at the end
  int32_t* tickets;   // units that were taken beyond the first ones, and warps that found no more; likewise
};
inline constexpr int kCounters = 2;  // beside the arrivals

inline size_t decode_row_bytes(int64_t value_dim) {
  return static_cast<size_t>(value_dim) * sizeof(float) + sizeof(ChunkSum);
}

// What chunks_of() counts at most for a sequence of up to `keys` keys.
inline int64_t most_chunks(int64_t keys, int64_t longest) {
  return std::clamp<int64_t>(pieces(keys, longest), 1, kMostChunks);
}

struct DecodePlan {
  Cut cut;
  Partials partials;
};

// For `sequences` of the batch, by `warps` of every multiprocessor in tiles of `tile_rows` packed rows; `key_bytes`: of
// a key with its value, for one kv head. With less workspace than it takes warps take chunks in turn, longer ones;
// lines of one chunk need none.
inline DecodePlan plan_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at, int sequences,
                              int warps, int64_t tile_rows, int key_bytes) {
  const int64_t packed_rows = int64_t{at.decode_rows} * p.group, slot_rows = std::min(packed_rows, tile_rows);
  const int64_t row_tiles =
      std::min(sequences * pieces(packed_rows, tile_rows), sequences + at.decode_tokens * p.group / tile_rows);
  const int64_t lines = row_tiles * p.kv_heads, all_warps = int64_t{l.sm_count} * warps;
  const size_t slot_bytes = static_cast<size_t>(slot_rows) * decode_row_bytes(p.value_dim);
  const auto most_slots = static_cast<int64_t>(l.workspace_bytes / std::max(slot_bytes, kBytesPerArrival)) - kCounters;
  Cut cut{.shared_by = 0,
          .least = 1,
          .longest = kLongestChunk,
          .unit = std::clamp(kUnitBytes / (key_bytes * kGrain), 0, kMostUnitGrains)};
  int64_t slots = 2 * all_warps;
  if (static_cast<double>(lines) < kLinesInTurn * static_cast<double>(all_warps) && slots <= most_slots) {
    cut.shared_by = static_cast<int>(all_warps);
    cut.least = static_cast<int>(std::max<int64_t>(1, pieces(pieces(at.decode_keys, kGrain), kMostChunks)));
  } else {
    for (;; cut.longest *= 2) {
      const int64_t chunks = most_chunks(at.decode_keys, cut.longest);
      slots = chunks == 1 ? 0 : lines * chunks;
      if (slots <= most_slots) break;
    }
  }
  auto* values = reinterpret_cast<float*>(l.workspace);
  return {cut,
          {.values = values,
           .sums = reinterpret_cast<ChunkSum*>(values + slots * slot_rows * p.value_dim),
           .rows = static_cast<int>(slot_rows),
           .arrivals = l.arrivals + kCounters,
           .tickets = l.arrivals}};
}

}  // namespace sluice::cuda
