// The selection of entries against scores in double precision, and attention to what was selected.
#include "ops/entries.h"

#include <numeric>

#include "ops/gathered_keys.h"
#include "ops/testing.h"

namespace sluice::ops::entries_test {
namespace {

using Integers = std::vector<int32_t>;

// Sequences with shuffled blocks, of which the last `rows` rows are computed.
struct Batch {
  struct Text {
    int length, rows;
  };
  int block_size, stride = 0;
  Integers start{0}, length, table;

  Batch(const std::vector<Text>& texts, int block_size, std::mt19937& random) : block_size(block_size) {
    for (const Text& text : texts) {
      start.push_back(start.back() + text.rows), length.push_back(text.length);
      stride = std::max(stride, (text.length + block_size - 1) / block_size);
    }
    table.resize(texts.size() * static_cast<size_t>(stride));
    std::iota(table.begin(), table.end(), 1);
    std::ranges::shuffle(table, random);
  }
  int tokens() const { return start.back(); }
  int blocks() const { return static_cast<int>(table.size()) + 1; }
  PagedSequences paged() const { return {start, length, table, stride}; }
  int sequence_of(int row) const { return static_cast<int>(std::ranges::upper_bound(start, row) - start.begin()) - 1; }
  int position_of(int row) const {
    const int s = sequence_of(row);
    return length[s] - start[s + 1] + row;
  }
  int64_t vector_of(int row, int position) const {
    return int64_t{table[sequence_of(row) * stride + position / block_size]} * block_size + position % block_size;
  }
};

struct Config {
  int heads, dim, top_k, block_size;
  DType type;
  int first = 0;
};

class Selection {
 public:
  Selection(const Config& config, const std::vector<Batch::Text>& texts, std::mt19937& random)
      : config_(config),
        batch_(texts, config.block_size, random),
        keys_(config.type, {batch_.blocks(), 1, config.block_size, config.dim}),
        q_(&kFloat32, {batch_.tokens(), config.heads * config.dim}, 4),
        weights_(&kFloat32, {batch_.tokens(), config.heads}, 3),
        selected_(&kInt32, {batch_.tokens(), config.top_k}) {
    keys_.fill(random), q_.fill(random), weights_.fill(random);
  }

  void make_weights_equal(float to) {
    for (int row = 0; row < batch_.tokens(); ++row) std::fill_n(weights_.row(row), config_.heads, to);
  }
  void select(Ctx& ctx) {
    std::fill_n(selected_->as<int32_t>(), selected_->shape.elements(), -7);
    select_entries(ctx, {.selected = selected_,
                         .q = q_,
                         .weights = weights_,
                         .entries = EntryCache::of_tokens(keys_),
                         .sequences = batch_.paged(),
                         .first = config_.first});
    ctx.queue.wait();
  }
  Integers row(int row) const {
    const int32_t* from = selected_->as<int32_t>() + int64_t{row} * config_.top_k;
    return {from, from + config_.top_k};
  }
  const Batch& batch() const { return batch_; }

  // The row's selection is right up to entries whose scores are within `tolerance` of the lowest one that is selected.
  void check(int row, float tolerance) const {
    const Integers own = this->row(row);
    const int seen = batch_.position_of(row) + 1 - config_.first;
    const int count = std::min(seen, config_.top_k);
    for (int i = 0; i < config_.top_k; ++i) {
      if (i >= count) {
        ASSERT_EQ(own[i], -1) << i;
      } else {
        ASSERT_GT(own[i], i == 0 ? config_.first - 1 : own[i - 1]);
        ASSERT_LE(own[i], batch_.position_of(row));
      }
    }
    if (seen <= config_.top_k) return;
    const std::vector<double> scores = scores_of(row);
    std::vector<double> order = scores;
    std::ranges::sort(order, std::greater());
    const double least = order[config_.top_k - 1], margin = tolerance * std::max(1.0, order[0]);
    for (int i = 0; i < seen; ++i) {
      if (std::ranges::binary_search(own, config_.first + i)) {
        ASSERT_GE(scores[i], least - margin) << i;
      } else {
        ASSERT_LE(scores[i], least + margin) << i;
      }
    }
  }

 private:
  std::vector<double> scores_of(int row) const {
    const std::vector<float> keys = keys_.numbers();
    std::vector<double> scores;
    for (int p = config_.first; p <= batch_.position_of(row); ++p) {
      const float* key = keys.data() + batch_.vector_of(row, p) * config_.dim;
      double score = 0;
      for (int h = 0; h < config_.heads; ++h) {
        double dot = 0;
        for (int i = 0; i < config_.dim; ++i) dot += double{q_.row(row)[h * config_.dim + i]} * key[i];
        score += weights_.row(row)[h] * std::max(dot, 0.0);
      }
      scores.push_back(score);
    }
    return scores;
  }

  Config config_;
  Batch batch_;
  OwnedCache keys_;
  Owned q_, weights_, selected_;
};

class EntriesTest : public OpsTest {};

TEST_P(EntriesTest, SelectsTheHighestScores) {
  const std::vector<Batch::Text> texts = {{70, 9}, {20, 20}, {3, 1}, {41, 3}, {200, 1}, {33, 33}};
  const std::vector<Config> configs = {
      {4, 32, 16, 16, &kFloat32},    {3, 24, 5, 8, &kFloat32, 1},      {64, 128, 32, 16, &kBFloat16},
      {5, 48, 7, 32, &kBFloat16, 1}, {8, 128, 16, 16, &kFloat16},      {32, 64, 16, 64, &kInt8},
      {70, 40, 9, 16, &kFloat32},    {16, 64, 12, 16, &kFloat8E4M3},   {17, 32, 8, 16, &kFloat8E5M2},
      {1, 16, 1, 16, &kBFloat16},    {20, 144, 11, 16, &kBFloat16, 2}, {80, 128, 10, 16, &kFloat16},
  };
  for (const Config& config : share(configs)) {
    SCOPED_TRACE(fmt::format("{} heads of {}, {} of {}, first {}", config.heads, config.dim, config.top_k,
                             config.type->name, config.first));
    Selection run(config, texts, random);
    run.select(device.ctx);
    const bool rounds = config.type != &kFloat32 && GetParam()->can.rounds_attention;
    for (int row = 0; row < run.batch().tokens(); ++row) {
      SCOPED_TRACE(row);
      ASSERT_NO_FATAL_FAILURE(run.check(row, rounds ? 1e-2f : 1e-5f));
    }
  }
}

// More entries than a tile, a block or a span of any kernel has.
TEST_P(EntriesTest, SelectsAmongManyEntries) {
  if (GetParam()->name == "reference") GTEST_SKIP() << "slow, and compared with the same scores";
  for (const DType type : {&kFloat32, &kBFloat16}) {
    Selection run({8, 64, 300, 16, type}, {{5000, 5}, {2600, 1}, {310, 2}}, random);
    run.select(device.ctx);
    const bool rounds = type != &kFloat32 && GetParam()->can.rounds_attention;
    for (int row = 0; row < run.batch().tokens(); ++row) {
      SCOPED_TRACE(row);
      ASSERT_NO_FATAL_FAILURE(run.check(row, rounds ? 1e-2f : 1e-5f));
    }
  }
}

TEST_P(EntriesTest, AmongEqualScoresTheLowerIndexWins) {
  for (const int first : {0, 1}) {
    Selection run({4, 32, 8, 16, &kFloat32, first}, {{100, 7}, {5, 5}, {1500, 1}}, random);
    run.make_weights_equal(0.0f);
    run.select(device.ctx);
    for (int row = 0; row < run.batch().tokens(); ++row) {
      Integers want(8, -1);
      for (int i = 0; i < 8 && first + i <= run.batch().position_of(row); ++i) want[i] = first + i;
      EXPECT_EQ(run.row(row), want) << row;
    }
  }
}

// Entries of several tokens, beside others in the same memory.
TEST_P(EntriesTest, EntriesMayStandForSeveralTokens) {
  constexpr int kDim = 8, kHeads = 3, kTokens = 45, kRate = 4, kMost = 4, kStride = 24, kFirst = 16, kBlock = 8;
  const int64_t per_token = EntryCache::elements_per_token(kStride, kRate);
  const Batch batch({{kTokens, kTokens}}, kBlock, random);
  OwnedCache entries(&kFloat32, {batch.blocks(), 1, kBlock, per_token});
  Owned q(&kFloat32, {kTokens, kHeads * kDim}), weights(&kFloat32, {kTokens, kHeads});
  Owned selected(&kInt32, {kTokens, kMost});
  entries.fill(random), q.fill(random), weights.fill(random);
  select_entries(device.ctx,
                 {.selected = selected,
                  .q = q,
                  .weights = weights,
                  .entries = {.cache = entries, .stride = kStride, .first = kFirst, .dim = kDim, .rate = kRate},
                  .sequences = batch.paged()});
  device.ctx.queue.wait();
  for (int t = 0; t < kTokens; ++t) {
    std::vector<std::pair<double, int>> scores;
    for (int e = 0; e < (t + 1) / kRate; ++e) {
      const int token = e * kRate + kRate - 1, block = token / kBlock;
      const float* entry =
          entries->f32() + batch.table[block] * kBlock * per_token + (e - block * kBlock / kRate) * kStride + kFirst;
      double score = 0;
      for (int h = 0; h < kHeads; ++h) {
        double dot = 0;
        for (int i = 0; i < kDim; ++i) dot += double{q.row(t)[h * kDim + i]} * entry[i];
        score += weights.row(t)[h] * std::max(dot, 0.0);
      }
      scores.emplace_back(-score, e);
    }
    std::ranges::sort(scores);
    Integers want;
    for (size_t i = 0; i < scores.size() && i < kMost; ++i) want.push_back(scores[i].second);
    std::ranges::sort(want);
    want.resize(kMost, -1);
    const int32_t* own = selected->as<int32_t>() + t * kMost;
    EXPECT_EQ(Integers(own, own + kMost), want) << t;
  }
}

// Attention of some heads to `selected`, or to all tokens.
class Attending {
 public:
  Attending(DType type, int heads, int dim, int value_dim, const std::vector<Batch::Text>& texts, std::mt19937& random)
      : heads_(heads),
        value_dim_(value_dim),
        batch_(texts, 16, random),
        keys_(type, {batch_.blocks(), 1, 16, dim}),
        q_(&kFloat32, {batch_.tokens(), heads * dim}) {
    keys_.fill(random), q_.fill(random);
  }

  // Every row selects some of what it sees, in order, at most `most` tokens.
  Owned random_selection(int most, std::mt19937& random) const {
    Owned selected(&kInt32, {batch_.tokens(), most});
    for (int row = 0; row < batch_.tokens(); ++row) {
      Integers seen(static_cast<size_t>(batch_.position_of(row)) + 1);
      std::iota(seen.begin(), seen.end(), 0);
      Integers chosen;
      std::ranges::sample(seen, std::back_inserter(chosen), most, random);
      chosen.resize(static_cast<size_t>(most), -1);
      std::ranges::copy(chosen, selected->as<int32_t>() + int64_t{row} * most);
    }
    return selected;
  }

  // `rows`: whose keys are copied at a time.
  Owned attend(Ctx& ctx, const Owned* selected, int rows = 1) const {
    Owned out(&kFloat32, {batch_.tokens(), heads_ * value_dim_});
    AttentionArgs args{.out = out,
                       .q = q_,
                       .k_cache = keys_,
                       .v_cache = {},
                       .value_dim = value_dim_,
                       .query_start = batch_.start,
                       .kv_len = batch_.length,
                       .block_table = batch_.table,
                       .block_table_stride = batch_.stride,
                       .heads = heads_,
                       .scale = 0.2f};
    Owned memory(&kInt8, {selected == nullptr ? 0
                                              : GatheredKeys::bytes(rows, (*selected)->shape[1],
                                                                    GatheredKeys::vector_bytes(args.k_cache))});
    if (selected != nullptr) args.selected = *selected, args.gathered = memory;
    attention(ctx, args);
    ctx.queue.wait();
    return out;
  }

 private:
  int heads_, value_dim_;
  Batch batch_;
  OwnedCache keys_;
  Owned q_;
};

TEST_P(EntriesTest, AttendsToTheSelectedTokensOnly) {
  struct Case {
    DType type;
    int heads, dim, value_dim, most;
  };
  const std::vector<Case> cases = {{&kFloat32, 4, 48, 32, 16},     {&kBFloat16, 4, 48, 32, 16},
                                   {&kBFloat16, 16, 576, 512, 70}, {&kFloat16, 5, 80, 64, 9},
                                   {&kInt8, 8, 48, 32, 130},       {&kFloat8E4M3, 3, 40, 24, 20},
                                   {&kFloat32, 2, 17, 9, 1},       {&kBFloat16, 128, 576, 512, 64}};
  for (const Case& c : share(cases)) {
    SCOPED_TRACE(fmt::format("{}, {} heads of {}, {} tokens", c.type->name, c.heads, c.dim, c.most));
    const Attending run(c.type, c.heads, c.dim, c.value_dim, {{70, 5}, {3, 3}, {150, 1}, {33, 2}}, random);
    const Owned selected = run.random_selection(c.most, random);
    const Owned want = run.attend(reference.ctx, &selected);
    for (const int rows : {1, 4, 64}) {
      expect_close(run.attend(device.ctx, &selected, rows), want, attention_tolerance(c.type));
    }
  }
}

TEST_P(EntriesTest, SelectingAllTokensChangesNoBit) {
  if (!GetParam()->can.batch_invariant) GTEST_SKIP() << "not batch-invariant";
  for (const DType type : {&kFloat32, &kBFloat16, &kInt8}) {
    const Attending run(type, 6, 48, 32, {{600, 3}, {90, 90}, {1, 1}}, random);
    const Owned selected = run.random_selection(700, random);
    const Owned all = run.attend(device.ctx, nullptr), chosen = run.attend(device.ctx, &selected, 3);
    for (int64_t row = 0; row < all->rows(); ++row) {
      ASSERT_TRUE(same_bits(all.row(row), chosen.row(row), 6 * 32)) << type->name << " " << row;
    }
  }
}

SLUICE_FOR_EVERY_KERNEL(EntriesTest, &OpTable::select_entries, &OpTable::attention);

}  // namespace
}  // namespace sluice::ops::entries_test
