// A row's chain of samplers (ops/sample_chain.h) on one block. Between samplers the tokens that are left are those
// whose keys are in a range. Once they are few, they are listed in shared memory, and the row is not read again.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/sample_block.cuh"

namespace sluice::cuda {

class BlockTokens {
 public:
  __device__ BlockTokens(Shared& shared, const Row& row, const Best& first)
      : shape(first.value), s_(shared), row_(row), first_(ops::order_key(first.value, first.id)) {}

  ops::LogitShape shape;

  __device__ Sum first() const { return first_; }
  __device__ void reshape() {}  // distances are computed when they are needed

  template <class F>
  __device__ ops::Sums sums(F&& f) {
    ops::Sums mine;
    if constexpr (std::is_same_v<std::remove_cvref_t<F>, ops::AddMoments>) {
      UnitSum weights, energies;
      int terms = 0;
      const auto add_up = [&] { mine.a += weights.take(terms), mine.b += energies.take(terms), terms = 0; };
      each([&](const ops::SampleToken& token) {
        weights.add(token.weight), energies.add(ops::times(token.weight, -token.distance));
        ++mine.c;
        if (++terms == UnitSum::kMostTerms) add_up();
      });
      add_up();
    } else {
      each([&](const ops::SampleToken& token) { f(token, mine); });
    }
    set_results(0, 0, 0);
    const Sum parts[3] = {sum_of_warp(Sum{mine.a}), sum_of_warp(Sum{mine.b}), sum_of_warp(Sum{mine.c})};
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < 3; ++i) atomicAdd(&s_.sums[i], parts[i]);
    }
    __syncthreads();
    return {s_.sums[0], s_.sums[1], s_.sums[2]};
  }

  template <class Accept>
  __device__ Sum last(Accept&& accept) {
    Sum key = 0;
    each([&](const ops::SampleToken& token) { key = accept(token) ? max(key, Sum{token.key}) : key; });
    set_results(0, 0, 0);
    take_last(key);
    __syncthreads();
    return s_.sums[1];
  }

  template <class Accept>
  __device__ void keep(Accept&& accept) {
    set_results(~Sum{0}, 0, 0);
    Sum lowest = ~Sum{0}, highest = 0;
    each([&](const ops::SampleToken& token) {
      if (!accept(token)) return;
      lowest = min(lowest, Sum{token.key}), highest = max(highest, Sum{token.key});
      if (listed_ < 0) list(token.key);
    });
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) lowest = min(lowest, __shfl_xor_sync(~0u, lowest, lane));
    if (threadIdx.x % 32 == 0) atomicMin(&s_.sums[0], lowest);
    take_last(highest);
    __syncthreads();
    last_ = s_.sums[1];
    use_list();
    if (s_.sums[0] == first_) return;
    first_ = s_.sums[0];
    shape.start_at(ops::logit_of(first_));
  }

  template <class F>
  __device__ void keep_prefix(F&& amount, Sum enough) {
    if (listed_ < 0) {
      if (!list_prefix(amount, enough)) return;  // all together are too little
      use_list();
      if (listed_ < 0) {
        last_ = cut_by_digits<64>(KeyOf(), amount, enough);
        return;
      }
    }
    last_ = min(last_, cut_of_list(KeyOf(), amount, enough));
  }

  template <class Rank, class F>
  __device__ Sum cut(Rank&& rank, F&& amount, Sum enough) {
    return listed_ < 0 ? cut_by_bins(rank, amount, enough) : cut_of_list(rank, amount, enough);
  }

  template <class F>
  __device__ ops::Sums ranked(int count, F&& f) {
    // The tokens that are left may have to be listed for this only.
    const Sum last = last_;
    const int listed = listed_;
    const auto one = [](const ops::SampleToken&) { return Sum{1}; };
    if (listed_ < 0 && list_prefix(one, static_cast<Sum>(count)) && s_.listed > kListed) {
      last_ = cut_by_digits<64>(KeyOf(), one, static_cast<Sum>(count));
      set_results(0, 0, 0);
      each([&](const ops::SampleToken& token) { list(token.key); });
      __syncthreads();
    } else if (listed_ < 0 && s_.last_bin == ops::kLogitBins) {  // there are fewer
      set_results(0, 0, 0);
      each([&](const ops::SampleToken& token) { list(token.key); });
      __syncthreads();
    }
    if (listed_ < 0) listed_ = s_.listed;
    // Of what is listed, the tokens that are left:
    __syncthreads();
    s_.ranks[threadIdx.x] = ~Sum{0};
    each([&](const ops::SampleToken& token) { s_.ranks[threadIdx.x] = token.key; });
    __syncthreads();
    int rank = 0, ranks = 0;
    for (int i = 0; i < listed_; ++i) {
      ranks += s_.ranks[i] != ~Sum{0} ? 1 : 0;
      rank += s_.ranks[i] < s_.ranks[threadIdx.x] ? 1 : 0;
    }
    ranks = min(ranks, count);
    const ops::Sums all = sums([&](const ops::SampleToken& token, ops::Sums& mine) {
      if (rank < ranks) f(rank, ranks, token, mine);
    });
    last_ = last, listed_ = listed;
    return all;
  }

  template <class Exponent>
  __device__ Sum sample(const SampleRow& request, Exponent&& exponent) {
    Best best{-INFINITY, INT32_MAX};
    Sum own = 0;
    each([&](const ops::SampleToken& token) {
      const float weight = exponent(token);
      if (weight + ops::kMostNoise < best.value) return;
      const int id = ops::id_of(token.key);
      const std::array<uint32_t, 4> bits = ops::sample_bits(request, static_cast<uint32_t>(id) / 4);
      best.take(ops::sample_score(1.0f, weight, bits[id % 4]), id);
      if (best.id == id) own = token.key;
    });
    const Best winner = best_of_block(s_.sampled, best);
    if (best.id == winner.id && own != 0) s_.total = own;
    __syncthreads();
    return s_.total;
  }

 private:
  __device__ ops::SampleToken token_of(Sum key) const {
    const float distance = shape.of(ops::logit_of(key));
    return {key, distance, ops::sample_weight(distance)};
  }

  // Calls f for the tokens of the thread's share.
  template <class F>
  __device__ void each(F&& f) {
    if (listed_ >= 0) {
      const bool has_one = static_cast<int>(threadIdx.x) < listed_;
      const Sum key = has_one ? s_.keys[threadIdx.x] : 0;
      if (has_one && key >= first_ && key <= last_) f(token_of(key));
      return;
    }
    const ops::LogitShape own_shape = shape;  // in registers
    const Sum first = first_, last = last_;
    each_logit(row_.logits, row_.vocab, [&](int block, float(&four)[4]) {
      row_.hide(block, four);
      for (int i = 0; i < 4; ++i) {
        if (four[i] == -INFINITY) continue;
        const Sum key = ops::order_key(four[i], block * 4 + i);
        if (key < first || key > last) continue;
        const float distance = own_shape.of(ops::logit_of(key));
        f(ops::SampleToken{key, distance, ops::sample_weight(distance)});
      }
    });
  }

  __device__ void set_results(Sum a, Sum b, Sum c) {
    __syncthreads();
    if (threadIdx.x == 0) s_.sums[0] = a, s_.sums[1] = b, s_.sums[2] = c, s_.listed = 0;
    __syncthreads();
  }
  __device__ void take_last(Sum key) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) key = max(key, __shfl_xor_sync(~0u, key, lane));
    if (threadIdx.x % 32 == 0) atomicMax(&s_.sums[1], key);
  }

  struct KeyOf {
    __device__ Sum operator()(const ops::SampleToken& token) const { return token.key; }
  };

  // Lists the shortest prefix whose amounts add up to `enough`, and perhaps more tokens. Returns false if all together
  // are too little.
  template <class F>
  __device__ bool list_prefix(F&& amount, Sum enough) {
    const float top = ops::logit_of(first_);
    clear_bins(s_);
    each([&](const ops::SampleToken& token) {
      const Sum some = amount(token);
      if (some != 0) add_in_halves(s_.bins[ops::logit_bin(top, ops::logit_of(token.key))], some);
    });
    find_last_bin(s_, 0, [&](Sum) { return enough; });
    const int last = s_.last_bin;
    if (last == ops::kLogitBins) return false;
    each([&](const ops::SampleToken& token) {
      if (ops::logit_bin(top, ops::logit_of(token.key)) <= last) list(token.key);
    });
    __syncthreads();
    return true;
  }

  __device__ void list(Sum key) {
    if (*static_cast<volatile int*>(&s_.listed) > kListed) return;  // in vain
    const int at = atomicAdd(&s_.listed, 1);
    if (at < kListed) s_.keys[at] = key;
  }
  __device__ void use_list() {
    if (listed_ < 0 && s_.listed <= kListed) listed_ = s_.listed;
  }

  // The rank of the last token of the shortest prefix, in the order of ranks, whose amounts add up to `enough`. ~0: all
  // together are too little.
  template <class Rank, class F>
  __device__ Sum cut_of_list(Rank&& rank, F&& amount, Sum enough) {
    __syncthreads();
    s_.ranks[threadIdx.x] = ~Sum{0}, s_.weights[threadIdx.x] = 0;
    each([&](const ops::SampleToken& token) {
      s_.ranks[threadIdx.x] = rank(token), s_.weights[threadIdx.x] = amount(token);
    });
    set_results(0, 0, 0);
    const Sum own = s_.ranks[threadIdx.x];
    Sum before = 0;
    for (int i = 0; i < listed_; ++i) before += s_.ranks[i] < own ? s_.weights[i] : 0;
    const bool needed = own != ~Sum{0} && before < enough;
    take_last(needed ? own : 0);
    const Sum all = sum_of_warp(s_.weights[threadIdx.x]);
    if (threadIdx.x % 32 == 0) atomicAdd(&s_.sums[0], all);
    __syncthreads();
    return s_.sums[0] < enough ? ~Sum{0} : s_.sums[1];
  }

  // The same for all tokens, by bins of equal width. Ranks are the bits of floats.
  template <class Rank, class F>
  __device__ Sum cut_by_bins(Rank&& rank, F&& amount, Sum enough) {
    const auto bin = [&](const ops::SampleToken& token) {
      const float value = ops::float_of(static_cast<uint32_t>(rank(token))) * ops::kBinsPerLogit;
      return value < static_cast<float>(ops::kLogitBins - 1) ? static_cast<int>(value) : ops::kLogitBins - 1;
    };
    clear_bins(s_);
    each([&](const ops::SampleToken& token) {
      const Sum some = amount(token);
      if (some != 0) add_in_halves(s_.bins[bin(token)], some);
    });
    find_last_bin(s_, 0, [&](Sum) { return enough; });
    const int last = s_.last_bin;
    if (last == ops::kLogitBins) return ~Sum{0};
    const Sum before = s_.in_earlier_bins;
    set_results(0, 0, 0);
    each([&](const ops::SampleToken& token) {
      if (bin(token) == last) list(token.key);
    });
    __syncthreads();
    if (s_.listed > kListed) return cut_by_digits<32>(rank, amount, enough);
    listed_ = s_.listed;
    const Sum cut = cut_of_list(rank, amount, enough - before);
    listed_ = -1;
    return cut;
  }

  // The same, for ranks below 2^kRankBits, by digits from the highest on.
  template <int kRankBits, class Rank, class F>
  __device__ Sum cut_by_digits(Rank&& rank, F&& amount, Sum enough) {
    constexpr int kBits = 11;
    static_assert(1 << kBits == ops::kLogitBins);
    Sum prefix = 0, before = 0;  // the rank's highest bits; the sum of the amounts of ranks below them
    for (int high = kRankBits; high > 0;) {
      const int low = max(high - kBits, 0);
      clear_bins(s_);
      each([&](const ops::SampleToken& token) {
        const Sum own = rank(token);
        if (high < kRankBits && own >> high != prefix) return;
        const Sum some = amount(token);
        if (some != 0) add_in_halves(s_.bins[own >> low & ((1u << (high - low)) - 1)], some);
      });
      find_last_bin(s_, before, [&](Sum) { return enough; });
      if (s_.last_bin == ops::kLogitBins) return ~Sum{0};
      prefix = prefix << (high - low) | static_cast<Sum>(s_.last_bin);
      before = s_.in_earlier_bins;
      high = low;
    }
    return prefix;
  }

  Shared& s_;
  const Row& row_;
  Sum first_, last_ = ~Sum{0};
  int listed_ = -1;  // tokens in the list; -1: the row is read
};

}  // namespace sluice::cuda
