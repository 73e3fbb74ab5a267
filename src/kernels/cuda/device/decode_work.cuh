// What decoding is made of: units of work, counted on the device from the sequences' lengths.
#pragma once

#include "kernels/cuda/decode_plan.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/device/team.cuh"

namespace sluice::cuda {

// See Cut.
struct Chunks {
  int first, length, count;
};

__device__ inline Chunks chunks_of(const AttentionParams& p, int rows, int kv_len, const Cut& cut) {
  const auto to_power_of_two = [](int n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); };
  const int first = first_visible(p, kv_len - rows) & -kShortestChunk, keys = kv_len - first;
  const int aim = min(max(to_power_of_two((keys + cut.cuts - 1) / cut.cuts), kShortestChunk), cut.longest);
  const int length = max(aim, to_power_of_two((keys + kMostChunks - 1) / kMostChunks));
  return {first, length, (keys + length - 1) >> (31 - __clz(length))};
}

// x / by of small numbers.
struct Divisor {
  int by;
  unsigned of_all;  // 2^32 / by, rounded up
  __device__ explicit Divisor(int by) : by(by), of_all(0xffffffffu / static_cast<unsigned>(by) + 1) {}
  __device__ int divide(int x) const {
    return by == 1 ? x : static_cast<int>(__umulhi(static_cast<unsigned>(x), of_all));
  }
};

// A chunk of keys for one tile of packed rows of one kv head.
struct alignas(16) Unit {
  int index;  // among all units; -1: there is none
  int sequence, kv_head, first_row;
  int first_token, rows, kv_len;
  int chunk, chunks;  // this one of so many
  int step;           // units from one chunk to the next
  int begin, end;     // the keys of the chunk that a row of the tile sees; may be none

  // Stages begin at keys first_stage(), first_stage() + keys and so on below stop(); there is always one.
  template <int keys>
  __device__ int first_stage() const {
    return begin / keys * keys;
  }
  template <int keys>
  __device__ int stop() const {
    return max(end, first_stage<keys>() + 1);
  }
};

// The sequences' units, counted up, in shared memory.
struct SequenceWork {
  int first_unit, first_token, rows, kv_len;
};

class Work {
 public:
  // By all threads of the team; to be followed by a barrier.
  __device__ Work(const AttentionParams& p, SequenceWork* all, int sequences, int tile_rows, Cut cut, const Team& team)
      : p_(p),
        all_(all),
        sequences_(sequences),
        tile_rows_(tile_rows),
        cut_(cut),
        kv_heads_(p.kv_heads),
        group_(p.group) {
    __shared__ int sums[kWarp];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (int base = 0; base < sequences; base += team.threads()) {
      const int s = base + static_cast<int>(threadIdx.x);
      SequenceWork own{0, 0, 0, 0};
      int count = 0;
      if (s < sequences) {
        own.first_token = p.query_start[s];
        own.rows = p.query_start[s + 1] - own.first_token;
        own.kv_len = p.kv_len[s];
        const bool decoded = own.rows > 0 && own.rows * p.group <= kMostDecodeRows && own.kv_len >= own.rows;
        if (decoded) count = chunks_of(p, own.rows, own.kv_len, cut).count * p.kv_heads * tiles(own.rows);
      }
      const int sum = sum_upto(count);
      if (lane == kWarp - 1) sums[warp] = sum;
      team.sync();
      own.first_unit = count_ + sum - count;
      for (int w = 0; w < team.warps; ++w) {
        if (w < warp) own.first_unit += sums[w];
        count_ += sums[w];
      }
      if (s < sequences) all[s] = own;
      team.sync();
    }
  }

  __device__ int count() const { return count_; }

  __device__ Unit unit(int index) const {
    const int sequence = last_of(0, sequences_ - 1, [&](int i) { return all_[i].first_unit <= index; });
    const SequenceWork s = all_[sequence];
    const Chunks chunks = chunks_of(p_, s.rows, s.kv_len, cut_);
    // Tiles and kv heads of one chunk follow one another.
    const int own = index - s.first_unit, tile_of_all = kv_heads_.divide(own),
              kv_head = own - tile_of_all * p_.kv_heads;
    const int of_rows = tiles(s.rows), chunk = of_rows == 1 ? tile_of_all : tile_of_all / of_rows;
    const int first_row = (tile_of_all - chunk * of_rows) * tile_rows_;
    const int last_token = min(s.rows - 1, group_.divide(first_row + tile_rows_ - 1)), past = s.kv_len - s.rows;
    const int from = chunks.first + chunk * chunks.length;
    int begin = max(from, first_visible(p_, past + group_.divide(first_row)));
    int end = min(from + chunks.length, last_visible(p_, past + last_token, s.kv_len) + 1);
    if (begin >= end) begin = end = from;  // its one stage then has keys that no row sees
    return {.index = index,
            .sequence = sequence,
            .kv_head = kv_head,
            .first_row = first_row,
            .first_token = s.first_token,
            .rows = s.rows,
            .kv_len = s.kv_len,
            .chunk = chunk,
            .chunks = chunks.count,
            .step = p_.kv_heads * of_rows,
            .begin = begin,
            .end = end};
  }

  // How many rows a unit has, and which they are.
  __device__ int rows(const Unit& unit) const { return min(tile_rows_, unit.rows * p_.group - unit.first_row); }
  __device__ PackedRow row(const Unit& unit, int row) const {
    const int packed = unit.first_row + row, token = group_.divide(packed);
    return {token, unit.kv_head * p_.group + packed - token * p_.group,
            token < unit.rows ? unit.kv_len - unit.rows + token : -1};
  }

 private:
  __device__ int tiles(int rows) const {  // of 8 or 16 rows
    return (rows * p_.group + tile_rows_ - 1) >> (tile_rows_ == kQueries ? 3 : 4);
  }

  const AttentionParams& p_;
  const SequenceWork* all_;
  const int sequences_, tile_rows_;
  const Cut cut_;
  const Divisor kv_heads_, group_;
  int count_ = 0;
};

}  // namespace sluice::cuda
