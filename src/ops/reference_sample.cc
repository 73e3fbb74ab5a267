// Scalar reference of sampling tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference.h"
#include "ops/sample.h"
#include "ops/sample_chain.h"

namespace sluice::ops::reference {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float score(const SampleRow& row, float logit, int64_t id) {
  return sample_score(row.scale, logit, sample_bits(row, static_cast<uint32_t>(id / 4))[id % 4]);
}

// Lists at least `count` of the largest logits by taking whole bins. Returns their number, but writes at most kMostTop.
int32_t list_top(int32_t wanted, const float* logits, int64_t vocab, float max, TopLogit* to) {
  std::vector<int64_t> bins(kLogitBins);
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] != kMasked) ++bins[static_cast<size_t>(logit_bin(max, logits[i]))];
  }
  int last = 0;
  for (int64_t sum = bins[0]; sum < wanted && last < kLogitBins - 1;) sum += bins[static_cast<size_t>(++last)];
  int32_t count = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] == kMasked || logit_bin(max, logits[i]) > last) continue;
    if (count < kMostTop) to[count] = {static_cast<int32_t>(i), logits[i]};
    ++count;
  }
  return count;
}

// Returns the least logit that top-n-sigma keeps.
float least_logit(const SampleRow& row, const std::vector<float>& logits, float max) {
  if (row.sigmas <= 0) return kMasked;
  LogitSums sums;
  for (const float logit : logits) {
    if (logit == kMasked) continue;
    const int64_t units = logit_units(logit);
    ++sums.tokens, sums.sum += units, sums.squares += static_cast<uint64_t>(units * units);
  }
  return sigma_cutoff(max, row.sigmas, sums);
}

// Returns which tokens of a row the filters keep, by id.
std::vector<bool> kept(const SampleRow& row, const std::vector<float>& logits, float max) {
  struct Token {
    size_t id;
    float logit;
    uint64_t weight;
  };
  std::vector<Token> tokens;
  const float least = least_logit(row, logits, max);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMasked || logits[i] < least) continue;
    const float weight = sample_weight(row.scale * (logits[i] - max));
    tokens.push_back({i, logits[i], static_cast<uint64_t>(std::llrint(weight * kSampleWeightUnits))});
  }
  std::ranges::stable_sort(tokens, [](const Token& a, const Token& b) { return a.logit > b.logit; });
  if (row.count > 0 && tokens.size() > static_cast<size_t>(row.count)) tokens.resize(static_cast<size_t>(row.count));
  uint64_t total = 0, before = 0;
  for (const Token& token : tokens) total += token.weight;
  const auto enough = static_cast<uint64_t>(std::ceil(row.mass * static_cast<double>(total)));
  std::vector<bool> keeps(logits.size());
  for (const Token& token : tokens) {
    if (row.mass < 1 && before >= enough) break;
    before += token.weight;
    keeps[token.id] = sample_weight(row.scale * (token.logit - max)) >= row.least;
  }
  return keeps;
}

// The tokens that a chain of samplers leaves, in order.
class SortedTokens {
 public:
  SortedTokens(const std::vector<float>& logits, float max) : shape(max) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] != kMasked) tokens_.push_back({.key = order_key(logits[i], static_cast<int32_t>(i))});
    }
    std::ranges::sort(tokens_, {}, &SampleToken::key);
    reshape();
  }

  LogitShape shape;

  uint64_t first() const { return tokens_.front().key; }
  void reshape() {
    for (SampleToken& token : tokens_) {
      token.distance = shape.of(logit_of(token.key));
      token.weight = sample_weight(token.distance);
    }
  }
  template <class F>
  Sums sums(F&& f) const {
    Sums all;
    for (const SampleToken& token : tokens_) f(token, all);
    return all;
  }
  template <class Accept>
  uint64_t last(Accept&& accept) const {
    const auto found = std::find_if(tokens_.rbegin(), tokens_.rend(), accept);
    return found == tokens_.rend() ? 0 : found->key;
  }
  template <class Accept>
  void keep(Accept&& accept) {
    std::erase_if(tokens_, [&](const SampleToken& token) { return !accept(token); });
    shape.start_at(logit_of(first()));
    reshape();
  }
  template <class F>
  void keep_prefix(F&& amount, uint64_t enough) {
    size_t kept = 0;
    for (uint64_t sum = 0; kept < tokens_.size() && sum < enough;) sum += amount(tokens_[kept++]);
    tokens_.resize(kept);
  }
  template <class Rank, class F>
  uint64_t cut(Rank&& rank, F&& amount, uint64_t enough) const {
    std::vector<SampleToken> list = tokens_;
    std::ranges::stable_sort(list, {}, rank);
    uint64_t sum = 0;
    for (const SampleToken& token : list) {
      sum += amount(token);
      if (sum >= enough) return rank(token);
    }
    return ~uint64_t{0};
  }
  template <class F>
  Sums ranked(int count, F&& f) const {
    Sums all;
    const int ranks = std::min(count, static_cast<int>(tokens_.size()));
    for (int i = 0; i < ranks; ++i) f(i, ranks, tokens_[static_cast<size_t>(i)], all);
    return all;
  }
  template <class Exponent>
  uint64_t sample(const SampleRow& row, Exponent&& exponent) const {
    TopLogit best{.id = 0, .logit = kMasked};  // with the score for a logit
    uint64_t winner = first();
    for (const SampleToken& token : tokens_) {
      const int32_t id = id_of(token.key);
      const float noisy = sample_score(1.0f, exponent(token), sample_bits(row, static_cast<uint32_t>(id) / 4)[id % 4]);
      if (before({.id = id, .logit = noisy}, best)) best = {.id = id, .logit = noisy}, winner = token.key;
    }
    return winner;
  }

 private:
  std::vector<SampleToken> tokens_;
};

SampledRow sample_chain(const SampleArgs& args, const SampleRow& row, const std::vector<float>& logits, float max) {
  if (max == kMasked) return {.token = SampledRow::kNoneLeft};
  SortedTokens tokens(logits, max);
  return run_chain(row, args.steps.as<const SamplerStep>() + row.first_step, tokens);
}

// Returns the largest logit, or +infinity if any logit is NaN or +infinity.
float worst_or_max(const float* logits, int64_t vocab) {
  float max = kMasked;
  for (int64_t i = 0; i < vocab; ++i) {
    if (!(logits[i] < INFINITY)) return INFINITY;
    max = std::max(max, logits[i]);
  }
  return max;
}

// Returns the row after its edits and its mask.
std::vector<float> edit(const SampleArgs& args, const SampleRow& row, const float* raw, int64_t vocab) {
  std::vector<float> logits(raw, raw + vocab);
  for (int32_t i = 0; i < row.edits; ++i) {
    const LogitEdit& one = args.edits.as<const LogitEdit>()[row.first_edit + i];
    logits[static_cast<size_t>(one.id)] = edited(row, one, raw[one.id]);
  }
  const uint32_t* mask = row.mask < 0 ? nullptr : args.masks.as<const uint32_t>() + row.mask * mask_words(vocab);
  for (int64_t i = 0; mask != nullptr && i < vocab; ++i) {
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[static_cast<size_t>(i)] = kMasked;
  }
  return logits;
}

int32_t choose(const SampleRow& row, const std::vector<float>& logits, float max) {
  const bool all = row.scale == 0 || !filters(row);
  const std::vector<bool> keeps = all ? std::vector<bool>(logits.size(), true) : kept(row, logits, max);
  int32_t token = SampledRow::kNoneLeft;
  float best = kMasked;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMasked || !keeps[i]) continue;
    const float value = row.scale > 0 ? score(row, logits[i], static_cast<int64_t>(i)) : logits[i];
    if (value > best) best = value, token = static_cast<int32_t>(i);
  }
  return token;
}

double weight_of(const float* logits, int64_t vocab, float max) {
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += std::exp(logits[i] - max);
  return total;
}

void report(const SampleRow& row, const float* raw, int64_t vocab, SampledRow& sampled, TopLogit* top) {
  sampled.raw_total = static_cast<float>(weight_of(raw, vocab, sampled.raw_max));
  if (row.report > 0) {
    sampled.top = list_top(row.report, raw, vocab, sampled.raw_max, top);
    if (sampled.top > kMostTop) sampled.top = -1;
  }
  if (sampled.token < 0) return;
  sampled.token_logit = raw[sampled.token];
  for (int64_t i = 0; i < vocab; ++i) {
    sampled.before += raw[i] > sampled.token_logit || (raw[i] == sampled.token_logit && i < sampled.token) ? 1 : 0;
  }
}

SampledRow sample_row(const SampleArgs& args, int64_t index) {
  const SampleRow& row = args.rows.as<const SampleRow>()[index];
  const float* raw = args.logits.f32() + row.row * args.logits.row_stride;
  const int64_t vocab = args.logits.shape[1];
  SampledRow sampled{.raw_max = worst_or_max(raw, vocab)};
  if (sampled.raw_max == INFINITY || sampled.raw_max == kMasked) return sampled;
  if (row.target >= 0) {
    sampled.token = row.target;
  } else {
    const std::vector<float> logits = edit(args, row, raw, vocab);
    const float max = worst_or_max(logits.data(), vocab);
    if (max == INFINITY) {
      sampled.token = SampledRow::kNoneLeft;
    } else if (row.steps > 0) {
      const SampledRow chosen = sample_chain(args, row, logits, max);
      sampled.token = chosen.token, sampled.probability = chosen.probability;
    } else {
      sampled.token = choose(row, logits, max);
    }
  }
  if (row.report >= 0) {
    report(row, raw, vocab, sampled, row.report > 0 ? args.top.as<TopLogit>() + index * kMostTop : nullptr);
  }
  return sampled;
}

}  // namespace

void sample(Queue&, const SampleArgs& args) {
  const auto samples = static_cast<int64_t>(args.rows.bytes() / sizeof(SampleRow));
  for (int64_t i = 0; i < samples; ++i) args.sampled.as<SampledRow>()[i] = sample_row(args, i);
  if (args.for_host.data != nullptr)
    std::copy_n(args.sampled.as<SampledRow>(), samples, args.for_host.as<SampledRow>());
}

void feed_sampled(Queue&, const FeedSampledArgs& args) {
  for (size_t row = 0; row < args.from.size(); ++row) {
    const int32_t sample = args.from[row];
    if (sample >= 0) args.tokens.as<int32_t>()[row] = std::max(args.sampled.as<const SampledRow>()[sample].token, 0);
  }
}

}  // namespace sluice::ops::reference
