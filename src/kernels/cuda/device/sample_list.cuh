// Few tokens, sorted by their keys in the shared memory of one block. Samplers leave a range of them.
#pragma once

#include "kernels/cuda/device/sample_team.cuh"

namespace sluice::cuda {

// Sorts keys in the shared memory of a block (bitonic sort). There is room for the next power of two.
__device__ __noinline__ inline void sort_keys(Sum* keys, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + thread; i < size; i += kTeamThreads) keys[i] = ~Sum{0};
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = thread; i < size / 2; i += kTeamThreads) {
        const int at = 2 * i - (i & (apart - 1));
        const Sum a = keys[at], b = keys[at + apart];
        if ((a > b) == ((at & run) == 0)) keys[at] = b, keys[at + apart] = a;
      }
    }
  }
  __syncthreads();
}

class SortedTokens {
 public:
  static constexpr int kMost = 2048;  // tokens
  static constexpr int kMostOfThread = kMost / kTeamThreads;
  struct Scratch {
    Team::Slots team;
    Scan::Slots scan;
  };
  struct Room {
    Sum keys[kMost];
    float distances[kMost], weights[kMost];
  };

  __device__ SortedTokens(Room& room, Scratch& scratch) : room_(room), team_(scratch.team), scan_(scratch.scan) {}

  // Takes the first `count` keys, which must be sorted.
  __device__ void take(int count, const ops::LogitShape& shape) {
    end_ = count;
    reshape(shape);
  }
  // Distances are now those of this shape.
  __device__ __noinline__ void reshape(ops::LogitShape shape) {
#pragma unroll 1
    for (int at = begin_ + thread(); at < end_; at += kTeamThreads) {
      const float distance = shape.of(ops::logit_of(room_.keys[at]));
      room_.distances[at] = distance, room_.weights[at] = ops::sample_weight(distance);
    }
    __syncthreads();  // tokens change hands
  }

  __device__ Sum first() const { return room_.keys[begin_]; }

  // For these see ops/sample_chain.h.
  template <class F>
  __device__ ops::Sums sums(F f) {
    ops::Sums mine;
    each([&](int at) { f(token(at), mine); });
    return team_.over_block(mine, Added());
  }

  template <class Accept>
  __device__ Sum last(Accept accept) {
    int mine = -1;
    each([&](int at) { mine = accept(token(at)) ? max(mine, at) : mine; });
    mine = team_.over_block(mine, Larger());
    return mine < 0 ? 0 : room_.keys[mine];
  }

  template <class Accept>
  __device__ void keep(Accept accept) {
    Range mine;
    each([&](int at) {
      if (accept(token(at))) mine = Both()(mine, {at, at});
    });
    mine = team_.over_block(mine, Both());
    begin_ = mine.first, end_ = mine.last + 1;
  }

  template <class F>
  __device__ void keep_prefix(F amount, Sum enough) {
    // Each thread adds up its share of neighbouring tokens.
    const int share = (end_ - begin_ + kTeamThreads - 1) / kTeamThreads;
    const int from = begin_ + thread() * share, to = min(from + share, end_);
    Sum mine = 0;
#pragma unroll 1
    for (int at = from; at < to; ++at) mine += amount(token(at));
    Sum before = scan_.upto(mine) - mine;
    int last = end_ - 1;
#pragma unroll 1
    for (int at = from; at < to && before < enough; ++at) {
      before += amount(token(at));
      if (before >= enough) last = at;
    }
    end_ = team_.over_block(last, Smaller()) + 1;
  }

  // Finds the rank bit by bit.
  template <class Rank, class F>
  __device__ Sum cut(Rank rank, F amount, Sum enough) {
    uint32_t ranks[kMostOfThread];
    Sum amounts[kMostOfThread];
    All all;
#pragma unroll
    for (int i = 0; i < kMostOfThread; ++i) {
      const int at = begin_ + thread() + i * kTeamThreads;
      ranks[i] = ~0u, amounts[i] = 0;
      if (at >= end_) continue;
      ranks[i] = static_cast<uint32_t>(rank(token(at))), amounts[i] = amount(token(at));
      all.amount += amounts[i], all.lowest = min(all.lowest, ranks[i]), all.highest = max(all.highest, ranks[i]);
    }
    all = team_.over_block(all, AllOf());
    if (all.amount < enough) return ~Sum{0};
    while (all.lowest < all.highest) {
      const uint32_t middle = all.lowest + (all.highest - all.lowest) / 2;
      Sum upto = 0;
#pragma unroll
      for (int i = 0; i < kMostOfThread; ++i) upto += ranks[i] <= middle ? amounts[i] : 0;
      if (team_.over_block(upto, Added()) >= enough) {
        all.highest = middle;
      } else {
        all.lowest = middle + 1;
      }
    }
    return all.lowest;
  }

  template <class F>
  __device__ ops::Sums ranked(int count, F f) {
    const int ranks = min(end_ - begin_, count);
    ops::Sums mine;
    each([&](int at) {
      if (at - begin_ < ranks) f(at - begin_, ranks, token(at), mine);
    });
    return team_.over_block(mine, Added());
  }

  // The key of the token with the largest score(token), among equal ones that with the lowest id.
  template <class Score>
  __device__ Sum best(Score score) {
    Winner mine;
    each([&](int at) {
      const ops::SampleToken one = token(at);
      mine = Wins()(mine, {{score(one), ops::id_of(one.key)}, one.key});
    });
    return team_.over_block(mine, Wins()).key;
  }

 private:
  struct Range {
    int first = kMost, last = -1;
  };
  struct Both {
    __device__ Range operator()(Range x, Range y) const { return {min(x.first, y.first), max(x.last, y.last)}; }
  };
  struct All {
    Sum amount = 0;
    uint32_t lowest = ~0u, highest = 0;
  };
  struct AllOf {
    __device__ All operator()(const All& x, const All& y) const {
      return {x.amount + y.amount, min(x.lowest, y.lowest), max(x.highest, y.highest)};
    }
  };
  struct Winner {
    Best best{-INFINITY, INT32_MAX};
    Sum key = 0;
  };
  struct Wins {
    __device__ Winner operator()(const Winner& x, const Winner& y) const {
      const bool loses = y.best.value > x.best.value || (y.best.value == x.best.value && y.best.id < x.best.id);
      return loses ? y : x;
    }
  };

  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ ops::SampleToken token(int at) const { return {room_.keys[at], room_.distances[at], room_.weights[at]}; }
  // Calls f for the positions of the thread's share.
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll 1
    for (int at = begin_ + thread(); at < end_; at += kTeamThreads) f(at);
  }

  Room& room_;
  Team team_;
  Scan scan_;
  int begin_ = 0, end_ = 0;
};

}  // namespace sluice::cuda
