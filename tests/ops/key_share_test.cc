// Attention over keys that several caches divide among them: each part against the reference, and the merged parts
// against attention over all keys. Keys that no cache has are NaN.
#include <limits>

#include "ops/testing.h"

namespace sluice::ops::key_share_test {
namespace {

struct Config {
  int heads = 4, kv_heads = 1, head_dim = 64, value_dim = 64, block_size = 16;
  DType type = &kFloat32;
  int window = 0;
  float soft_cap = 0;
  bool sinks = false;
  bool values_in_keys = false;
  bool causal = true;
  int chunk = 0, first = 0;

  std::string str() const {
    return fmt::format(
        "heads {}/{}, dims {}/{}{}, blocks of {}, {}, window {}, cap {}, sinks {}, causal {}, chunk {}, first {}",
        heads, kv_heads, head_dim, value_dim, values_in_keys ? " in keys" : "", block_size, type->name, window,
        soft_cap, sinks, causal, chunk, first);
  }
};

// The last `rows` rows of a sequence.
struct Text {
  int length = 0, rows = 0;
};

// The keys and values of some positions, in a paged cache with shuffled blocks.
class Part {
 public:
  Part(const Config& c, const std::vector<Text>& texts, const KeyShare& share, std::mt19937& random)
      : config_(c), share_(share) {
    for (const Text& text : texts) {
      stride_ = std::max<int>(stride_, static_cast<int>((share.count(text.length) + c.block_size - 1) / c.block_size));
    }
    stride_ = std::max(stride_, 1);
    const int blocks = static_cast<int>(texts.size()) * stride_ + 2;
    table_.resize(static_cast<size_t>(blocks));
    for (int i = 0; i < blocks; ++i) table_[static_cast<size_t>(i)] = i;
    std::shuffle(table_.begin(), table_.end(), random);
    for (auto& [cache, dim] : {std::pair{&k_, c.head_dim}, std::pair{&v_, c.value_dim}}) {
      cache->emplace(c.type, Shape{blocks, c.kv_heads, c.block_size, dim});
      const std::vector<float> nothing(static_cast<size_t>(dim), std::numeric_limits<float>::quiet_NaN());
      for (int64_t i = 0; i < (*cache)->vectors(); ++i) (*cache)->put(i, nothing);
    }
    table_.resize(texts.size() * static_cast<size_t>(stride_));
  }

  void put(int text, int position, int head, const std::vector<float>& key, const std::vector<float>& value) {
    if (!share_.has(position)) return;
    const int64_t at = share_.count(position), block = table_[text * stride_ + at / config_.block_size];
    const int64_t vector = (block * config_.kv_heads + head) * config_.block_size + at % config_.block_size;
    k_->put(vector, key), v_->put(vector, value);
  }

  AttentionArgs args(const Owned& q, const std::vector<int32_t>& start, const std::vector<int32_t>& kv_len) const {
    const Config& c = config_;
    return {.out = {},
            .q = q,
            .k_cache = *k_,
            .v_cache = c.values_in_keys ? CacheTensor() : *v_,
            .value_dim = c.values_in_keys ? c.value_dim : 0,
            .query_start = start,
            .kv_len = kv_len,
            .block_table = table_,
            .block_table_stride = stride_,
            .heads = c.heads,
            .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
            .causal = c.causal,
            .window = c.window,
            .chunk = c.chunk,
            .first = c.first,
            .soft_cap = c.soft_cap,
            .share = share_};
  }

 private:
  Config config_;
  KeyShare share_;
  int stride_ = 0;
  std::vector<int32_t> table_;
  std::optional<OwnedCache> k_, v_;
};

const Config kConfigs[] = {
    {},
    {.heads = 8, .head_dim = 24, .value_dim = 40, .block_size = 8, .type = &kBFloat16},
    {.heads = 6, .kv_heads = 2, .head_dim = 128, .value_dim = 128, .type = &kBFloat16, .sinks = true},
    {.heads = 4, .head_dim = 128, .value_dim = 128, .block_size = 32, .window = 37},
    {.heads = 5, .head_dim = 64, .value_dim = 64, .type = &kBFloat16, .window = 9, .sinks = true},
    {.heads = 40, .head_dim = 72, .value_dim = 56, .block_size = 8, .type = &kBFloat16, .values_in_keys = true},
    {.heads = 16, .head_dim = 576, .value_dim = 512, .type = &kBFloat16, .values_in_keys = true},
    {.heads = 3, .head_dim = 80, .value_dim = 48, .type = &kFloat16, .soft_cap = 3.0f},
    {.heads = 20, .head_dim = 192, .value_dim = 128, .type = &kBFloat16, .window = 70},
    {.heads = 3, .head_dim = 256, .value_dim = 256, .block_size = 8, .type = &kFloat8E4M3},
    {.heads = 4, .head_dim = 64, .value_dim = 64, .type = &kInt8},
    {.heads = 4, .head_dim = 64, .value_dim = 64, .block_size = 8, .type = &kFloat8E4M3, .window = 100},
    {.heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 24, .chunk = 40},
    {.heads = 4, .head_dim = 32, .value_dim = 32, .causal = false},
    {.heads = 4, .kv_heads = 2, .head_dim = 40, .value_dim = 40, .type = &kBFloat16, .window = 3, .causal = false},
    {.heads = 3, .head_dim = 32, .value_dim = 32, .first = 1},
};

class KeyShareTest : public OpsTest {};

void check(const Config& c, const std::vector<Text>& texts, int parts, int run, Checked& device, Checked& reference,
           float tolerance, std::mt19937& random) {
  std::vector<int32_t> start = {0}, kv_len;
  for (const Text& text : texts) {
    start.push_back(start.back() + text.rows), kv_len.push_back(text.length);
  }
  const int64_t rows = start.back(), width = int64_t{c.heads} * c.value_dim;
  Owned q(&kFloat32, {rows, int64_t{c.heads} * c.head_dim}, 4), sinks(&kFloat32, {1, c.heads});
  q.fill(random), sinks.fill(random, 2.0f);
  Part whole(c, texts, {}, random);
  std::vector<Part> divided;
  for (int i = 0; i < parts; ++i) divided.emplace_back(c, texts, KeyShare{run, parts, i}, random);
  std::normal_distribution<float> normal;
  std::vector<float> key(static_cast<size_t>(c.head_dim)), value(static_cast<size_t>(c.value_dim));
  for (int text = 0; text < static_cast<int>(texts.size()); ++text) {
    for (int position = 0; position < texts[static_cast<size_t>(text)].length; ++position) {
      for (int head = 0; head < c.kv_heads; ++head) {
        for (float& x : key) x = normal(random);
        for (float& x : value) x = normal(random);
        whole.put(text, position, head, key, value);
        for (Part& part : divided) part.put(text, position, head, key, value);
      }
    }
  }

  // Kernels for latent caches write pairs of results.
  Owned all(&kFloat32, {rows, parts * width}, c.values_in_keys ? 4 : 3),
      sums(&kFloat32, {rows, int64_t{parts} * c.heads}, 1);
  for (int i = 0; i < parts; ++i) {
    SCOPED_TRACE(fmt::format("part {}", i));
    Owned out(&kFloat32, {rows, width}), own(&kFloat32, {rows, c.heads}), got_sums(&kFloat32, {rows, c.heads});
    AttentionArgs args = divided[static_cast<size_t>(i)].args(q, start, kv_len);
    args.out = all->slice_columns(i * width, width), args.log_sums = got_sums;
    attention(device.ctx, args);
    copy(device.ctx, sums->slice_columns(i * c.heads, c.heads), got_sums);
    args.out = out, args.log_sums = own;
    attention(reference.ctx, args);
    expect_close(all->slice_columns(i * width, width), out, tolerance);
    for (int64_t row = 0; row < rows; ++row) {
      for (int h = 0; h < c.heads; ++h) {
        const float got = sums.row(row)[i * c.heads + h], want = own.row(row)[h];
        if (std::isinf(want)) {
          ASSERT_EQ(got, want) << "row " << row << " head " << h;
        } else {
          ASSERT_NEAR(got, want, tolerance * std::max(1.0f, std::abs(want))) << "row " << row << " head " << h;
        }
      }
    }
  }

  Owned merged(&kFloat32, {rows, width}, 2), want(&kFloat32, {rows, width});
  const float* sink = c.sinks ? sinks->f32() : nullptr;
  merge_parts(device.ctx, {.out = merged, .x = all, .log_sums = sums, .parts = parts, .heads = c.heads, .sinks = sink});
  AttentionArgs args = whole.args(q, start, kv_len);
  args.out = want, args.sinks = sink;
  attention(reference.ctx, args);
  expect_close(merged, want, tolerance);
}

TEST_P(KeyShareTest, PartsAreMergedToTheWhole) {
  struct Division {
    int parts, run;
  };
  for (const Config& config : share(kConfigs)) {
    SCOPED_TRACE(config.str());
    for (const auto& [parts, run] : {Division{2, 1}, Division{4, 8}, Division{3, config.block_size}}) {
      SCOPED_TRACE(fmt::format("{} parts in runs of {}", parts, run));
      check(config, {{2, 2 - config.first}, {1 + config.first, 1}, {33, 20}, {70, 3}, {131, 60}, {260, 1}}, parts, run,
            device, reference, attention_tolerance(config.type), random);
      if (HasFatalFailure()) return;
    }
  }
}

// Several threads take the splits of a long text.
TEST_P(KeyShareTest, LongContexts) {
  for (const Config& config : share(kConfigs)) {
    SCOPED_TRACE(config.str());
    check(config, {{2600, 5}, {9, 1}}, 2, 4, device, reference, attention_tolerance(config.type), random);
    check(config, {{4500, 3}}, 4, 8, device, reference, attention_tolerance(config.type), random);
    if (HasFatalFailure()) return;
  }
}

// Rows whose slot is -1 are rotated, but not stored.
TEST_P(KeyShareTest, RowsOfOtherRanksAreNotStored) {
  for (const DType type : {&kFloat32, &kBFloat16, &kInt8}) {
    constexpr int kDim = 32, kHeads = 3, kTokens = 5;
    Owned q(&kFloat32, {kTokens, kHeads * kDim}), k(&kFloat32, {kTokens, kDim}), v(&kFloat32, {kTokens, kDim});
    Owned table(&kFloat32, {kTokens, kDim});
    q.fill(random), k.fill(random), v.fill(random), table.fill(random);
    OwnedCache keys(type, {2, 1, 8, kDim}), values(type, {2, 1, 8, kDim});
    keys.fill(random), values.fill(random);
    const OwnedCache keys_before(keys), values_before(values);
    const Owned q_before(q);
    const std::vector<int32_t> positions = {0, 1, 2, 3, 4}, slots = {-1, 3, -1, 12, -1};
    rope_store(device.ctx, {.q = q,
                            .k = k,
                            .v = v,
                            .cos_sin = table,
                            .k_cache = keys,
                            .v_cache = values,
                            .positions = positions,
                            .slots = slots});
    for (int64_t t = 0; t < kTokens; ++t) EXPECT_FALSE(same_bits(q.row(t), q_before.row(t), kHeads * kDim)) << t;
    const auto expect_changed = [&](const OwnedCache& now, const OwnedCache& before) {
      const std::vector<float> a = now.numbers(), b = before.numbers();
      for (int slot = 0; slot < 16; ++slot) {
        EXPECT_EQ(!same_bits(&a[static_cast<size_t>(slot) * kDim], &b[static_cast<size_t>(slot) * kDim], kDim),
                  slot == 3 || slot == 12)
            << slot;
      }
    };
    expect_changed(keys, keys_before), expect_changed(values, values_before);

    OwnedCache latent(type, {2, 1, 8, 2 * kDim});
    latent.fill(random);
    const OwnedCache latent_before(latent);
    Owned both(&kFloat32, {kTokens, kHeads * 2 * kDim}), q_rope(&kFloat32, {kTokens, kHeads * kDim});
    q_rope.fill(random);
    latent_store(device.ctx, {.q = both,
                              .q_rope = q_rope,
                              .latent = k,
                              .k_rope = v,
                              .cos_sin = table,
                              .k_cache = latent,
                              .positions = positions,
                              .slots = slots});
    const std::vector<float> a = latent.numbers(), b = latent_before.numbers();
    for (size_t slot = 0; slot < 16; ++slot) {
      EXPECT_EQ(!same_bits(&a[slot * 2 * kDim], &b[slot * 2 * kDim], 2 * kDim), slot == 3 || slot == 12) << slot;
    }
  }
}

SLUICE_FOR_EVERY_KERNEL(KeyShareTest, &OpTable::attention, &OpTable::merge_parts, &OpTable::rope_store,
                        &OpTable::latent_store);

}  // namespace
}  // namespace sluice::ops::key_share_test
