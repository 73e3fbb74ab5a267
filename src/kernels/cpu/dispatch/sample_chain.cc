// The tokens that are left are a list. Few samplers need it sorted, and none all of it.
#include "kernels/cpu/dispatch/sample_chain.h"

#include <algorithm>
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

  int32_t sample(const ops::SampleRow& row) const {
    float best = -std::numeric_limits<float>::infinity();
    int32_t winner = ops::id_of(first_);
    for (const SampleToken& token : tokens_) {
      const int32_t id = ops::id_of(token.key);
      const float score =
          ops::sample_score(1.0f, token.distance, ops::sample_bits(row, static_cast<uint32_t>(id) / 4)[id % 4]);
      if (score > best || (score == best && id < winner)) best = score, winner = id;
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

ops::SampledRow sample_chain(const SampleInput& in, std::span<const ops::SamplerStep> steps, const SampleLoops& loops,
                             std::vector<SampleToken>& tokens) {
  ListedTokens left(in, loops, tokens);
  for (const ops::SamplerStep& step : steps) ops::apply(step, *in.row, left);
  return {.token = left.sample(*in.row)};
}

}  // namespace sluice::kernels
