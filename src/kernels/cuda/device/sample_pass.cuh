// A team's passes over a row in global memory. The first one finds the largest logit, and the highest logits of small
// groups of tokens. From them follows a logit that about as many tokens reach as a list needs. Only the groups that
// reach it are read again, except for sums of weights over the row, which take a second pass.
#pragma once

#include "kernels/cuda/device/sample_list.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

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
  float lowest = INFINITY;  // among the highest logits of groups
  uint32_t flags = 0;

  static constexpr uint32_t kBad = 1, kAlive = 2, kSpoiled = 4;  // as in Shared

  // The token that all begin with; or an error.
  __device__ int error() const {
    if ((flags & kBad) != 0 || (flags & kAlive) == 0) return ops::SampledRow::kBadLogits;
    return (flags & kSpoiled) != 0 || max == -INFINITY ? ops::SampledRow::kNoneLeft : 0;
  }
  struct Both {
    __device__ Found operator()(const Found& x, const Found& y) const {
      return {fmaxf(x.max, y.max), fminf(x.lowest, y.lowest), x.flags | y.flags};
    }
  };
};
__device__ inline Found over_warp(const Found& found, Found::Both, int = 32) {
  return {.max = from_ordered(__reduce_max_sync(~0u, ordered(found.max))),
          .lowest = from_ordered(__reduce_min_sync(~0u, ordered(found.lowest))),
          .flags = __reduce_or_sync(~0u, found.flags)};
}

// What is added up over a row.
enum class RowSums {
  kNone,
  kLogits,   // of all tokens, and perhaps the moments of those that top-n-sigma keeps
  kMoments,  // of all tokens
};
struct RowTotals {
  ops::Sums logits, moments;
  float cut = -INFINITY;  // with kLogits: the least logit that top-n-sigma keeps
};

// Of which tokens moments are added up: those of at least the logit `least`.
struct Wanted {
  float max;
  float linear = 1.0f, next_linear = 1.0f;  // factors of the distances
  float least = -FLT_MAX;
  bool gaps = true;  // some logits may be -infinity
};

// Adds up logits as ops::AddLogits does.
class UnitsOfThread {
 public:
  // `most` is the largest of the four logits, or NaN.
  __device__ void add(const float (&logits)[4], float most) {
    constexpr float kMost = ops::kMostLogitUnits / ops::kLogitUnits;
    if (most <= kMost && least_of_four(logits) >= -kMost) {
      uint32_t rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rounded[i] = __float_as_uint(fmaf(logits[i], ops::kLogitUnits, ops::kRoundToInteger));
      }
      rounded_ += rounded[0] + rounded[1] + rounded[2] + rounded[3];
#pragma unroll
      for (const uint32_t one : rounded) add_square(static_cast<int>(one - kZero));
      added_ += 4;
    } else {
      for (const float logit : logits) {
        if (logit == -INFINITY) continue;
        const int units = ops::logit_units(logit);
        rounded_ += kZero + static_cast<uint32_t>(units), ++added_;
        add_square(units);
      }
    }
  }
  // Must be called before 32 bits are too few for so many more.
  __device__ void make_room(int logits) {
    if (added_ + logits > kMostAdded) add_up();
  }
  __device__ ops::Sums take() {
    add_up();
    return sums_;
  }

 private:
  static constexpr uint32_t kZero = 0x4b400000u;  // the bits of ops::kRoundToInteger
  static constexpr int kMostAdded = 1023;         // units of at most 2^21

  __device__ void add_square(int units) { sums_.c += static_cast<uint64_t>(int64_t{units} * units); }
  __device__ void add_up() {
    const auto sum = static_cast<int64_t>(static_cast<int32_t>(rounded_ - static_cast<uint32_t>(added_) * kZero));
    sums_.a += static_cast<uint64_t>(added_), sums_.b += static_cast<uint64_t>(sum);
    rounded_ = 0, added_ = 0;
  }

  uint32_t rounded_ = 0;
  int added_ = 0;
  ops::Sums sums_;
};

class TeamRow {
 public:
  static constexpr int kMostVocab = TeamShared::kMostGroups * 4 * 32;

  __device__ explicit TeamRow(const Row& row)
      : row_(row),
        packed_(reinterpret_cast<uintptr_t>(row.logits) % 16 == 0),
        step_(static_cast<int>(gridDim.x) * TeamShared::kTile),
        first_(static_cast<int>(blockIdx.x) * TeamShared::kTile),
        tiles_(max(row.vocab - first_ + step_ - 1, 0) / step_) {
    const int whole = packed_ ? (row.vocab - first_ + step_ - TeamShared::kTile) / step_ : 0;
    whole_tiles_ = max(whole, 0);
    while (tiles_ * tile_groups() > TeamShared::kMostGroups) group_lanes_ *= group_lanes_ == 1 ? 4 : 2;
  }

  template <class T, class Op>
  __device__ T combine(const T& value, Op op) {
    return team_.over_team(value, op);
  }

  // Looks at all logits, for a list of at least `count` tokens. With kSums, also adds them up.
  template <bool kSums>
  __device__ Found look(int count, uint32_t flags, ops::Sums& sums) {
    Found found{.flags = flags};
    float raw = -INFINITY, top = -INFINITY;
    UnitsOfThread units;
    const Row row = row_;
    const bool masked = row.mask != nullptr;
    const int lanes = group_lanes_, leads = thread() % lanes == 0;
    uint32_t group = shared_address(&team_shared().groups.highest[thread() / lanes]);
    const uint32_t group_bytes = static_cast<uint32_t>(tile_groups()) * sizeof(float);  // from one tile to the next
    const auto look = [&](int id, float(&logits)[4], auto plain) {
      float here = max_of_four(logits);
      if (!plain && masked) {
        raw = max_or_nan(raw, here);
        if (id < row.vocab) row.hide(id / 4, logits);
        here = max_of_four(logits);
      }
      top = max_or_nan(top, here);
      if constexpr (kSums) units.add(logits, here);
      if (lanes > 1) {
        here = max_or_nan(here, __shfl_xor_sync(~0u, here, 1));
        here = max_or_nan(here, __shfl_xor_sync(~0u, here, 2));
#pragma unroll 1
        for (int lane = 4; lane < lanes; lane *= 2) here = max_or_nan(here, __shfl_xor_sync(~0u, here, lane));
      }
      if (leads) store_shared(group, here);
      group += group_bytes;
    };
    constexpr int kAtOnce = 8;
    each_four<kAtOnce, false>(!masked, look, [&] {
      if constexpr (kSums) units.make_room(4 * kAtOnce);
    });
    if constexpr (kSums) sums = units.take();
    if (!masked) raw = top;
    if (!(raw < INFINITY)) found.flags |= Found::kBad;
    if (raw > -INFINITY) found.flags |= Found::kAlive;
    found.max = fmaxf(found.max, top);
    __syncthreads();
    each_merged(count, [&](float highest) {
      if (highest > -INFINITY) found.lowest = fminf(found.lowest, highest);
    });
    return found;
  }

  // After look(): a logit that at least `count` tokens reach, but hardly more. -FLT_MAX: there may be fewer.
  __device__ float likely_prefix(const Found& found, int count) {
    const LogitBins bins(found.max, found.lowest, kTeamThreads);
    team_shared().bins[thread()] = 0;
    __syncthreads();
    each_merged(count, [&](float highest) {
      if (highest > -INFINITY) atomicAdd(&team_shared().bins[bins.bin(highest)], 1);
    });
    sync_team();
    int own = 0;
#pragma unroll
    for (int block = 0; block < kMostTeamBlocks; ++block) {
      if (block < static_cast<int>(gridDim.x)) own += *in_block(block, &team_shared().bins[thread()]);
    }
    return bins.end(bin_of(own, count));
  }

  // After look(): lists the tokens of at least the logit `least`. It reads only the groups that have one.
  __device__ __noinline__ void list_from(float least) {
    if (thread() == 0) team_shared().listings = 0;
    const auto reaches = [&](float logit) { return logit >= least ? 1 : 0; };
    int mine = 0;
    each_four_groups([&](int, const float4& four) {
      mine += reaches(four.x) + reaches(four.y) + reaches(four.z) + reaches(four.w);
    });
    const int upto = static_cast<int>(scan_.upto(static_cast<Sum>(mine)));
    int* const reaching = team_shared().groups.reaching;
    int to = upto - mine;
    each_four_groups([&](int group, const float4& four) {
      const float highest[4] = {four.x, four.y, four.z, four.w};
      for (int i = 0; i < 4; ++i) {
        if (highest[i] >= least && to < kMostSorted) reaching[to++] = group + i;
      }
    });
    const int groups = team_.over_block(upto, Larger());  // the keys take the place of their highest logits
    if (groups <= kMostSorted) {
      list_groups(groups, least);
    } else if (thread() == 0) {
      team_shared().listings = groups;
    }
    sync_team();
  }

  // A pass that adds up moments of all tokens, or of a part of them; see Wanted. The sums are those of all threads.
  template <bool kAll>
  __device__ __noinline__ ops::Sums moments(Wanted wanted) {
    __syncthreads();
    ops::Sums mine;
    UnitSum weights, energies;
    int none = 0, added = 0;   // logits that are -infinity; logits since the last add_up()
    const auto add_up = [&] {  // before 32 bits are too few
      mine.a += weights.take(added), mine.b += energies.take(added), added = 0;
    };
    const Row row = row_;
    const bool masked = row.mask != nullptr, gaps = (kAll && wanted.gaps) || masked;
    const float top = wanted.max, linear = wanted.linear, least = wanted.least;
    constexpr uint32_t kNext = kTeamThreads * sizeof(float);  // from one logit of a thread's queue to the next
    const uint32_t queue = shared_address(&team_shared().groups.queue[0][thread()]);
    uint32_t queue_end = queue;
    const auto add = [&](int id, float(&logits)[4], auto plain) {
      if (!plain && masked && id < row.vocab) row.hide(id / 4, logits);
      if constexpr (kAll) {
        if (!plain) {
          for (const float logit : logits) none += logit == -INFINITY ? 1 : 0;
        }
        added += 4;
#pragma unroll
        for (const float logit : logits) {
          const float distance = ops::straight_distance(top, logit, linear);
          const float weight = ops::sample_weight(distance);
          weights.add(weight), energies.add(ops::times(weight, -distance));
        }
      } else {
#pragma unroll
        for (const float logit : logits) {
          if (logit >= least) store_shared(queue_end, logit), queue_end += kNext;
        }
        if (__any_sync(~0u, queue_end > queue + (TeamShared::kQueued - 4) * kNext)) {
          empty_queue(wanted, static_cast<int>((queue_end - queue) / kNext), mine);
          queue_end = queue;
        }
      }
    };
    each_four<4, true>(!gaps, add, [&] {
      if (kAll && added + 16 > UnitSum::kMostTerms) add_up();
    });
    if constexpr (kAll) {
      add_up();
      mine.c = static_cast<Sum>(4 * tiles_ - none);
    } else {
      empty_queue(wanted, static_cast<int>((queue_end - queue) / kNext), mine);
    }
    return combine(mine, Added());
  }

  // After list_from(): brings all listed keys to the first block. Returns their number, also if there is no room for
  // them. All blocks call it, and wait for each other behind it.
  __device__ int gather() {
    if (gridDim.x == 1) return team_shared().listings;
    const int block = min(thread() % 32, static_cast<int>(gridDim.x) - 1);
    const int listed = *in_block(block, &team_shared().listings);
    int all = 0;
#pragma unroll
    for (int from = 0; from < kMostTeamBlocks; ++from) {
      if (from >= static_cast<int>(gridDim.x)) continue;
      const int count = __shfl_sync(~0u, listed, from);
      if (blockIdx.x == 0 && from > 0) {
        for (int i = thread(); i < count && all + i < kMostSorted; i += kTeamThreads) {
          team_shared().keys[all + i] = *in_block(from, &team_shared().keys[i]);
        }
      }
      all += count;
    }
    return all;
  }

 private:
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }

  // Four neighbouring logits. Those behind the last one are -infinity.
  __device__ float4 load_four(int id) const {
    float4 four{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const float* from = row_.logits + id;
    if (packed_ && id + 3 < row_.vocab) return __ldcg(reinterpret_cast<const float4*>(from));
    if (id < row_.vocab) four.x = __ldcg(from);
    if (id + 1 < row_.vocab) four.y = __ldcg(from + 1);
    if (id + 2 < row_.vocab) four.z = __ldcg(from + 2);
    if (id + 3 < row_.vocab) four.w = __ldcg(from + 3);
    return four;
  }

  // Calls f(id, logits, plain) for every four neighbours of this thread. The id is that of the first neighbour. Logits
  // behind the last one are -infinity, and the mask is not applied. `plain` is a constant: whether four logits exist
  // and, as the caller says by `plain_row`, need no further checks. All threads of a warp call it together. kAtOnce
  // times four logits are on their way. Calls between() after as many. The first pass may have left the end of the row
  // in L2, so the next one goes backwards.
  template <int kAtOnce, bool kBackwards, class F, class Between>
  __device__ void each_four(bool plain_row, F&& f, Between&& between) const {
    const int tiles = tiles_, step = step_;
    const int plain_batches = (plain_row ? whole_tiles_ : 0) / kAtOnce, own = first_ + 4 * thread();
    const float* const logits = row_.logits;
    float4 here[kAtOnce];
    const auto use = [&](int id, const float4& here, auto plain) {
      float four[4] = {here.x, here.y, here.z, here.w};
      f(id, four, plain);
    };
    const auto other_batches = [&] {
#pragma unroll 1
      for (int tile = plain_batches * kAtOnce; tile < tiles; tile += kAtOnce) {
        const int id = own + tile * step;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) here[i] = load_four(id + i * step);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (tile + i < tiles) use(id + i * step, here[i], std::false_type());
        }
        between();
      }
    };
    if (kBackwards) other_batches();
    const auto load = [&](int id) { return __ldcg(reinterpret_cast<const float4*>(logits + id)); };
    const int to_next = kBackwards ? -kAtOnce * step : kAtOnce * step;
    int id = own + (kBackwards ? (plain_batches - 1) * kAtOnce * step : 0);
    if (plain_batches > 0) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) here[i] = load(id + i * step);
    }
#pragma unroll 1
    for (int left = plain_batches; left > 0; --left) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        use(id + i * step, here[i], std::true_type());
        if (left > 1) here[i] = load(id + to_next + i * step);
      }
      id += to_next;
      between();
    }
    if (!kBackwards) other_batches();
  }

  // Calls f(group, four highest logits) for this thread's share of the groups, four neighbours at a time.
  template <class F>
  __device__ void each_four_groups(F&& f) const {
    const int fours = tiles_ * tile_groups() / 4;
    const auto* const highest = reinterpret_cast<const float4*>(team_shared().groups.highest);
#pragma unroll 2
    for (int four = thread(); four < fours; four += kTeamThreads) f(four * 4, highest[four]);
  }
  // Calls f(highest logit) for groups, or for few groups that are merged, if there are four times as many as `count`.
  template <class F>
  __device__ void each_merged(int count, F&& f) const {
    const int groups = static_cast<int>(gridDim.x) * tiles_ * tile_groups(),
              threads = static_cast<int>(gridDim.x) * kTeamThreads;
    if (4 * count <= threads) {
      float all = -INFINITY;
      each_four_groups(
          [&](int, const float4& four) { all = fmaxf(all, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w))); });
      return f(all);
    }
    const bool pairs = 4 * count <= groups / 2;
    each_four_groups([&](int, const float4& four) {
      f(pairs ? fmaxf(four.x, four.y) : four.x), f(pairs ? fmaxf(four.z, four.w) : four.z);
      if (!pairs) f(four.y), f(four.w);
    });
  }
  // The id of this thread's four neighbours in a group.
  __device__ int id_in_group(int group) const {
    const int groups = tile_groups(), tile = group >> (31 - __clz(groups));
    return first_ + tile * step_ + ((group & (groups - 1)) * group_lanes_ + thread() % group_lanes_) * 4;
  }

  // Adds up the moments of a thread's queue.
  static __device__ __noinline__ void empty_queue(const Wanted& wanted, int queued, ops::Sums& sums) {
    const Wanted plan = wanted;
    UnitSum weights, energies;
#pragma unroll 1
    for (int at = 0; at < queued; ++at) {
      const float logit = team_shared().groups.queue[at][thread()];
      const float distance = ops::times(ops::straight_distance(plan.max, logit, plan.linear), plan.next_linear);
      const float weight = ops::sample_weight(distance);
      weights.add(weight), energies.add(ops::times(weight, -distance));
    }
    __syncwarp();
    const ops::Sums before = sums;
    sums = {before.a + weights.take(queued), before.b + energies.take(queued), before.c + static_cast<Sum>(queued)};
  }
  // Lists the tokens of at least the logit `least` in the first `groups` groups that reach it.
  __device__ void list_groups(int groups, float least) const {
    constexpr int kAtOnce = 8;
    const Row row = row_;
    const int step = tile_groups(), own = thread() / group_lanes_, lane = thread() % 32;
#pragma unroll 1
    for (int first = 0; first < groups; first += kAtOnce * step) {
      int ids[kAtOnce], mine = 0;
      float4 here[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + own + i * step;
        ids[i] = at < groups ? id_in_group(team_shared().groups.reaching[at]) : row.vocab;
        here[i] = load_four(ids[i]);
      }
      const auto each = [&](auto&& f) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float four[4] = {here[i].x, here[i].y, here[i].z, here[i].w};
#pragma unroll
          for (int of_four = 0; of_four < 4; ++of_four) {
            if (four[of_four] >= least) f(four[of_four], ids[i] + of_four);
          }
        }
      };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row.mask == nullptr || ids[i] >= row.vocab) continue;
        float four[4] = {here[i].x, here[i].y, here[i].z, here[i].w};
        row.hide(ids[i] / 4, four);
        here[i] = {four[0], four[1], four[2], four[3]};
      }
      each([&](float, int) { ++mine; });
      int upto = mine, before = 0;  // the sum of this lane and those before it; tokens that are listed already
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(~0u, upto, offset);
        if (lane >= offset) upto += other;
      }
      if (lane == 31) before = atomicAdd(&team_shared().listings, upto);
      int to = __shfl_sync(~0u, before, 31) + upto - mine;
      each([&](float logit, int id) {
        if (to < kMostSorted) team_shared().keys[to++] = ops::order_key(logit, id);
      });
    }
  }

  __device__ int tile_groups() const { return kTeamThreads / group_lanes_; }

  Team team_;
  Scan scan_;
  const Row& row_;
  bool packed_;
  int step_, first_, tiles_;  // ids from one tile of this block to the next; its first id
  int whole_tiles_;           // the first ones, which need no checks
  int group_lanes_ = 1;       // neighbouring lanes whose logits are a group, 16 bytes or at least 64
};

}  // namespace sluice::cuda
