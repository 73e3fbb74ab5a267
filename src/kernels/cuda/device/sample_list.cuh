// Few tokens, sorted by their keys in the shared memory of one block. Samplers leave a range of them.
#pragma once

#include <cfloat>
#include <type_traits>

#include "kernels/cuda/device/sample_team.cuh"

namespace sluice::cuda {

// Bins of equal width between the highest logit and the lowest one of some.
class LogitBins {
 public:
  __device__ LogitBins(float top, float lowest, int bins)
      : top_(top), per_logit_(top - lowest > 0 ? static_cast<float>(bins - 1) / (top - lowest) : 0), bins_(bins) {}

  __device__ int bin(float logit) const { return min(static_cast<int>((top_ - logit) * per_logit_), bins_ - 1); }
  // The logit where a bin ends.
  __device__ float end(int bin) const {
    return bin >= bins_ - 1 || !(per_logit_ > 0) ? -FLT_MAX : top_ - (static_cast<float>(bin) + 1.01f) / per_logit_;
  }

 private:
  float top_, per_logit_;
  int bins_;
};

// Sorts the first keys of a block (bitonic sort).
__device__ __noinline__ inline void sort_in_place(int count) {
  auto& keys = team_shared().keys;
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

// Sorts the first keys of a block: by bins, and by counting within a bin.
__device__ __noinline__ inline void sort_keys(int count, LogitBins bins, Scan scan) {
  constexpr int kMost = kMostSorted, kOfThread = kMost / kTeamThreads, kMostInBin = 48;
  auto& keys = team_shared().keys;
  int(&starts)[kMost] = team_shared().values.starts;
  const int thread = static_cast<int>(threadIdx.x);
  Sum own[kOfThread];
  int bin[kOfThread], to[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) starts[thread + i * kTeamThreads] = 0;
  __syncthreads();
  bool crowded = false;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int at = thread + i * kTeamThreads;
    if (at >= count) continue;
    own[i] = keys[at], bin[i] = bins.bin(ops::logit_of(own[i]));
    to[i] = atomicAdd(&starts[bin[i]], 1);
    crowded |= to[i] >= kMostInBin;
  }
  if (__syncthreads_or(crowded)) return sort_in_place(count);
  int here[kOfThread], all = 0;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) all += here[i] = starts[thread * kOfThread + i];
  int before = static_cast<int>(scan.upto(static_cast<Sum>(all))) - all;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) starts[thread * kOfThread + i] = before, before += here[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    if (thread + i * kTeamThreads < count) keys[starts[bin[i]] + to[i]] = own[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    if (thread + i * kTeamThreads >= count) continue;
    to[i] = starts[bin[i]];
    const int end = bin[i] + 1 < kMost ? starts[bin[i] + 1] : count;
#pragma unroll 1
    for (int other = starts[bin[i]]; other < end; ++other) to[i] += keys[other] < own[i] ? 1 : 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    if (thread + i * kTeamThreads < count) keys[to[i]] = own[i];
  }
  __syncthreads();
}

// Finds the bin of a histogram where `count` is reached, in a block that has one bin per thread. Returns
// kTeamThreads if there are too few.
__device__ inline int bin_of(int own, int count) {
  int& last = team_shared().last_bin;
  if (threadIdx.x == 0) last = kTeamThreads;
  __syncthreads();
  const int upto = static_cast<int>(Scan().upto(static_cast<Sum>(own)));
  if (upto >= count && upto - own < count) last = static_cast<int>(threadIdx.x);
  __syncthreads();
  return last;
}

// Places in a list.
struct PlaceRange {
  int first = kMostSorted, last = -1;
};
struct Hull {};
__device__ inline PlaceRange over_warp(const PlaceRange& range, Hull, int = 32) {
  return {__reduce_min_sync(~0u, range.first), __reduce_max_sync(~0u, range.last)};
}

class SortedTokens {
 public:
  // Takes the first `count` keys. `bins` are those in which the keys are sorted.
  __device__ void take(int count, const LogitBins& bins, const ops::LogitShape& shape) {
    sort_keys(count, bins, scan_);
    end_ = count;
    reshape(shape);
  }
  // Distances are now those of this shape.
  __device__ __noinline__ void reshape(ops::LogitShape shape) {
    __syncthreads();  // others may still look at a token
    each([&](int at, const ops::SampleToken& token) {
      const float distance = shape.of(ops::logit_of(token.key));
      values().distances[at] = distance, values().weights[at] = ops::sample_weight(distance);
    });
    __syncthreads();  // tokens change hands
  }

  __device__ Sum first() const { return keys()[begin_]; }
  __device__ int count() const { return end_ - begin_; }
  __device__ ops::SampleToken last() const { return token(end_ - 1); }

  // For these see ops/sample_chain.h.
  template <class F>
  __device__ ops::Sums sums(F f) {
    ops::Sums mine;
    each([&](int, const ops::SampleToken& token) { f(token, mine); });
    if constexpr (std::is_same_v<F, ops::AddUnits>) return {.a = team_.over_block(Sum{mine.a}, Added())};
    return team_.over_block(mine, Added());
  }

  template <class Accept>
  __device__ Sum last(Accept accept) {
    int mine = -1;
    each([&](int at, const ops::SampleToken& token) { mine = accept(token) ? max(mine, at) : mine; });
    mine = team_.over_block(mine, Larger());
    return mine < 0 ? 0 : keys()[mine];
  }

  template <class Accept>
  __device__ void keep(Accept accept) {
    PlaceRange mine;
    each([&](int at, const ops::SampleToken& token) {
      if (accept(token)) mine = {min(mine.first, at), at};
    });
    mine = team_.over_block(mine, Hull());
    begin_ = mine.first, end_ = mine.last + 1;
  }

  // Returns whether the amounts add up to `enough`.
  template <class F>
  __device__ bool keep_prefix(F amount, Sum enough) {
    // Each thread adds up its share of neighbouring tokens.
    const int share = (end_ - begin_ + kTeamThreads - 1) / kTeamThreads | 1;  // odd: no bank conflicts
    const int from = begin_ + thread() * share, to = min(from + share, end_);
    Sum mine = 0;
#pragma unroll 1
    for (int at = from; at < to; ++at) mine += amount(token(at));
    Sum before = scan_.upto(mine) - mine;
    int last = INT32_MAX;
#pragma unroll 1
    for (int at = from; at < to && before < enough; ++at) {
      before += amount(token(at));
      if (before >= enough) last = at;
    }
    last = team_.over_block(last, Smaller());
    if (last == INT32_MAX) return enough == 0;
    end_ = last + 1;
    return true;
  }

  template <class Rank, class F>
  __device__ Sum cut(Rank rank, F amount, Sum enough) {
    // The ranks fall up to the lowest one, and rise behind it.
    const int share = (end_ - begin_ + kTeamThreads - 1) / kTeamThreads | 1;  // odd: no bank conflicts
    const int from = begin_ + thread() * share, to = min(from + share, end_);
    Sum mine = 0;
    Turn turn;
#pragma unroll 1
    for (int at = from; at < to; ++at) {
      const ops::SampleToken one = token(at);
      values().upto[at] = mine += amount(one);
      turn = Lower()(turn, {static_cast<uint32_t>(rank(one)), at});
    }
    const Sum before = scan_.upto(mine) - mine;
#pragma unroll 1
    for (int at = from; at < to; ++at) values().upto[at] += before;
    turn = team_.over_block(turn, Lower());
    if (values().upto[end_ - 1] < enough) return ~Sum{0};
    // If a token is the last one that is kept, all between it and one on the other side are kept. Each thread searches
    // for several of those at once.
    constexpr int kAtOnce = 4;
    uint32_t last = ~0u;
    const int steps = 32 - __clz(end_ - begin_);
#pragma unroll 1
    for (int here = begin_ + thread(); here < end_; here += kAtOnce * kTeamThreads) {
      int inside[kAtOnce], outside[kAtOnce];
      Sum own[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = min(here + i * kTeamThreads, end_ - 1);
        own[i] = rank(token(at)), inside[i] = turn.at, outside[i] = at >= turn.at ? begin_ - 1 : end_;
      }
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int middle = (inside[i] + outside[i]) / 2;
          if (abs(outside[i] - inside[i]) > 1) (Sum{rank(token(middle))} <= own[i] ? inside[i] : outside[i]) = middle;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = min(here + i * kTeamThreads, end_ - 1), first = min(at, inside[i]), end = max(at, inside[i]);
        const Sum sum = values().upto[end] - (first > begin_ ? values().upto[first - 1] : 0);
        if (sum >= enough) last = min(last, static_cast<uint32_t>(own[i]));
      }
    }
    return team_.over_block(last, Smaller());
  }

  template <class F>
  __device__ ops::Sums ranked(int count, F f) {
    const int ranks = min(end_ - begin_, count);
    ops::Sums mine;
    each([&](int at, const ops::SampleToken& token) {
      if (at - begin_ < ranks) f(at - begin_, ranks, token, mine);
    });
    return team_.over_block(mine, Added());
  }

  // The key of the token with the largest score(token), among equal ones that with the lowest id.
  template <class Score>
  __device__ Sum best(Score score) {
    Winner mine;
    each([&](int, const ops::SampleToken& token) {
      mine = Wins()(mine, {{score(token), ops::id_of(token.key)}, token.key});
    });
    return team_.over_block(mine, Wins()).key;
  }

 private:
  struct Turn {
    uint32_t rank = ~0u;
    int at = INT32_MAX;
  };
  struct Lower {
    __device__ Turn operator()(const Turn& x, const Turn& y) const {
      return x.rank < y.rank || (x.rank == y.rank && x.at < y.at) ? x : y;
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

  static __device__ Sum (&keys())[kRoomForKeys] { return team_shared().keys; }
  static __device__ TeamShared::Values& values() { return team_shared().values; }
  static __device__ int thread() { return static_cast<int>(threadIdx.x); }
  __device__ ops::SampleToken token(int at) const { return {keys()[at], values().distances[at], values().weights[at]}; }
  // Calls f(place, token) for the thread's share. Several tokens are loaded at once.
  template <class F>
  __device__ void each(F&& f) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int first = begin_ + thread(); first < end_; first += kAtOnce * kTeamThreads) {
      ops::SampleToken tokens[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) tokens[i] = token(min(first + i * kTeamThreads, end_ - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * kTeamThreads < end_) f(first + i * kTeamThreads, tokens[i]);
      }
    }
  }

  Team team_;
  Scan scan_;
  int begin_ = 0, end_ = 0;
};

}  // namespace sluice::cuda
