// The plan of decode attention: how the keys of sequences are cut, and where partial results lie. The host decides it
// and the kernels follow it (device/decode_units.cuh).
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {

inline constexpr int kQueries = 8;    // packed rows of a tensor-core tile
inline constexpr int kMostWarps = 8;  // most warps of a block; fewer if their rings need more room

// How warps share the keys. A line is the keys of a sequence for one kv head and one tile of packed rows. A chunk is
// what a warp takes of a line at a time.
//
// If `shared_by` > 0, that many warps get equal parts of all lines laid end to end, each of at least `least` grains. A
// chunk is then the piece of a line inside a part. A part has at most one chunk of a line that begins before it, and at
// most one of a line that goes on behind it. A second unit of work costs a warp as much as `unit` grains. Lines
// therefore lie that far apart, so that few warps get many short ones. If every line can begin with a part of its own
// when parts are up to that much longer, they are, and lines lie end to end.
//
// Else chunks have `longest` keys, a power of two, or more if that would make more than kMostChunks. Warps take them in
// turn.
struct Cut {
  int shared_by, least, longest, unit;
};
inline constexpr int kGrain = 32;  // keys; parts are whole grains
// Bytes of keys and values that a warp could read in the 8 us in which it ends a unit and begins another (Cut::unit).
inline constexpr int kUnitBytes = 48 << 10, kMostUnitGrains = 7;
inline constexpr int kLongestChunk = 4096, kMostChunks = 128;
// From this many lines per warp on, warps take whole lines in turn: these are then numerous enough to balance.
inline constexpr double kLinesInTurn = 3.5;
// They also do where most warps get two lines, as equal parts would cut nearly every line. 2048 lines of 1400 keys then
// take 346 us instead of 364, but 1400 lines of 1700 keys 315 instead of 299 (one H200, 1056 warps).
inline constexpr double kPairsInTurn = 1.4;

// What one chunk gives a row: its largest score (as an exponent of two) and the sum of weights relative to it. The
// mixed values are stored separately.
struct ChunkSum {
  float top, sum;
};

// Partial results: one slot per unit in the order of units, or two slots for every warp that shares the keys. Used by
// units of lines with more than one chunk.
struct Partials {
  float* values;      // [slots, rows, value_dim]
  ChunkSum* sums;     // [slots, rows]
  int rows;           // rows of a slot: the most that a unit has
  int32_t* arrivals;  // [slots] counters, zero before and after a launch
  int32_t* tickets;   // units taken beyond each warp's first, and warps that found no more; zero before and after a
                      // launch
};
inline constexpr int kCounters = 2;  // counters besides the arrivals

inline size_t decode_row_bytes(int64_t value_dim) {
  return static_cast<size_t>(value_dim) * sizeof(float) + sizeof(ChunkSum);
}

// The most chunks that chunks_of() counts for a sequence of up to `keys` keys.
inline int64_t most_chunks(int64_t keys, int64_t longest) {
  return std::clamp<int64_t>(pieces(keys, longest), 1, kMostChunks);
}

struct DecodePlan {
  Cut cut;
  Partials partials;
};

// The plan for `sequences` of the batch, computed by `warps` warps of every SM in tiles of `tile_rows` packed rows.
// `key_bytes` is the size of a key and its value for one kv head. If the workspace is too small, warps take longer
// chunks in turn; lines of one chunk need no workspace.
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
  const double of_warp = static_cast<double>(lines) / static_cast<double>(all_warps);
  // If the workspace is small, whole lines would become too long for one warp.
  const bool pairs =
      of_warp >= kPairsInTurn && of_warp <= 2 && lines * most_chunks(at.decode_keys, cut.longest) <= most_slots;
  if (of_warp < kLinesInTurn && !pairs && slots <= most_slots) {
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
