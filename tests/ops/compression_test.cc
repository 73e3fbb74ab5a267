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

using Integers = std::vector<int32_t, TestAllocator<int32_t>>;

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
    ctx.queue.wait();
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
  Floats bias_, norm_;
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
  Floats sinks(kHeads);
  std::iota(sinks.begin(), sinks.end(), -3.0f);
  Integers selected(static_cast<size_t>(kTokens) * kMost, -1);
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
    device.ctx.queue.wait();
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
  const Floats scale{0.5f, 2.0f, 1.5f}, base(kColumns, 0.25f);
  const StreamWeightsArgs args{.logits = logits,
                               .scale = scale.data(),
                               .base = base.data(),
                               .streams = kStreams,
                               .iterations = 30,
                               .eps = 1e-6f};
  stream_weights(device.ctx, args);
  device.ctx.queue.wait();
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
  device.ctx.queue.wait();
  EXPECT_EQ(x.row(0)[kDim - kRotary - 1], before.row(0)[kDim - kRotary - 1]);
  const float a = before.row(0)[2 * kDim - 4], b = before.row(0)[2 * kDim - 3];
  EXPECT_NEAR(x.row(0)[2 * kDim - 4], a * std::cos(7.0) - b * std::sin(7.0), 1e-5);
  EXPECT_NEAR(x.row(0)[2 * kDim - 3], b * std::cos(7.0) + a * std::sin(7.0), 1e-5);
  args.backward = true;
  rotate(device.ctx, args);
  device.ctx.queue.wait();
  expect_close(x, before, 1e-5f);
}

TEST_P(CompressionTest, GivenExpertsAreWeightedByTheirScores) {
  constexpr int kRows = 2, kExperts = 4;
  Owned logits(&kFloat32, {kRows, kExperts}), given(&kFloat32, {kRows, 2}), weights(&kFloat32, {kRows, 2});
  logits.fill(random);
  given.row(0)[0] = 3, given.row(0)[1] = 1, given.row(1)[0] = 0, given.row(1)[1] = 2;
  Integers experts(kRows * 2);
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
  device.ctx.queue.wait();
  EXPECT_EQ(experts, (Integers{1, 3, 0, 2}));
  for (int row = 0; row < kRows; ++row) {
    const double sum = score(row, experts[row * 2]) + score(row, experts[row * 2 + 1]);
    EXPECT_NEAR(weights.row(row)[0], 1.5 * score(row, experts[row * 2]) / sum, 1e-5);
    EXPECT_NEAR(weights.row(row)[1], 1.5 * score(row, experts[row * 2 + 1]) / sum, 1e-5);
  }
}

// The reference, and backends with kernels of their own.
std::vector<const Backend*> backends_with_own_kernels() {
  std::vector<const Backend*> kept = usable_backends();
  std::erase_if(kept, [](const Backend* backend) {
    return backend->name != "reference" && backend->open(0).ops().compression == &reference::kCompression;
  });
  return kept;
}

using OwnCompressionTest = OpsTest;

// Sequences whose last rows are computed, with blocks anywhere in the cache.
struct Batch {
  int block_size, stride = 0;
  std::vector<int32_t> start{0}, length, slots, table;

  Batch(int block_size, std::mt19937& random, int longest) : block_size(block_size) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    for (int s = 0, sequences = 1 + below(4); s < sequences; ++s) {
      const int size = 1 + below(longest), rows = below(3) == 0 ? 1 : below(size + 1);
      start.push_back(start.back() + rows), length.push_back(size), slots.push_back(s);
      stride = std::max(stride, (size + block_size - 1) / block_size);
    }
    std::ranges::shuffle(slots, random);
    table.resize(length.size() * static_cast<size_t>(stride));
    std::iota(table.begin(), table.end(), 1);
    std::ranges::shuffle(table, random);
  }
  int tokens() const { return start.back(); }
  int64_t blocks() const { return static_cast<int64_t>(table.size()) + 1; }
  PagedSequences paged() const { return {start, length, table, stride}; }
};

const std::vector<DType>& cache_types() {
  static const std::vector<DType> types{&kFloat32, &kBFloat16, &kFloat16, &kFloat8E4M3, &kFloat8E5M2};
  return types;
}

TEST_P(OwnCompressionTest, EntriesOfRandomBatchesMatchTheReference) {
  for (const DType type : cache_types()) {
    for (const Compression kind : share(std::vector<Compression>{{4, 2}, {128, 1}, {5, 2}, {16, 1}, {1, 1}})) {
      SCOPED_TRACE(fmt::format("{}, rate {}, {} series", type->name, kind.rate, kind.series));
      const Batch batch(8 << random() % 3, random, 300);
      const int64_t dim = 2 * (4 + static_cast<int64_t>(random() % 300)), width = kind.series * dim;
      const int64_t first = static_cast<int64_t>(random() % 7), stride = first + dim + 3;
      const int64_t rotary = std::min<int64_t>(dim, 2 * static_cast<int64_t>(random() % 33));
      Owned x(&kFloat32, {batch.tokens(), width}, 5), gates(&kFloat32, {batch.tokens(), width}, 2);
      Owned angles(&kFloat32, {300, rotary});
      x.fill(random), gates.fill(random, 3.0f), angles.fill(random);
      Floats bias(static_cast<size_t>(kind.rate * width)), norm(static_cast<size_t>(dim));
      std::normal_distribution<float> normal;
      for (float& v : bias) v = normal(random);
      for (float& v : norm) v = normal(random);
      OwnedCache cache(type, {batch.blocks(), 1, batch.block_size, EntryCache::elements_per_token(stride, kind.rate)});
      cache.fill(random);
      Owned state(&kFloat32, {static_cast<int64_t>(batch.slots.size()), 3 * width});
      state.fill(random);
      for (int64_t i = 0; i < state->shape[0]; ++i) {  // sums of weights are positive
        for (int64_t c = 0; c < 3 * width; ++c) {
          if (c / dim % 3 == 1) state.row(i)[c] = 1 + std::abs(state.row(i)[c]);
        }
      }
      OwnedCache expected_cache = cache;
      Owned expected_state = state;
      const auto run = [&](Ctx& ctx, const OwnedCache& entries, const Owned& sums) {
        compress(ctx, {.x = x,
                       .gates = gates,
                       .series = kind.series,
                       .bias = bias.data(),
                       .norm = norm.data(),
                       .eps = 1e-6f,
                       .cos_sin = angles,
                       .entries = {.cache = entries, .stride = stride, .first = first, .dim = dim, .rate = kind.rate},
                       .state = sums,
                       .slots = batch.slots,
                       .sequences = batch.paged()});
        ctx.queue.wait();
      };
      run(device.ctx, cache, state);
      run(reference.ctx, expected_cache, expected_state);
      expect_cached(cache, expected_cache, 1e-4f);
      expect_close(state, expected_state, 1e-5f);
    }
  }
}

struct Shape4 {
  int64_t dim;
  int heads, window, rate, most;
};

TEST_P(OwnCompressionTest, AttentionOfRandomBatchesMatchesTheReference) {
  for (const DType type : cache_types()) {
    for (const Shape4 s : share(std::vector<Shape4>{{512, 16, 128, 128, 0},
                                                    {512, 5, 20, 4, 24},
                                                    {64, 8, 16, 4, 0},
                                                    {40, 3, 7, 3, 5},
                                                    {512, 20, 128, 4, 40}})) {
      SCOPED_TRACE(fmt::format("{}: {} heads of {}, rate {}, {} selected", type->name, s.heads, s.dim, s.rate, s.most));
      const Batch batch(8 << random() % 3, random, 200);
      const bool apart = random() % 2 == 0;  // entries lie beside others
      const int64_t stride = apart ? s.dim + 24 : s.dim, tokens = batch.tokens();
      OwnedCache keys(type, {batch.blocks(), 1, batch.block_size, s.dim});
      OwnedCache entries(type, {batch.blocks(), 1, batch.block_size, EntryCache::elements_per_token(stride, s.rate)});
      Owned q(&kFloat32, {tokens, s.heads * s.dim}, 4), out(&kFloat32, {tokens, s.heads * s.dim}, 8);
      keys.fill(random), entries.fill(random), q.fill(random, 3.0f), out.fill(random);
      Floats sinks(static_cast<size_t>(s.heads));
      std::iota(sinks.begin(), sinks.end(), -2.0f);
      Integers selected(static_cast<size_t>(tokens * s.most), -1);
      for (size_t sequence = 0; s.most > 0 && sequence < batch.length.size(); ++sequence) {
        for (int row = batch.start[sequence]; row < batch.start[sequence + 1]; ++row) {
          const int position = batch.length[sequence] - batch.start[sequence + 1] + row;
          int32_t* to = selected.data() + int64_t{row} * s.most;
          for (int e = 0, i = 0; e < (position + 1) / s.rate && i < s.most; ++e) {
            if (random() % 3 > 0) to[i++] = e;
          }
        }
      }
      Owned expected = out;
      EntryAttentionArgs args{
          .out = out,
          .q = q,
          .k_cache = keys,
          .heads = s.heads,
          .window = s.window,
          .scale = 1.0f / std::sqrt(static_cast<float>(s.dim)),
          .sinks = random() % 2 == 0 ? sinks.data() : nullptr,
          .entries = {.cache = entries, .stride = stride, .first = apart ? 16 : 0, .dim = s.dim, .rate = s.rate},
          .sequences = batch.paged()};
      if (s.most > 0) args.selected = Tensor(selected.data(), &kInt32, {tokens, s.most});
      if (random() % 4 == 0) args.entries = {}, args.selected = {};
      entry_attention(device.ctx, args);
      device.ctx.queue.wait();
      args.out = expected;
      entry_attention(reference.ctx, args);
      expect_close(out, expected, attention_tolerance(type));
    }
  }
}

TEST_P(OwnCompressionTest, KeysAreStoredInEveryType) {
  std::vector<DType> types = cache_types();
  types.push_back(&kInt8);
  for (const DType type : types) {
    const int64_t dim = 1 + static_cast<int64_t>(random() % 600), tokens = 1 + static_cast<int64_t>(random() % 20);
    SCOPED_TRACE(fmt::format("{}, {} vectors of {}", type->name, tokens, dim));
    OwnedCache cache(type, {8, 1, 8, dim});
    cache.fill(random);
    OwnedCache expected = cache;
    Owned x(&kFloat32, {tokens, dim}, 3);
    x.fill(random);
    std::vector<int32_t> slots(64);
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::shuffle(slots, random);
    slots.resize(static_cast<size_t>(tokens));
    store_keys(device.ctx, {.x = x, .k_cache = cache, .slots = slots});
    device.ctx.queue.wait();
    store_keys(reference.ctx, {.x = x, .k_cache = expected, .slots = slots});
    expect_cached(cache, expected, 1e-6f);
  }
}

TEST_P(OwnCompressionTest, StreamWeightsMatchTheReference) {
  for (const int streams : {1, 2, 4, 7}) {
    for (const int64_t columns : {int64_t{streams}, int64_t{streams} * (2 + streams)}) {
      Owned logits(&kFloat32, {37, columns}, 1);
      logits.fill(random, 2.0f);
      Owned expected = logits;
      Floats scale{0.5f, 2.0f, 1.5f}, base(static_cast<size_t>(columns));
      std::normal_distribution<float> normal;
      for (float& v : base) v = normal(random);
      StreamWeightsArgs args{.logits = logits,
                             .scale = scale.data(),
                             .base = base.data(),
                             .streams = streams,
                             .iterations = 20,
                             .eps = 1e-6f};
      stream_weights(device.ctx, args);
      device.ctx.queue.wait();
      args.logits = expected;
      stream_weights(reference.ctx, args);
      expect_close(logits, expected, 1e-5f);
    }
  }
}

SLUICE_FOR_EVERY_BACKEND(CompressionTest);
SLUICE_FOR_BACKENDS(OwnCompressionTest, backends_with_own_kernels());

}  // namespace
}  // namespace sluice::ops::compression_test
