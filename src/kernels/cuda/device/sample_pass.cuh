// A team's passes over a row in global memory. Each thread copies its logits ahead to shared memory. A pass takes few
// instructions per token; what costs more waits in a queue until most threads of a warp have such a token.
#pragma once

#include "kernels/cuda/device/sample_list.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// The larger value; NaN if one is NaN.
__device__ inline float max_or_nan(float x, float y) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}
__device__ inline float least_of_four(const float (&x)[4]) { return fminf(fminf(x[0], x[1]), fminf(x[2], x[3])); }
__device__ inline float max_of_four(const float (&x)[4]) {
  return max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3]));
}

// What the threads find when they first look at a row.
struct Found {
  float max = -INFINITY;
  float lowest = INFINITY;           // among the highest logits of groups
  float sum = 0.0f, squares = 0.0f;  // of differences from a logit
  int tokens = 0;                    // that are in these sums
  uint32_t flags = 0;

  static constexpr uint32_t kBad = 1, kAlive = 2, kSpoiled = 4;  // as in Shared

  // The token that all begin with; or an error.
  __device__ int error() const {
    if ((flags & kBad) != 0 || (flags & kAlive) == 0) return ops::SampledRow::kBadLogits;
    return (flags & kSpoiled) != 0 || max == -INFINITY ? ops::SampledRow::kNoneLeft : 0;
  }
  struct Both {
    __device__ Found operator()(const Found& x, const Found& y) const {
      return {fmaxf(x.max, y.max),   fminf(x.lowest, y.lowest), x.sum + y.sum,
              x.squares + y.squares, x.tokens + y.tokens,       x.flags | y.flags};
    }
  };
  // The standard deviation. It may differ from that of exact sums.
  __device__ float deviation() const {
    const float mean = sum / static_cast<float>(tokens);
    return sqrtf(fmaxf(squares / static_cast<float>(tokens) - mean * mean, 0.0f));
  }
};

// What is added up over all tokens of a row.
enum class RowSums { kNone, kDistances, kMoments };

// Which tokens of a row are queued, and what for.
struct Wanted {
  float max;
  float least_listed;   // tokens of at least this logit are listed
  float least_queued;   // at most least_listed
  float linear = 1.0f;  // factor of the distances
  // With kDistances: top-n-sigma's factor, and what its cut is likely to be. The tokens that it keeps are added up.
  float sigmas = 0.0f, cut = 0.0f, margin = 0.0f;
  float next_linear = 1.0f;  // a second factor of their distances
  bool by_logit = false;     // whether logits are cut, or distances
  bool gaps = true;          // some logits may be -infinity

  __device__ float value(float logit) const { return by_logit ? logit : ops::straight_distance(max, logit, linear); }
};

// What a pass collects.
struct Collected {
  ops::Sums all, kept;
  float cut = 0.0f;                           // top-n-sigma's
  float below = -INFINITY, above = INFINITY;  // the logits next to it
  bool known = true;                          // false: the cut is too far from the likely one

  __device__ void keep(const Wanted& wanted, float logit) {
    const float distance = ops::times(ops::straight_distance(wanted.max, logit, wanted.linear), wanted.next_linear);
    ops::AddMoments()(ops::SampleToken{.distance = distance, .weight = ops::sample_weight(distance)}, kept);
    above = fminf(above, logit);
  }
};

__device__ inline void store_entry(uint32_t to, const QueueEntry& entry) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(__float_as_uint(entry.logit)), "r"(entry.place)
               : "memory");
}

class TeamRow {
 public:
  __device__ explicit TeamRow(const Row& row)
      : row_(row),
        packed_(reinterpret_cast<uintptr_t>(row.logits) % 16 == 0),
        step_(static_cast<int>(gridDim.x) * TeamShared::kTile),
        first_(static_cast<int>(blockIdx.x) * TeamShared::kTile),
        tiles_(max(row.vocab - first_ + step_ - 1, 0) / step_) {}

  template <class T, class Op>
  __device__ T combine(const T& value, Op op) {
    return team_.over_team(value, op);
  }

  // Looks at all logits. With `moments`, also adds them up.
  __device__ Found look(bool moments, uint32_t flags) {
    float* const groups = &team_shared().first.highest[0][thread()];  // their highest logits
    for (int group = 0; group < TeamShared::kGroups; ++group) groups[group * kTeamThreads] = -INFINITY;
    Found found{.flags = flags};
    float raw = -INFINITY;
    const Row row = row_;
    const float base = row.logits[0] > -INFINITY && row.logits[0] < INFINITY ? row.logits[0] : 0.0f;
    const bool masked = row.mask != nullptr;
    each_four<false>(team_shared().first.ring, [&](int tile, int id, float(&logits)[4]) {
      float here = max_of_four(logits);
      if (masked && id < row.vocab) {
        raw = max_or_nan(raw, here);
        row.hide(id / 4, logits);
        here = max_of_four(logits);
      }
      float& group = groups[tile % TeamShared::kGroups * kTeamThreads];
      group = max_or_nan(group, here);
      if (moments) {
        found.tokens += 4;
        if (least_of_four(logits) == -INFINITY) {
          for (float& logit : logits) {
            if (logit == -INFINITY) logit = base, --found.tokens;
          }
        }
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (const float logit : logits) {
          const float difference = logit - base;
          sum += difference, squares = fmaf(difference, difference, squares);
        }
        found.sum += sum, found.squares += squares;
      }
    });
    for (int group = 0; group < TeamShared::kGroups; ++group) {
      const float here = groups[group * kTeamThreads];
      if (!masked) raw = max_or_nan(raw, here);
      if (here > -INFINITY) found.lowest = fminf(found.lowest, here);
      found.max = fmaxf(found.max, here);
    }
    if (!(raw < INFINITY)) found.flags |= Found::kBad;
    if (raw > -INFINITY) found.flags |= Found::kAlive;
    return found;
  }

  // After look(): a logit that at least `count` tokens reach, but hardly twice as many. -FLT_MAX: there may be fewer.
  __device__ float likely_prefix(const Found& found, int count) {
    const LogitBins bins(found.max, found.lowest, kTeamThreads);
    team_shared().bins[thread()] = 0;
    __syncthreads();
#pragma unroll 1
    for (int group = 0; group < TeamShared::kGroups; ++group) {
      const float highest = team_shared().first.highest[group][thread()];
      if (highest > -INFINITY) atomicAdd(&team_shared().bins[bins.bin(highest)], 1);
    }
    sync_team();
    int own = team_shared().bins[thread()];
    for (int other = 1; other < static_cast<int>(gridDim.x); ++other) {
      own += *in_block((static_cast<int>(blockIdx.x) + other) % static_cast<int>(gridDim.x),
                       &team_shared().bins[thread()]);
    }
    return bins.end(bin_of(own, count));
  }

  // A pass that lists tokens and adds up; see Wanted. The sums are those of all threads.
  template <RowSums kSums>
  __device__ __noinline__ Collected collect(Wanted wanted) {
    __syncthreads();
    if (thread() == 0) team_shared().listings = team_shared().doubts = 0;
    __syncthreads();
    Collected mine{.below = wanted.least_queued};
    ops::Sums all;  // kept in registers, as `mine` is not
    int tokens = 0;
    const Row row = row_;
    const bool masked = row.mask != nullptr, gaps = wanted.gaps;
    const float top = wanted.max, least = wanted.least_queued, units_per_logit = wanted.linear * ops::kDistanceUnits;
    constexpr uint32_t kEntryBytes = kTeamThreads * sizeof(QueueEntry);  // from one entry of a thread to the next
    const uint32_t queue = shared_address(&team_shared().second.queue[0][thread()]);
    uint32_t queue_end = queue;
    const auto empty = [&] {
      empty_queue<kSums>(wanted, static_cast<int>((queue_end - queue) / kEntryBytes), mine);
      queue_end = queue;
    };
    each_four<true>(team_shared().second.ring, [&](int tile, int id, float(&logits)[4]) {
      if (masked && id < row.vocab) row.hide(id / 4, logits);
      if constexpr (kSums == RowSums::kDistances) {
        uint32_t units[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) units[i] = ops::rounded_units(ops::times(top - logits[i], units_per_logit));
        tokens += 4;
        if (gaps || id + 4 > row.vocab) {
          for (int i = 0; i < 4; ++i) {
            if (logits[i] == -INFINITY) units[i] = 0, --tokens;
          }
        }
        all.b += units[0] + units[1] + units[2] + units[3];
#pragma unroll
        for (const uint32_t one : units) all.c += uint64_t{one} * one;
      }
      if constexpr (kSums == RowSums::kMoments) {
#pragma unroll
        for (const float logit : logits) {
          if (logit == -INFINITY) continue;
          const float distance = ops::straight_distance(top, logit, wanted.linear);
          ops::AddMoments()(ops::SampleToken{.distance = distance, .weight = ops::sample_weight(distance)}, all);
        }
      }
      if (kSums == RowSums::kDistances || max_of_four(logits) >= least) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (logits[i] >= least) store_entry(queue_end, {logits[i], tile * 4 + i}), queue_end += kEntryBytes;
        }
      }
      if (__any_sync(~0u, queue_end > queue + (TeamShared::kQueued - 4) * kEntryBytes)) empty();
    });
    empty();
    if constexpr (kSums == RowSums::kDistances) {
      all.a = static_cast<Sum>(tokens);
      mine.all = combine(all, Added());
      settle(wanted, mine);
    }
    if constexpr (kSums == RowSums::kMoments) mine.all = combine(all, Added());
    if constexpr (kSums == RowSums::kNone) sync_team();
    return mine;
  }

  // After collect(): brings all listed keys to the first block. Returns their number, also if there is no room for
  // them. All blocks call it, and wait for each other behind it.
  __device__ int gather() {
    int all = 0;
    for (int block = 0; block < static_cast<int>(gridDim.x); ++block) {
      const int listed =
          block == static_cast<int>(blockIdx.x) ? team_shared().listings : *in_block(block, &team_shared().listings);
      if (blockIdx.x == 0 && block > 0) {
        for (int i = thread(); i < listed && all + i < kMostSorted; i += kTeamThreads) {
          team_shared().keys[all + i] = *in_block(block, &team_shared().keys[i]);
        }
      }
      all += listed;
    }
    return all;
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }

  // Copies four logits to shared memory, or `valid` ones and -infinity.
  static __device__ __noinline__ void copy_singly(uint32_t to, const float* from, int valid) {
    for (int i = 0; i < 4; ++i) {
      if (i < valid) {
        copy_async_words<1>(to + 4 * i, from + i);
      } else {
        store_shared(to + 4 * i, -INFINITY);
      }
    }
  }

  // Calls f(tile, id, logits) for every four neighbours of this thread, without the mask. Logits behind the last one
  // are -infinity. Tiles are counted within this block. The id is that of the first neighbour.
  template <bool kBackwards, int kTiles, class F>
  __device__ void each_four(float (&ring)[kTiles][TeamShared::kTile], F&& f) const {
    constexpr uint32_t kTileBytes = sizeof(float) * TeamShared::kTile, kRing = kTiles * kTileBytes - 1;
    constexpr int kAhead = kTiles - 1;
    static_assert((kRing & (kRing + 1)) == 0);
    const int tiles = tiles_, step = kBackwards ? -step_ : step_;
    const float* logits = row_.logits;
    const auto vocab = static_cast<uint32_t>(row_.vocab);
    const uint32_t packed_end = packed_ && vocab > 3 ? vocab - 3 : 0;  // of ids that begin four packed neighbours
    int id = first_ + 4 * thread() + (kBackwards ? (tiles - 1) * step_ : 0), to_copy = id;
    const auto* own = reinterpret_cast<const unsigned char*>(&ring[0][4 * thread()]);
    const uint32_t own_address = shared_address(own);
    const auto copy = [&](uint32_t to) {
      const auto from = static_cast<uint32_t>(to_copy);  // beyond all ids if negative
      if (from < packed_end) {
        copy_async(own_address + to, logits + from);
      } else if (to_copy >= 0) {
        copy_singly(own_address + to, logits + from, static_cast<int>(vocab) - to_copy);
      }
      to_copy += step;
      commit_copies();
    };
#pragma unroll
    for (int tile = 0; tile < kAhead; ++tile) copy(tile * kTileBytes);
    uint32_t at = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      wait_for_copies<kAhead - 1>();
      copy((at + kAhead * kTileBytes) & kRing);
      const float4 here = *reinterpret_cast<const float4*>(own + at);
      float four[4] = {here.x, here.y, here.z, here.w};
      f(kBackwards ? tiles - 1 - tile : tile, id, four);
      at = (at + kTileBytes) & kRing;
      id += step;
    }
    wait_for_all_copies();
  }

  template <RowSums kSums>
  __device__ __noinline__ void empty_queue(const Wanted& wanted, int queued, Collected& collected) const {
    const int most = __reduce_max_sync(~0u, queued);
    Collected all = collected;  // in registers
#pragma unroll 1
    for (int at = 0; at < most; ++at) {
      if (at >= queued) continue;
      const QueueEntry entry = team_shared().second.queue[at][thread()];
      const float logit = entry.logit + 0.0f;
      if (logit >= wanted.least_listed) {
        const int place = entry.place;
        list(ops::order_key(logit, first_ + place / 4 * step_ + 4 * thread() + place % 4));
      }
      if constexpr (kSums == RowSums::kDistances) {
        const float value = wanted.value(logit);
        if (value >= wanted.cut + wanted.margin) {
          all.keep(wanted, logit);
        } else if (value < wanted.cut - wanted.margin) {
          all.below = fmaxf(all.below, logit);
        } else {
          const int doubt = atomicAdd(&team_shared().doubts, 1);
          if (doubt < TeamShared::kMostDoubtful) team_shared().second.doubtful[doubt] = logit;
        }
      }
    }
    collected = all;
  }

  // Computes top-n-sigma's cut from the sums, and decides about tokens that are close to it.
  __device__ __noinline__ void settle(const Wanted& wanted, Collected& mine) {
    mine.cut = ops::sigma_cutoff(wanted.by_logit ? wanted.max : 0.0f, wanted.sigmas, mine.all);
    const int doubts = team_shared().doubts;
    if (thread() < min(doubts, TeamShared::kMostDoubtful)) {
      const float logit = team_shared().second.doubtful[thread()];
      if (wanted.value(logit) >= mine.cut) {
        mine.keep(wanted, logit);
      } else {
        mine.below = fmaxf(mine.below, logit);
      }
    }
    if (doubts > TeamShared::kMostDoubtful) mine.below = INFINITY;
    mine.kept = combine(mine.kept, Added());
    mine.below = combine(mine.below, Larger()), mine.above = combine(mine.above, Smaller());
    mine.known = wanted.value(mine.above) >= mine.cut && wanted.value(mine.below) < mine.cut;
  }
  __device__ void list(Sum key) const {
    const int at = atomicAdd(&team_shared().listings, 1);
    if (at < kMostSorted) team_shared().keys[at] = key;
  }

  Team team_;
  const Row& row_;
  bool packed_;
  int step_, first_, tiles_;  // ids from one tile of this block to the next; its first id
};

}  // namespace sluice::cuda
