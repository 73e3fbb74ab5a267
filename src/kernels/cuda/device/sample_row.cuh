// A row's samplers on a team of threads, which read the row for every sampler. As soon as few tokens can be left, they
// are listed, and samplers work on the list (device/sample_list.cuh).
//
// Where a sampler needs a list and what it needs is not surely in a short one, the tokens give up: all results are
// meaningless from then on, and the row must be sampled in another way (device/sample_chain.cuh).
//
// A class `Row` has these members:
//   each(f)                  calls f(logit, id, place) for the unmasked tokens of the thread's share; -0 is 0
//   each_four(f)             calls f(id, logits) for every four neighbours in it; masked logits are -infinity
//   combine(value, op)       combines values of all threads; each of them gets the result
//   start_listing(), list(key, place)
//                            lists a token, or returns false if there is no room
//   gather()                 returns the number of listed tokens, whose keys are then in room(), sorted
//   likely_prefix(top, n)    returns a logit that at least n tokens reach, but hardly twice as many
//   logit_of(id)
//   room(), scratch()        memory of the list; the row may be lost when the list is used
#pragma once

#include <cfloat>

#include "kernels/cuda/device/sample_list.cuh"

namespace sluice::cuda {

// What the threads find when they first look at a row.
struct Found {
  Best first{-INFINITY, INT32_MAX};
  float lowest = INFINITY;  // among the highest logits of threads, or of groups of logits
  uint32_t flags = 0;

  static constexpr uint32_t kBad = 1, kAlive = 2, kSpoiled = 4;  // as in Shared

  // The token that all begin with; or an error.
  __device__ int error() const {
    if ((flags & kBad) != 0 || (flags & kAlive) == 0) return ops::SampledRow::kBadLogits;
    return (flags & kSpoiled) != 0 || first.value == -INFINITY ? ops::SampledRow::kNoneLeft : 0;
  }
  struct Both {
    __device__ Found operator()(Found x, const Found& y) const {
      x.first.take(y.first.value, y.first.id);
      return {x.first, fminf(x.lowest, y.lowest), x.flags | y.flags};
    }
  };
};

// Finds the bin of a histogram where `count` is reached, in a block that has one bin per thread. `last` is scratch
// memory. Returns kTeamThreads if there are too few.
__device__ inline int bin_of(int own, int count, Scan scan, int& last) {
  if (threadIdx.x == 0) last = kTeamThreads;
  __syncthreads();
  const int upto = static_cast<int>(scan.upto(static_cast<Sum>(own)));
  if (upto >= count && upto - own < count) last = static_cast<int>(threadIdx.x);
  __syncthreads();
  return last;
}

// Bins of equal width between the highest logit and the lowest one of some.
class LogitBins {
 public:
  static constexpr int kBins = kTeamThreads;

  __device__ LogitBins(float top, float lowest)
      : top_(top), per_logit_(top - lowest > 0 ? static_cast<float>(kBins - 1) / (top - lowest) : 0) {}

  __device__ int bin(float logit) const { return min(static_cast<int>((top_ - logit) * per_logit_), kBins - 1); }
  // The logit where a bin ends.
  __device__ float end(int bin) const {
    return bin >= kBins - 1 || !(per_logit_ > 0) ? -FLT_MAX : top_ - (static_cast<float>(bin) + 1.01f) / per_logit_;
  }

 private:
  float top_, per_logit_;
};

template <class Row>
class RowTokens {
 public:
  __device__ RowTokens(Row& row, const Best& first)
      : shape(first.value),
        row_(row),
        list_(row.room(), row.scratch()),
        top_(first.value),
        first_(ops::order_key(first.value, first.id)) {}

  ops::LogitShape shape;

  __device__ bool gave_up() const { return gave_up_; }
  __device__ bool listed() const { return listed_; }
  __device__ Sum first() const { return first_; }
  __device__ void reshape() {  // distances in the row are computed when they are needed
    if (listed_) list_.reshape(shape);
  }

  template <class F>
  __device__ __noinline__ ops::Sums sums(F f) {
    if (listed_) return list_.sums(f);
    ops::Sums mine;
    if (gave_up_) return mine;
    each([&](const ops::SampleToken& token, int) { f(token, mine); });
    return row_.combine(mine, Added());
  }

  template <class Accept>
  __device__ __noinline__ Sum last(Accept accept) {
    if (listed_) return list_.last(accept);
    if (gave_up_) return 0;
    Sum key = 0;
    each([&](const ops::SampleToken& token, int) { key = accept(token) ? max(key, Sum{token.key}) : key; });
    return row_.combine(key, Larger());
  }

  template <class Accept>
  __device__ __noinline__ void keep(Accept accept) {
    if (gave_up_) return;
    if (listed_) {
      list_.keep(accept);
      if (start_at(list_.first())) list_.reshape(shape);
      return;
    }
    row_.start_listing();
    Left mine;
    each([&](const ops::SampleToken& token, int place) {
      if (accept(token)) mine.add(token.key, row_.list(token.key, place));
    });
    const Left left = row_.combine(mine, Left::And());
    last_ = left.highest;
    start_at(left.lowest);
    limit_logits();
    if (left.fit()) gather();
  }

  template <class F>
  __device__ __noinline__ void keep_prefix(F amount, Sum enough) {
    if (listed_ || list_prefix(amount, enough)) list_.keep_prefix(amount, enough);
  }

  template <class Rank, class F>
  __device__ __noinline__ Sum cut(Rank rank, F amount, Sum enough) {
    gave_up_ = !listed_;
    return gave_up_ ? ~Sum{0} : list_.cut(rank, amount, enough);
  }

  template <class F>
  __device__ __noinline__ ops::Sums ranked(int count, F f) {
    gave_up_ = !listed_;
    return gave_up_ ? ops::Sums() : list_.ranked(count, f);
  }

  // `factor` is that of the exponent.
  template <class Exponent>
  __device__ __noinline__ Sum sample(const SampleRow& request, Exponent exponent, float factor = 1.0f) {
    if (listed_) {
      return list_.best([&](const ops::SampleToken& token) {
        return score(request, factor, exponent(token), ops::id_of(token.key));
      });
    }
    return gave_up_ ? 0 : sample_row(request, exponent, factor);
  }

 private:
  // What a sampler leaves.
  struct Left {
    Sum lowest = ~Sum{0}, highest = 0;
    int tokens = 0, refused = 0;  // not listed

    __device__ void add(Sum key, bool is_listed) {
      lowest = min(lowest, key), highest = max(highest, key);
      ++tokens, refused += is_listed ? 0 : 1;
    }
    __device__ bool fit() const { return refused == 0 && tokens <= SortedTokens::kMost; }

    struct And {
      __device__ Left operator()(const Left& x, const Left& y) const {
        return {min(x.lowest, y.lowest), max(x.highest, y.highest), x.tokens + y.tokens, x.refused + y.refused};
      }
    };
  };
  struct Prefix {
    Sum amount = 0;
    int tokens = 0, refused = 0;

    __device__ bool fits() const { return refused == 0 && tokens <= SortedTokens::kMost; }

    struct And {
      __device__ Prefix operator()(const Prefix& x, const Prefix& y) const {
        return {x.amount + y.amount, x.tokens + y.tokens, x.refused + y.refused};
      }
    };
  };
  struct Better {
    __device__ Best operator()(Best x, const Best& y) const {
      x.take(y.value, y.id);
      return x;
    }
  };

  __device__ ops::SampleToken token_of(Sum key) const {
    const float distance = shape.of(ops::logit_of(key));
    return {key, distance, ops::sample_weight(distance)};
  }
  static __device__ __noinline__ float score(const SampleRow& request, float factor, float exponent, int id) {
    const std::array<uint32_t, 4> bits = ops::sample_bits(request, static_cast<uint32_t>(id) / 4);
    const int of_four = id % 4;
    const uint32_t own = of_four == 0 ? bits[0] : of_four == 1 ? bits[1] : of_four == 2 ? bits[2] : bits[3];
    return ops::sample_score(factor, exponent, own);
  }

  // Returns false if this is the first token already.
  __device__ bool start_at(Sum key) {
    if (key == first_) return false;
    first_ = key;
    shape.start_at(ops::logit_of(key));
    return true;
  }
  __device__ void limit_logits() {
    most_logit_ = ops::logit_of(first_);
    least_logit_ = ops::logit_of(last_);
  }

  // Calls f(token, place) for the tokens of the thread's share that are left and whose logits are at least `least`.
  template <class F>
  __device__ void each(F&& f, float least = -FLT_MAX) {
    least = fmaxf(least, least_logit_);
    const ops::LogitShape own_shape = shape;
    const Sum first = first_, last = last_;
    const float most = most_logit_, limit = least_logit_;
    row_.each([&](float logit, int id, int place) {
      if (logit < least || logit > most) return;
      const Sum key = ops::order_key(logit, id);
      if ((logit == limit || logit == most) && (key < first || key > last)) return;
      const float distance = own_shape.of(logit);
      f(ops::SampleToken{key, distance, ops::sample_weight(distance)}, place);
    });
  }

  // Lists a prefix of the tokens that is likely to be long enough and short enough. Gives up and returns false if it is
  // not.
  template <class F>
  __device__ bool list_prefix(F&& amount, Sum enough) {
    constexpr int kAsked = 1000;
    // If the first tokens are gone, nothing is known of the next ones.
    if (!gave_up_ && first_top()) {
      const float least = row_.likely_prefix(top_, static_cast<int>(min(enough, Sum{kAsked})));
      Prefix mine;
      row_.start_listing();
      each(
          [&](const ops::SampleToken& token, int place) {
            mine.amount += amount(token), ++mine.tokens, mine.refused += row_.list(token.key, place) ? 0 : 1;
          },
          least);
      const Prefix all = row_.combine(mine, Prefix::And());
      if (all.fits() && (all.amount >= enough || least <= least_logit_)) {
        gather();
        return true;
      }
    }
    gave_up_ = true;
    return false;
  }
  __device__ bool first_top() const { return ops::logit_of(first_) == top_; }

  __device__ void gather() {
    list_.take(row_.gather(), shape);
    listed_ = true;
  }

  // Samples among all tokens that are left. Noise is computed only for tokens that it can make the winner.
  template <class Exponent>
  __device__ Sum sample_row(const SampleRow& request, Exponent& exponent, float factor) {
    const int first_id = ops::id_of(first_);
    Best best{score(request, factor, exponent(token_of(first_)), first_id), first_id};
    const ops::LogitShape own_shape = shape;
    const Sum from = first_, last = last_;
    const float least_logit = least_logit_, most_logit = most_logit_;
    row_.each_four([&](int id, const float(&logits)[4]) {
      float exponents[4];
      bool any = false;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        exponents[i] = -INFINITY;
        if (logits[i] < least_logit || logits[i] > most_logit) continue;
        const Sum key = ops::order_key(logits[i], id + i);
        if ((logits[i] == least_logit || logits[i] == most_logit) && (key < from || key > last)) continue;
        const float distance = own_shape.of(logits[i]);
        exponents[i] = exponent(ops::SampleToken{key, distance, ops::sample_weight(distance)});
        any |= ops::fused(factor, exponents[i], ops::kMostNoise) >= best.value;
      }
      if (!any) return;
      const std::array<uint32_t, 4> bits = ops::sample_bits(request, static_cast<uint32_t>(id) / 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // -log(-log(u)) <= -log(1 - u). The margin is larger than the errors of these logarithms.
        const float most = 0.001f - __logf(1.0f - ops::open_uniform(bits[i]));
        if (ops::fused(factor, exponents[i], most) < best.value) continue;
        if (exponents[i] > -INFINITY) best.take(ops::sample_score(factor, exponents[i], bits[i]), id + i);
      }
    });
    const int id = row_.combine(best, Better()).id;
    return ops::order_key(row_.logit_of(id), id);
  }

  Row& row_;
  SortedTokens list_;
  const float top_;
  Sum first_, last_ = ~Sum{0};
  float least_logit_ = -FLT_MAX, most_logit_ = FLT_MAX;  // among the tokens that are left
  bool listed_ = false, gave_up_ = false;
};

// Runs the filters of a row; see SampleRow.
template <class Tokens>
__device__ int sample_filtered(Tokens& tokens, const SampleRow& request) {
  using ops::SampleToken;
  if (request.sigmas > 0) {
    const float max = ops::logit_of(tokens.first());
    const ops::Sums sums = tokens.sums([=](const SampleToken& token, ops::Sums& all) {
      const auto distance = static_cast<uint32_t>(ops::distance_units(max, ops::logit_of(token.key)));
      ++all.a, all.b += distance, all.c += uint64_t{distance} * distance;
    });
    const float least = ops::sigma_cutoff(max, request.sigmas, {sums.a, sums.b, sums.c});
    tokens.keep([=](const SampleToken& token) { return ops::logit_of(token.key) >= least; });
  }
  ops::scale(tokens, request.scale);
  if (request.count > 0) ops::top_k(tokens, request.count);
  if (request.mass < 1) ops::top_p(tokens, request.mass);
  if (request.least > 0) ops::min_p(tokens, request.least);
  return ops::id_of(tokens.sample(
      request, [](const SampleToken& token) { return ops::logit_of(token.key); }, request.scale));
}

// Samples a token by the filters or the chain of a row.
template <class Tokens>
__device__ ops::SampledRow sample_tokens(Tokens& tokens, const SampleRow& request, const ops::SamplerStep* steps) {
  if (request.steps > 0) return ops::run_chain(request, steps, tokens);
  ops::SampledRow sampled;
  sampled.token = sample_filtered(tokens, request);
  return sampled;
}

}  // namespace sluice::cuda
