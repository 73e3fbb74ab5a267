// The units of work of decode attention, counted on the device from the lengths of the sequences. A line is the keys of
// one sequence for one kv head and one tile of packed rows.
#pragma once

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/device/attention_tile.cuh"
#include "kernels/cuda/device/scan.cuh"
#include "kernels/cuda/device/search.cuh"
#include "kernels/cuda/device/team.cuh"

namespace sluice::cuda {

// Chunks that warps take in turn (Cut): chunk i < count has keys [first + i * length, first + (i + 1) * length). There
// is at least one.
struct Chunks {
  int first, length, count;
};

// The number of keys of a sequence from `first` on. If a part of the keys has none there, it is one that no row sees.
template <class Params>
__device__ inline int keys_from(const Params& p, int first, int kv_len) {
  const int keys = count_keys(p, kv_len) - first;
  return kOfPart<Params> ? max(keys, 1) : keys;
}

template <class Params>
__device__ inline Chunks chunks_of(const Params& p, int rows, int kv_len, const Cut& cut) {
  const int first = first_visible(p, kv_len - rows) & -kGrain, keys = keys_from(p, first, kv_len);
  const int least = (keys + kMostChunks - 1) / kMostChunks;
  const int length = least <= cut.longest ? cut.longest : 1 << (32 - __clz(least - 1));
  return {first, length, (keys + length - 1) >> (31 - __clz(length))};
}

// Computes x / by for small numbers by a multiplication.
struct Divisor {
  int by;
  unsigned of_all;  // 2^32 / by, rounded up
  __device__ explicit Divisor(int by) : by(by), of_all(0xffffffffu / static_cast<unsigned>(by) + 1) {}
  __device__ int divide(int x) const {
    return by == 1 ? x : static_cast<int>(__umulhi(static_cast<unsigned>(x), of_all));
  }
};

// The keys of a line, from a multiple of kGrain on. `room`: grains until the next line begins, at least `grains`.
struct Line {
  int first, grains, room;
};
template <class Params>
__device__ inline Line line_of(const Params& p, int rows, int kv_len) {
  const int first = first_visible(p, kv_len - rows) & -kGrain;
  const int grains = (keys_from(p, first, kv_len) + kGrain - 1) / kGrain;
  return {first, grains, grains};
}

// A chunk of keys for one tile of packed rows of one kv head.
struct alignas(16) Unit {
  int index;  // the unit's slot; -1: there is no unit
  int sequence, kv_head, first_row;
  int first_token, rows, kv_len;
  int chunk, chunks;  // this chunk's number and the number of chunks
  int step;           // slots from one chunk to the next
  int begin, end;     // the keys of the chunk that a row of the tile sees; may be none

  // Stages begin at keys first_stage(), first_stage() + keys and so on below stop(). There is always one stage.
  template <int keys>
  __device__ int first_stage() const {
    return begin / keys * keys;
  }
  template <int keys>
  __device__ int stop() const {
    return max(end, first_stage<keys>() + 1);
  }
};

// A sequence with the number of units, or of grains of lines, before it. Lies in shared memory.
struct SequenceWork {
  int first_unit, first_token, rows, kv_len;
};

template <class Params>
class Work {
 public:
  // Called by all threads of the team; a barrier has to follow.
  __device__ Work(const Params& p, SequenceWork* all, int sequences, int tile_rows, Cut cut, const Team& team)
      : p_(p),
        all_(all),
        sequences_(sequences),
        tile_rows_(tile_rows),
        cut_(cut),
        kv_heads_(p.kv_heads),
        group_(p.group) {
    if (shared()) unit_room_ = cut.unit;
    count_up(all, team, true);
    if (!shared()) return;
    const auto part_for = [&](int grains) { return max((grains + cut.shared_by - 1) / cut.shared_by, cut.least); };
    part_ = part_for(count_ - lines_ * cut.unit);
    const int longer = grains_for_whole_lines(team);
    if (longer > cut.unit) {
      part_ = part_for(count_);
      return;
    }
    part_ += longer, whole_lines_ = true, unit_room_ = 0;
    count_up(all, team, false);
  }

  __device__ int count() const { return count_; }
  // Whether warps share the keys, each taking a part of part() grains.
  __device__ bool shared() const { return cut_.shared_by > 0; }
  __device__ int part() const { return part_; }

  // The first unit from `at` grains after the start of the first line on, which ends at most `stop` grains after it.
  // Moves `at` to its end. Index -1: there is none.
  __device__ Unit next_unit_of_grains(int& at, int stop) const {
    while (at < stop) {
      const int sequence = sequence_at(at);
      const SequenceWork s = all_[sequence];
      const Line line = line_at(s.rows, s.kv_len);
      // The kv heads of one tile follow one another.
      const int number = (at - s.first_unit) / line.room, begin = s.first_unit + number * line.room;
      const int grains = min(stop, begin + line.grains) - at;
      if (grains <= 0) {  // behind the line's keys
        at = begin + line.room;
        continue;
      }
      const int tile = kv_heads_.divide(number), first_part = begin / part_, chunk = at / part_ - first_part;
      Unit unit = unit_of(sequence, s, number - tile * p_.kv_heads, tile * tile_rows_,
                          line.first + (at - begin) * kGrain, grains * kGrain);
      // At most one line of a part begins before it, and at most one that begins in it goes on behind it.
      unit.index = chunk == 0 ? cut_.shared_by + first_part : first_part + chunk;
      unit.chunk = chunk, unit.chunks = (begin + line.grains - 1) / part_ - first_part + 1;
      unit.step = 1;
      at += grains;
      return unit;
    }
    Unit none{};
    none.index = -1;
    return none;
  }

  // The slot of a chunk of the unit's line.
  __device__ int slot(const Unit& unit, int chunk) const {
    const int first = unit.index - unit.chunk * unit.step;
    if (!shared()) return first + chunk * unit.step;
    const int first_part = unit.chunk == 0 ? unit.index - cut_.shared_by : first;
    return chunk == 0 ? cut_.shared_by + first_part : first_part + chunk;
  }

  __device__ Unit unit(int index) const {
    const int sequence = sequence_at(index);
    const SequenceWork s = all_[sequence];
    const Chunks chunks = chunks_of(p_, s.rows, s.kv_len, cut_);
    // The tiles and kv heads of one chunk follow one another.
    const int own = index - s.first_unit, tile_of_all = kv_heads_.divide(own),
              kv_head = own - tile_of_all * p_.kv_heads;
    const int of_rows = tiles(s.rows), chunk = of_rows == 1 ? tile_of_all : tile_of_all / of_rows;
    Unit unit = unit_of(sequence, s, kv_head, (tile_of_all - chunk * of_rows) * tile_rows_,
                        chunks.first + chunk * chunks.length, chunks.length);
    unit.index = index, unit.chunk = chunk, unit.chunks = chunks.count, unit.step = p_.kv_heads * of_rows;
    return unit;
  }

  // The number of rows of a unit, and its row `row`.
  __device__ int rows(const Unit& unit) const { return min(tile_rows_, unit.rows * p_.group - unit.first_row); }
  __device__ PackedRow row(const Unit& unit, int row) const {
    const int packed = unit.first_row + row, token = group_.divide(packed);
    return {token, unit.kv_head * p_.group + packed - token * p_.group,
            token < unit.rows ? unit.kv_len - unit.rows + token : -1};
  }

 private:
  // Counts units up to each sequence and sets count_ and lines_. The first call also reads the sequences.
  __device__ void count_up(SequenceWork* all, const Team& team, bool first_time) {
    __shared__ int sums[kMostWarps], lines_of[kMostWarps];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    count_ = lines_ = 0;
    for (int base = 0; base < sequences_; base += team.threads()) {
      const int s = base + static_cast<int>(threadIdx.x);
      SequenceWork own{0, 0, 0, 0};
      int count = 0, own_lines = 0;
      if (s < sequences_) {
        if (first_time) {
          own.first_token = p_.query_start[s];
          own.rows = p_.query_start[s + 1] - own.first_token;
          own.kv_len = p_.kv_len[s];
        } else {
          own = all[s];
        }
        if (is_decoded(own)) {
          const int of_line =
              shared() ? line_at(own.rows, own.kv_len).room : chunks_of(p_, own.rows, own.kv_len, cut_).count;
          own_lines = lines(own);
          count = of_line * own_lines;
        }
      }
      const int sum = sum_upto(count), all_lines = __reduce_add_sync(kFullWarp, own_lines);
      if (lane == kWarp - 1) sums[warp] = sum, lines_of[warp] = all_lines;
      team.sync();
      own.first_unit = count_ + sum - count;
      for (int w = 0; w < team.warps; ++w) {
        if (w < warp) own.first_unit += sums[w];
        count_ += sums[w], lines_ += lines_of[w];
      }
      if (s < sequences_) all[s] = own;
      team.sync();
    }
  }

  // How many grains longer parts have to be so that every line can begin with a part of its own. 31 if that is more
  // than seven. Each thread tries one of eight lengths.
  __device__ int grains_for_whole_lines(const Team& team) const {
    constexpr int kLengths = kMostUnitGrains + 1;
    static_assert(kLengths == 8);
    __shared__ int sums[kLengths][kMostWarps];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, own = lane % kLengths, part = part_ + own;
    int parts = 0;
    for (int s = static_cast<int>(threadIdx.x) / kLengths; s < sequences_; s += team.threads() / kLengths) {
      const SequenceWork work = all_[s];
      if (!is_decoded(work)) continue;
      parts += (line_of(p_, work.rows, work.kv_len).grains + part - 1) / part * lines(work);
    }
    for (int i = kLengths; i < kWarp; i *= 2) parts += __shfl_xor_sync(kFullWarp, parts, i);
    if (lane < kLengths) sums[own][warp] = parts;
    team.sync();
    parts = 0;
    for (int w = 0; w < team.warps; ++w) parts += sums[own][w];
    return __ffs(static_cast<int>(__ballot_sync(kFullWarp, parts <= cut_.shared_by) | 0x80000000u)) - 1;
  }

  __device__ bool is_decoded(const SequenceWork& s) const {
    int most = kMostDecodeRows;
    if constexpr (kOfPart<Params>) most = p_.most_decode_rows;
    return s.rows > 0 && s.rows * p_.group <= most && s.kv_len >= s.rows;
  }
  __device__ int lines(const SequenceWork& s) const { return p_.kv_heads * tiles(s.rows); }
  // Room behind a line's keys makes it begin with a part, or stands for the time that its unit takes beside them.
  __device__ Line line_at(int rows, int kv_len) const {
    Line line = line_of(p_, rows, kv_len);
    line.room = whole_lines_ ? (line.grains + part_ - 1) / part_ * part_ : line.grains + unit_room_;
    return line;
  }

  // The sequence that an index belongs to: the last one that begins at or before it.
  __device__ int sequence_at(int index) const {
    return last_of(0, sequences_ - 1, [&](int i) { return all_[i].first_unit <= index; });
  }

  // The unit of `length` keys from `from` on. Its chunk numbers are not filled in.
  __device__ Unit unit_of(int sequence, const SequenceWork& s, int kv_head, int first_row, int from, int length) const {
    const int last_token = min(s.rows - 1, group_.divide(first_row + tile_rows_ - 1)), past = s.kv_len - s.rows;
    int begin = max(from, first_visible(p_, past + group_.divide(first_row)));
    int end = min(from + length, last_visible(p_, past + last_token, s.kv_len) + 1);
    if (begin >= end) begin = end = from;  // its only stage then has keys that no row sees
    Unit unit{};
    unit.sequence = sequence, unit.kv_head = kv_head, unit.first_row = first_row;
    unit.first_token = s.first_token, unit.rows = s.rows, unit.kv_len = s.kv_len;
    unit.begin = begin, unit.end = end;
    return unit;
  }

  __device__ int tiles(int rows) const {  // tiles of 8 or 16 rows
    return (rows * p_.group + tile_rows_ - 1) >> (tile_rows_ == kQueries ? 3 : 4);
  }

  const Params& p_;
  const SequenceWork* all_;
  const int sequences_, tile_rows_;
  const Cut cut_;
  const Divisor kv_heads_, group_;
  int count_ = 0, lines_ = 0, part_ = 0;
  int unit_room_ = 0;         // grains behind every line; shared() only
  bool whole_lines_ = false;  // every line begins with a part
};

}  // namespace sluice::cuda
