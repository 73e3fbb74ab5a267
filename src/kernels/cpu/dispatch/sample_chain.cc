// The tokens that are left are a list. Few samplers need it sorted, and none all of it.
#include "kernels/cpu/dispatch/sample_chain.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cpu/dispatch/prefix.h"

namespace sluice::kernels {
namespace {

using ops::SampleToken;
using ops::Sums;

class ListedTokens {
 public:
  ListedTokens(const SampleInput& in, const SampleLoops& loops, std::vector<SampleToken>& tokens)
      : shape(in.max), loops_(loops), tokens_(tokens), first_(ops::order_key(in.max, in.argmax)) {
    tokens_.clear();
    for (int64_t i = 0; i < in.logits.chunks; ++i) {
      const float* chunk = in.logits.chunk(i);
      for (int j = 0; j < kSampleChunk; ++j) {
        if (chunk[j] == -std::numeric_limits<float>::infinity()) continue;
        tokens_.push_back({.key = ops::order_key(chunk[j], static_cast<int32_t>(i * kSampleChunk + j))});
      }
    }
    reshape();
  }

  ops::LogitShape shape;

  uint64_t first() const { return first_; }

  void reshape() {
    for (SampleToken& token : tokens_) token.distance = shape.of(ops::logit_of(token.key));
    loops_.weigh_tokens(tokens_.data(), static_cast<int64_t>(tokens_.size()));
  }

  template <class F>
  Sums sums(F&& f) const {
    Sums all;
    for (const SampleToken& token : tokens_) f(token, all);
    return all;
  }

  template <class Accept>
  uint64_t last(Accept&& accept) const {
    uint64_t key = 0;
    for (const SampleToken& token : tokens_) key = accept(token) ? std::max(key, token.key) : key;
    return key;
  }

  template <class Accept>
  void keep(Accept&& accept) {
    std::erase_if(tokens_, [&](const SampleToken& token) { return !accept(token); });
    start_at_first();
  }

  template <class F>
  void keep_prefix(F&& amount, uint64_t enough) {
    tokens_.erase(shortest_prefix(tokens_.begin(), tokens_.end(), by_key, amount, enough), tokens_.end());
  }

  template <class Rank, class F>
  uint64_t cut(Rank&& rank, F&& amount, uint64_t enough) const {
    std::vector<SampleToken> list = tokens_;
    const auto before = [&](const SampleToken& a, const SampleToken& b) {
      const uint64_t x = rank(a), y = rank(b);
      return x != y ? x < y : a.key < b.key;
    };
    const auto end = shortest_prefix(list.begin(), list.end(), before, amount, enough);
    if (end == list.end() && total(list, amount) < enough) return ~uint64_t{0};
    return rank(*std::max_element(list.begin(), end, before));
  }

  template <class F>
  Sums ranked(int count, F&& f) const {
    const int ranks = std::min(count, static_cast<int>(tokens_.size()));
    std::vector<SampleToken> leading(static_cast<size_t>(ranks));
    std::partial_sort_copy(tokens_.begin(), tokens_.end(), leading.begin(), leading.end(), by_key);
    Sums all;
    for (int i = 0; i < ranks; ++i) f(i, ranks, leading[static_cast<size_t>(i)], all);
    return all;
  }

  template <class Exponent>
  uint64_t sample(const ops::SampleRow& row, Exponent&& exponent) const {
    float best = -std::numeric_limits<float>::infinity();
    uint64_t winner = first_;
    uint32_t block = ~0u;  // whose bits these are
    std::array<uint32_t, 4> bits{};
    for (const SampleToken& token : tokens_) {
      const float weight = exponent(token);
      if (weight + ops::kMostNoise < best) continue;
      const auto id = static_cast<uint32_t>(ops::id_of(token.key));
      if (id / 4 != block) block = id / 4, bits = ops::sample_bits(row, block);
      const float score = ops::sample_score(1.0f, weight, bits[id % 4]);
      const bool earlier = static_cast<int32_t>(id) < ops::id_of(winner);
      if (score > best || (score == best && earlier)) best = score, winner = token.key;
    }
    return winner;
  }

 private:
  static bool by_key(const SampleToken& a, const SampleToken& b) { return a.key < b.key; }

  template <class F>
  static uint64_t total(const std::vector<SampleToken>& list, F&& amount) {
    uint64_t sum = 0;
    for (const SampleToken& token : list) sum += amount(token);
    return sum;
  }

  void start_at_first() {
    const uint64_t first = std::ranges::min_element(tokens_, by_key)->key;
    if (first == first_) return;
    first_ = first;
    shape.start_at(ops::logit_of(first));
    reshape();
  }

  const SampleLoops& loops_;
  std::vector<SampleToken>& tokens_;
  uint64_t first_;
};

}  // namespace

ops::SampledRow sample_chain(const SampleInput& in, const ops::SamplerStep* steps, const SampleLoops& loops,
                             std::vector<SampleToken>& tokens) {
  ListedTokens left(in, loops, tokens);
  return ops::run_chain(*in.row, steps, left);
}

}  // namespace sluice::kernels
