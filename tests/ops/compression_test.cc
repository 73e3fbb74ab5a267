// Ops of compressed attention against formulas in double precision, and their independence of how a text is divided
// into steps.
#include "ops/compression.h"

#include <numeric>

#include "ops/testing.h"

namespace sluice::ops::compression_test {
namespace {

constexpr int kBlock = 8;   // tokens of a block
constexpr int kBlocks = 6;  // the sequence has
constexpr int kRotary = 4;

// One sequence, whose blocks lie in the cache backwards.
struct Text {
  std::vector<int32_t> start, length, table, slot{1};

  Text(int before, int rows) : start{0, rows}, length{before + rows} {
    for (int i = 0; i < kBlocks; ++i) table.push_back(kBlocks - i);
  }
  PagedSequences paged() const { return {start, length, table, kBlocks}; }
};

class CompressionTest : public OpsTest {
 protected:
  void SetUp() override {
    if (device.ctx.ops.compression == nullptr) GTEST_SKIP() << "the backend has no ops of compressed attention";
  }

  Owned table_of_angles() {
    Owned cos_sin(&kFloat32, {64, kRotary});
    for (int p = 0; p < 64; ++p) {
      for (int i = 0; i < kRotary / 2; ++i) {
        const double angle = p * std::pow(0.1, i);
        cos_sin.row(p)[i] = static_cast<float>(std::cos(angle));
        cos_sin.row(p)[kRotary / 2 + i] = static_cast<float>(std::sin(angle));
      }
    }
    return cos_sin;
  }
};

// Where entry w is among the floats of a cache, for entries of `stride` floats.
int64_t place(int64_t w, int rate, int64_t stride, int64_t per_token) {
  const int64_t token = w * rate + rate - 1, block = token / kBlock;
  return (kBlocks - block) * kBlock * per_token + (w - block * kBlock / rate) * stride;
}

struct Compression {
  int rate, series;
};

// Random input of the op and what it writes.
class Compressing {
 public:
  Compressing(const Compression& kind, std::mt19937& random, const Owned& angles)
      : kind_(kind),
        width_(kind.series * kDim),
        per_token_(EntryCache::elements_per_token(kDim, kind.rate)),
        x_(&kFloat32, {kTokens, width_}),
        gates_(&kFloat32, {kTokens, width_}),
        state_(&kFloat32, {3, 3 * width_}),
        cache_(&kFloat32, {kBlocks + 1, 1, kBlock, per_token_}),
        angles_(angles) {
    x_.fill(random), gates_.fill(random, 3.0f), state_.fill(random);
    std::normal_distribution<float> normal;
    bias_.assign(static_cast<size_t>(kind.rate * width_), 0.0f), norm_.assign(kDim, 0.0f);
    for (float& v : bias_) v = normal(random);
    for (float& v : norm_) v = normal(random);
  }

  // Compresses the text in steps of these sizes.
  void in_steps(Ctx& ctx, const std::vector<int>& steps) {
    int done = 0;
    for (const int rows : steps) {
      const Text text(done, rows);
      compress(ctx, {.x = (*x_).slice_rows(done, rows),
                     .gates = (*gates_).slice_rows(done, rows),
                     .series = kind_.series,
                     .bias = bias_.data(),
                     .norm = norm_.data(),
                     .eps = 1e-6f,
                     .cos_sin = angles_,
                     .entries = {.cache = CacheTensor(*cache_), .stride = kDim, .dim = kDim, .rate = kind_.rate},
                     .state = state_,
                     .slots = text.slot,
                     .sequences = text.paged()});
      done += rows;
    }
    ASSERT_EQ(done, kTokens);
  }

  // Entry w by the formula.
  std::vector<double> expected(int w) const {
    std::vector<double> out(kDim);
    for (int c = 0; c < kDim; ++c) {
      double sum = 0, weights = 0;
      for (int s = 0; s < kind_.series; ++s) {
        const int window = w - (kind_.series - 1 - s);  // the first of two series is that of the window before
        for (int i = 0; i < kind_.rate && window >= 0; ++i) {
          const int64_t column = s * kDim + c;
          const double weight = std::exp(double{gates_.row(window * kind_.rate + i)[column]} +
                                         bias_[static_cast<size_t>(i * width_ + column)]);
          weights += weight, sum += weight * x_.row(window * kind_.rate + i)[column];
        }
      }
      out[c] = sum / weights;
    }
    double squares = 0;
    for (const double v : out) squares += v * v;
    for (int c = 0; c < kDim; ++c) out[c] *= norm_[c] / std::sqrt(squares / kDim + 1e-6);
    const float* angle = angles_.row(w * kind_.rate);
    for (int i = 0; i < kRotary / 2; ++i) {
      double &a = out[kDim - kRotary + 2 * i], &b = out[kDim - kRotary + 2 * i + 1];
      const double x = a, y = b, cosine = angle[i], sine = angle[kRotary / 2 + i];
      a = x * cosine - y * sine, b = y * cosine + x * sine;
    }
    return out;
  }
  const float* entry(int w) const { return cache_->f32() + place(w, kind_.rate, kDim, per_token_); }
  // All bytes of the cache.
  std::string bytes() const { return {reinterpret_cast<const char*>(cache_->data), cache_.bytes()}; }

  static constexpr int kDim = 20, kTokens = 37;

 private:
  Compression kind_;
  int64_t width_, per_token_;
  Owned x_, gates_, state_, cache_;
  const Owned& angles_;
  std::vector<float> bias_, norm_;
};

TEST_P(CompressionTest, EntriesAreGatedMeansHoweverTheTextIsDivided) {
  const Owned angles = table_of_angles();
  for (const Compression kind : {Compression{4, 2}, {16, 1}, {3, 2}, {7, 1}, {12, 1}, {1, 2}}) {
    SCOPED_TRACE(fmt::format("rate {}, {} series", kind.rate, kind.series));
    Compressing run(kind, random, angles);
    run.in_steps(device.ctx, {Compressing::kTokens});
    for (int w = 0; w < Compressing::kTokens / kind.rate; ++w) {
      const std::vector<double> want = run.expected(w);
      for (int c = 0; c < Compressing::kDim; ++c)
        ASSERT_NEAR(run.entry(w)[c], want[c], 2e-5) << "entry " << w << ", " << c;
    }
    const std::string whole = run.bytes();
    run.in_steps(device.ctx, {1, 5, 2, 16, 4, 9});
    EXPECT_EQ(run.bytes(), whole);
    run.in_steps(device.ctx, std::vector<int>(Compressing::kTokens, 1));
    EXPECT_EQ(run.bytes(), whole);
  }
}

// All keys in reach as one list, for a text of `tokens` tokens.
TEST_P(CompressionTest, AttendsToTheWindowAndToEntries) {
  constexpr int kDim = 24, kHeads = 10, kTokens = 41, kRate = 4, kWindow = 6, kMost = 3;
  const int64_t per_token = EntryCache::elements_per_token(kDim, kRate);
  OwnedCache keys(&kFloat32, {kBlocks + 1, 1, kBlock, kDim});
  Owned entries(&kFloat32, {kBlocks + 1, 1, kBlock, per_token});
  Owned q(&kFloat32, {kTokens, kHeads * kDim}), out(&kFloat32, {kTokens, kHeads * kDim});
  keys.fill(random), entries.fill(random), q.fill(random);
  std::vector<float> sinks(kHeads);
  std::iota(sinks.begin(), sinks.end(), -3.0f);
  std::vector<int32_t> selected(static_cast<size_t>(kTokens) * kMost, -1);
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0, e = t % 2; i < kMost && e < (t + 1) / kRate; ++i, e += 2) selected[t * kMost + i] = e;
  }
  const Text text(0, kTokens);
  for (const bool selects : {false, true}) {
    EntryAttentionArgs args{.out = out,
                            .q = q,
                            .k_cache = keys,
                            .heads = kHeads,
                            .window = kWindow,
                            .scale = 0.3f,
                            .sinks = sinks.data(),
                            .entries = {.cache = CacheTensor(*entries), .stride = kDim, .dim = kDim, .rate = kRate},
                            .sequences = text.paged()};
    if (selects) args.selected = Tensor(selected.data(), &kInt32, {kTokens, kMost});
    entry_attention(device.ctx, args);
    for (int t = 0; t < kTokens; ++t) {
      std::vector<const float*> seen;
      for (int p = std::max(0, t - kWindow + 1); p <= t; ++p) {
        seen.push_back(keys->f32() + ((kBlocks - p / kBlock) * kBlock + p % kBlock) * kDim);
      }
      for (int e = 0; e < (t + 1) / kRate; ++e) {
        const auto row = selected.begin() + t * kMost;
        if (selects && std::find(row, row + kMost, e) == row + kMost) continue;
        seen.push_back(entries->f32() + place(e, kRate, kDim, per_token));
      }
      for (int h = 0; h < kHeads; ++h) {
        double weights = std::exp(double{sinks[h]});
        std::vector<double> sum(kDim);
        for (const float* key : seen) {
          double score = 0;
          for (int i = 0; i < kDim; ++i) score += double{q.row(t)[h * kDim + i]} * key[i];
          const double weight = std::exp(0.3 * score);
          weights += weight;
          for (int i = 0; i < kDim; ++i) sum[i] += weight * key[i];
        }
        for (int i = 0; i < kDim; ++i) ASSERT_NEAR(out.row(t)[h * kDim + i], sum[i] / weights, 2e-5) << t << " " << h;
      }
    }
  }
}

TEST_P(CompressionTest, StreamWeightsAreDoublyStochastic) {
  constexpr int kStreams = 4, kColumns = (2 + kStreams) * kStreams;
  Owned logits(&kFloat32, {5, kColumns});
  logits.fill(random);
  const Owned before = logits;
  const std::vector<float> scale{0.5f, 2.0f, 1.5f}, base(kColumns, 0.25f);
  const StreamWeightsArgs args{.logits = logits,
                               .scale = scale.data(),
                               .base = base.data(),
                               .streams = kStreams,
                               .iterations = 30,
                               .eps = 1e-6f};
  stream_weights(device.ctx, args);
  for (int row = 0; row < 5; ++row) {
    const float* x = logits.row(row);
    EXPECT_NEAR(x[0], 1 / (1 + std::exp(-(before.row(row)[0] * 0.5 + 0.25))), 1e-5);
    EXPECT_NEAR(x[kStreams], 2 / (1 + std::exp(-(before.row(row)[kStreams] * 2 + 0.25))), 1e-5);
    for (int i = 0; i < kStreams; ++i) {
      double to = 0, from = 0;
      for (int j = 0; j < kStreams; ++j) {
        to += x[(2 + i) * kStreams + j], from += x[(2 + j) * kStreams + i];
      }
      EXPECT_NEAR(to, 1, 1e-3);
      EXPECT_NEAR(from, 1, 1e-3);
    }
  }
}

TEST_P(CompressionTest, RotatesTheLastColumnsOfEveryHeadAndBack) {
  constexpr int kDim = 12, kHeads = 2, kTokens = 3;
  Owned x(&kFloat32, {kTokens, kHeads * kDim});
  x.fill(random);
  const Owned before = x, angles = table_of_angles();
  const std::vector<int32_t> positions{7, 0, 30};
  RotateArgs args{.x = x, .dim = kDim, .cos_sin = angles, .positions = positions};
  rotate(device.ctx, args);
  EXPECT_EQ(x.row(0)[kDim - kRotary - 1], before.row(0)[kDim - kRotary - 1]);
  const float a = before.row(0)[2 * kDim - 4], b = before.row(0)[2 * kDim - 3];
  EXPECT_NEAR(x.row(0)[2 * kDim - 4], a * std::cos(7.0) - b * std::sin(7.0), 1e-5);
  EXPECT_NEAR(x.row(0)[2 * kDim - 3], b * std::cos(7.0) + a * std::sin(7.0), 1e-5);
  args.backward = true;
  rotate(device.ctx, args);
  expect_close(x, before, 1e-5f);
}

TEST_P(CompressionTest, GivenExpertsAreWeightedByTheirScores) {
  constexpr int kRows = 2, kExperts = 4;
  Owned logits(&kFloat32, {kRows, kExperts}), given(&kFloat32, {kRows, 2}), weights(&kFloat32, {kRows, 2});
  logits.fill(random);
  given.row(0)[0] = 3, given.row(0)[1] = 1, given.row(1)[0] = 0, given.row(1)[1] = 2;
  std::vector<int32_t> experts(kRows * 2);
  const auto score = [&](int row, int e) { return std::sqrt(std::log1p(std::exp(double{logits.row(row)[e]}))); };
  route(device.ctx, {.experts = Tensor(experts.data(), &kInt32, {kRows, 2}),
                     .weights = weights,
                     .logits = logits,
                     .given = given,
                     .routing = {.top_k = 2,
                                 .score = Routing::Score::kSqrtSoftplus,
                                 .normalize = true,
                                 .smallest_sum = 1e-20f,
                                 .scale = 1.5f}});
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 3, 0, 2}));
  for (int row = 0; row < kRows; ++row) {
    const double sum = score(row, experts[row * 2]) + score(row, experts[row * 2 + 1]);
    EXPECT_NEAR(weights.row(row)[0], 1.5 * score(row, experts[row * 2]) / sum, 1e-5);
    EXPECT_NEAR(weights.row(row)[1], 1.5 * score(row, experts[row * 2 + 1]) / sum, 1e-5);
  }
}

SLUICE_FOR_EVERY_BACKEND(CompressionTest);

}  // namespace
}  // namespace sluice::ops::compression_test
