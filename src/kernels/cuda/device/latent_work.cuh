// How latent attention (attention/latent.cu) divides its work among blocks. A unit is a tile of packed rows of a
// sequence with all keys that these rows see. Units lie end to end on a line, each as long as its number of key tiles.
// Every block takes an equal stretch of the line. Where a stretch ends inside a unit, the unit is cut between two key
// tiles, and its pieces are merged later. So all blocks have equal work whatever the lengths are. At most two pieces of
// a block are not whole units. Nothing depends on lengths known to the host.
#pragma once

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/device/search.cuh"

namespace sluice::cuda {

inline constexpr int kLatentRows = 64;         // packed rows of a unit
inline constexpr int kLatentKeys = 64;         // keys of a tile
inline constexpr int kLatentSequences = 1024;  // most sequences of a launch, as their costs lie in shared memory
inline constexpr int kShortestStretch = 2;     // key tiles: merging more pieces would take longer
inline constexpr int kMostLatentBlocks = 256;  // most blocks, and so most pieces of a unit

// A unit that ends in another block than it begins in. Written by the blocks that begin inside it.
struct LatentCut {
  int sequence, first_row;      // sequence -1: the block begins with a unit
  int first_block, last_block;  // the blocks that have pieces of the unit
};

// The results of pieces: two slots of kLatentRows rows for each block. The first slot is for a unit that began in an
// earlier block.
struct LatentPartials {
  float* values;    // [2 * blocks, kLatentRows, value_dim]
  ChunkSum* sums;   // [2 * blocks, kLatentRows]; top -inf: no key was seen, and there are no values
  LatentCut* cuts;  // [blocks]
};

struct LatentSequence {
  int first_token, rows, kv_len;

  __device__ LatentSequence(const AttentionParams& p, int index)
      : first_token(p.query_start[index]), rows(p.query_start[index + 1] - first_token), kv_len(p.kv_len[index]) {}
  __device__ bool attends() const { return rows > 0 && kv_len >= rows; }
  __device__ int units(const AttentionParams& p) const { return (rows * p.group + kLatentRows - 1) / kLatentRows; }
};

// The keys that rows of a unit see, and the tiles that contain them. There is always a tile, even if no row of a part
// of the keys sees one: begin and end are zero then.
struct LatentKeys {
  int begin, end;

  template <class Params>
  __device__ LatentKeys(const Params& p, const LatentSequence& s, int first_row) {
    const int past = s.kv_len - s.rows, last_token = min(s.rows - 1, (first_row + kLatentRows - 1) / p.group);
    begin = first_visible(p, past + first_row / p.group);
    end = last_visible(p, past + last_token, s.kv_len) + 1;
    if constexpr (kOfPart<Params>) {
      if (begin == end) begin = end = 0;
    }
  }
  __device__ int first_tile() const { return begin / kLatentKeys; }
  __device__ int tiles() const { return (end - 1) / kLatentKeys - first_tile() + 1; }
};

// A unit, or the part of it that a block has.
struct LatentPiece {
  int sequence, first_row;
  int first_token, rows, kv_len;
  int begin, end;         // keys of the unit
  int first_tile, tiles;  // key tiles of the piece; there may be none
  int slot;               // slot of the partial results; -1: the piece is the whole unit

  __device__ bool begins_inside() const { return slot >= 0 && slot % 2 == 0; }
  __device__ PackedRow row(const AttentionParams& p, int row) const {
    return packed_row(p, 0, first_row + row, rows, kv_len);
  }
};

// Where a sequence's units begin on the line, and the length of each. All have the same length, the mean of the first
// unit's and the last one's.
struct LatentCost {
  int begin, of_unit;
};

// Fills in the costs of the sequences and returns their sum. Called by all threads of a block; a barrier has to follow.
// `sums` has one number per warp.
template <class Params>
__device__ inline int sum_latent_costs(const Params& p, int sequences, LatentCost* costs, int* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  int all = 0;
  for (int first = 0; first < sequences; first += threads) {
    const int index = first + static_cast<int>(threadIdx.x);
    int units = 0, of_unit = 0;
    if (index < sequences) {
      const LatentSequence s(p, index);
      if (s.attends()) {
        units = s.units(p);
        of_unit = (LatentKeys(p, s, 0).tiles() + LatentKeys(p, s, (units - 1) * kLatentRows).tiles()) / 2;
      }
    }
    const int sum = sum_upto(units * of_unit);
    if (lane == kWarp - 1) sums[warp] = sum;
    __syncthreads();
    int begin = all + sum - units * of_unit;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) begin += sums[w];
      all += sums[w];
    }
    if (index < sequences) costs[index] = {begin, of_unit};
    __syncthreads();
  }
  return all;
}

// A block's stretch of the line, piece by piece.
template <class Params>
class LatentStretch {
 public:
  __device__ LatentStretch(const Params& p, const LatentCost* costs, int sequences, int all)
      : p_(p),
        costs_(costs),
        sequences_(sequences),
        length_(max(kShortestStretch, (all + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x))),
        at_(min(all, static_cast<int>(blockIdx.x) * length_)),
        stop_(min(all, at_ + length_)) {}

  // Gets the next piece. False: there is none left.
  __device__ bool next(LatentPiece& piece) {
    if (at_ >= stop_) return false;
    find_sequence();
    const LatentCost cost = costs_[sequence_];
    const LatentSequence s(p_, sequence_);
    const int unit = (at_ - cost.begin) / cost.of_unit, end = cost.begin + (unit + 1) * cost.of_unit;
    unit_begin_ = end - cost.of_unit;
    // Long and short units alternate, so that those of any stretch together are as long as the line says.
    const int row_tile = unit % 2 == 0 ? s.units(p_) - 1 - unit / 2 : unit / 2;
    const LatentKeys keys(p_, s, row_tile * kLatentRows);
    const int from = at_ - unit_begin_, to = min(stop_, end) - unit_begin_, tiles = keys.tiles();
    const int first = from * tiles / cost.of_unit, last = to * tiles / cost.of_unit;
    const int own_slots = 2 * static_cast<int>(blockIdx.x);
    piece = {.sequence = sequence_,
             .first_row = row_tile * kLatentRows,
             .first_token = s.first_token,
             .rows = s.rows,
             .kv_len = s.kv_len,
             .begin = keys.begin,
             .end = keys.end,
             .first_tile = keys.first_tile() + first,
             .tiles = last - first,
             .slot = from == 0 && to == cost.of_unit ? -1 : own_slots + (from == 0 ? 1 : 0)};
    unit_end_ = end;
    at_ = min(stop_, end);
    return true;
  }

  // The blocks that the latest piece's unit spans.
  __device__ int first_block() const { return unit_begin_ / length_; }
  __device__ int last_block() const { return (unit_end_ - 1) / length_; }

 private:
  // Finds the last sequence that begins at or before the current position.
  __device__ void find_sequence() {
    sequence_ = last_of(sequence_, sequences_ - 1, [&](int s) { return costs_[s].begin <= at_; });
  }

  const Params& p_;
  const LatentCost* costs_;
  const int sequences_, length_;
  int at_, stop_, sequence_ = 0, unit_begin_ = 0, unit_end_ = 0;
};

}  // namespace sluice::cuda
