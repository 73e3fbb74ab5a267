// How decoding cuts the keys of sequences, and where the results of the pieces lie: what the host decides and the
// kernels (device/decode_units.cuh) follow.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/grid.h"

namespace sluice::cuda {

inline constexpr int kQueries = 8;  // packed rows of a tile of the tensor cores

// The keys of a sequence, cut: [first + i * length, first + (i + 1) * length) for i below count. Lengths are powers of
// two, from kShortestChunk on. Few sequences are cut into up to `cuts` chunks, as many as give all warps of the
// device work; chunks are longer than `longest` only where that would make more than kMostChunks.
struct Cut {
  int cuts, longest;
};
inline constexpr int kShortestChunk = 64, kLongestChunk = 2048, kMostChunks = 128;
// Where sequences are more than the warps: what chunks give to balance is less than what each of them takes beside its
// keys.
inline constexpr int kLongestOfMany = 4096;

// What one chunk gives a row: its largest score (in powers of two) and the sum of weights relative to it; the mixed
// values lie apart.
struct ChunkSum {
  float top, sum;
};

// A slot for every unit, in the order of units; used by those of sequences of more than one chunk.
struct Partials {
  float* values;      // [units, rows, value_dim]
  ChunkSum* sums;     // [units, rows]
  int rows;           // of a slot, what units have at most
  int32_t* arrivals;  // [units] zeros, and zeros again at the end
  int32_t* tickets;   // units that were taken beyond the first ones, and warps that found no more; likewise
};
inline constexpr int kCounters = 2;  // beside the arrivals

inline size_t decode_row_bytes(int64_t value_dim) {
  return static_cast<size_t>(value_dim) * sizeof(float) + sizeof(ChunkSum);
}

// What chunks_of() counts at most for a sequence of up to `keys` keys.
inline int most_chunks(int64_t keys, const Cut& cut) {
  return static_cast<int>(std::min(
      {pieces(keys, kShortestChunk), std::max(int64_t{cut.cuts}, pieces(keys, cut.longest)), int64_t{kMostChunks}}));
}

struct DecodePlan {
  Cut cut;
  Partials partials;
};

// For `sequences` of the batch, by `warps` of every multiprocessor in tiles of `tile_rows` packed rows. With less
// workspace than it takes chunks become longer; sequences of one chunk need none.
inline DecodePlan plan_decode(const Launch& l, const AttentionParams& p, const AttentionIndices& at, int sequences,
                              int warps, int64_t tile_rows) {
  const int64_t packed_rows = int64_t{at.decode_rows} * p.group, slot_rows = std::min(packed_rows, tile_rows);
  const int64_t row_tiles =
      std::min(sequences * pieces(packed_rows, tile_rows), sequences + at.decode_tokens * p.group / tile_rows);
  const int64_t whole_units = row_tiles * p.kv_heads, aim = int64_t{l.multiprocessors} * warps / whole_units;
  const size_t slot_bytes = static_cast<size_t>(slot_rows) * decode_row_bytes(p.value_dim);
  const auto most_slots = static_cast<int64_t>(l.workspace_bytes / std::max(slot_bytes, kBytesPerArrival)) - kCounters;
  Cut cut{static_cast<int>(std::clamp<int64_t>(aim, 1, kMostChunks)), aim > 0 ? kLongestChunk : kLongestOfMany};
  int64_t slots = 0;
  for (;;) {
    const int chunks = most_chunks(at.decode_keys, cut);
    slots = chunks == 1 ? 0 : whole_units * chunks;
    if (slots <= most_slots) break;
    cut = {std::max(1, cut.cuts / 2), cut.cuts > 1 ? cut.longest : cut.longest * 2};
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
