// Paged attention of every backend. Compares with the reference over shapes, masks and cache types. Checks that results
// are bit-identical under other batches, chunks, block tables and thread counts.
#include "ops/testing.h"

namespace sluice::ops::attention_test {
namespace {

struct Config {
  int heads = 4, kv_heads = 2, head_dim = 64, value_dim = 64, block_size = 16;
  DType type = &kFloat32;
  int window = 0;
  float soft_cap = 0;
  bool sinks = false, alibi = false;
  bool values_in_keys = false;  // values are the first columns of the keys
  bool causal = true;
  int relative_reach = 0;  // > 0: biases by distance
  int chunk = 0;
  int first = 0;

  std::string str() const {
    return fmt::format(
        "heads {}/{}, dims {}/{}{}, blocks of {}, {}, window {}, cap {}, sinks {}, alibi {}, causal {}, reach {}, "
        "chunk {}, first {}",
        heads, kv_heads, head_dim, value_dim, values_in_keys ? " in keys" : "", block_size, type->name, window,
        soft_cap, sinks, alibi, causal, relative_reach, chunk, first);
  }
};

// Rows [begin, end) of a sequence.
struct Span {
  int sequence, begin, end;
  int rows() const { return end - begin; }
};

// Sequences of given lengths in a paged cache with shuffled blocks. Every position has queries.
class Scene {
 public:
  Scene(const Config& config, std::vector<int> lengths, std::mt19937& random)
      : config_(config),
        lengths_(std::move(lengths)),
        stride_((*std::max_element(lengths_.begin(), lengths_.end()) + config.block_size - 1) / config.block_size),
        blocks_(static_cast<int>(lengths_.size()) * stride_ + 3),
        k_(config.type, {blocks_, config.kv_heads, config.block_size, config.head_dim}),
        v_(config.type, {blocks_, config.kv_heads, config.block_size, config.value_dim}),
        sinks_(&kFloat32, {1, config.heads}),
        slopes_(&kFloat32, {1, config.heads}),
        bias_(&kFloat32, {config.heads, 2 * config.relative_reach + 1}),
        queries_(random()) {
    k_.fill(random), v_.fill(random), sinks_.fill(random, 2.0f), slopes_.fill(random, 0.1f);
    if (config.relative_reach > 0) bias_.fill(random, 2.0f);
    std::vector<int32_t> order(blocks_);
    for (int i = 0; i < blocks_; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    table_.assign(order.begin(), order.begin() + static_cast<int64_t>(lengths_.size()) * stride_);
  }

  // Computes the spans in one batch. Returns a tensor for each of them.
  std::vector<Owned> attend(Ctx& ctx, const std::vector<Span>& spans) const {
    const int q_width = config_.heads * config_.head_dim, out_width = config_.heads * config_.value_dim;
    std::vector<int32_t> start = {0}, kv_len, table;
    for (const Span& span : spans) {
      start.push_back(start.back() + span.rows());
      kv_len.push_back(span.end);
      table.insert(table.end(), table_.begin() + span.sequence * stride_,
                   table_.begin() + (span.sequence + 1) * stride_);
    }
    Owned q(&kFloat32, {start.back(), q_width}, 4), result(&kFloat32, {start.back(), out_width}, 2);
    for (size_t i = 0; i < spans.size(); ++i) {
      for (int r = 0; r < spans[i].rows(); ++r) query(spans[i].sequence, spans[i].begin + r, q.row(start[i] + r));
    }
    attention(ctx, {.out = result,
                    .q = q,
                    .k_cache = k_,
                    .v_cache = config_.values_in_keys ? CacheTensor() : v_,
                    .value_dim = config_.values_in_keys ? config_.value_dim : 0,
                    .query_start = start,
                    .kv_len = kv_len,
                    .block_table = table,
                    .block_table_stride = stride_,
                    .heads = config_.heads,
                    .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                    .causal = config_.causal,
                    .window = config_.window,
                    .chunk = config_.chunk,
                    .first = config_.first,
                    .soft_cap = config_.soft_cap,
                    .sinks = config_.sinks ? sinks_->f32() : nullptr,
                    .alibi_slopes = config_.alibi ? slopes_->f32() : nullptr,
                    .relative_bias = config_.relative_reach > 0 ? bias_->f32() : nullptr,
                    .relative_reach = config_.relative_reach});
    std::vector<Owned> out;
    for (size_t i = 0; i < spans.size(); ++i) {
      Owned& rows = out.emplace_back(&kFloat32, Shape{spans[i].rows(), out_width});
      for (int r = 0; r < spans[i].rows(); ++r) {
        std::memcpy(rows.row(r), result.row(start[i] + r), out_width * sizeof(float));
      }
    }
    return out;
  }

  std::vector<Owned> whole(Ctx& ctx) const {
    std::vector<Span> spans;
    for (size_t s = 0; s < lengths_.size(); ++s) spans.push_back({static_cast<int>(s), 0, lengths_[s]});
    return attend(ctx, spans);
  }

  // Rounds to E4M3 with a power-of-two scale for each row of a head. The largest scaled magnitude is at least 128 and
  // less than 256. Kernels that round this way then change nothing.
  void round_queries() { rounds_queries_ = true; }

  // Writes a position's key and value.
  void put(int sequence, int position, const std::vector<float>& values) {
    const int64_t block = table_[sequence * stride_ + position / config_.block_size];
    const int64_t vector = block * config_.kv_heads * config_.block_size + position % config_.block_size;
    k_.put(vector, values);
    if (!config_.values_in_keys) v_.put(vector, values);
  }
  // Moves every block to another place.
  void relocate(std::mt19937& random) {
    std::vector<int32_t> to(blocks_);
    for (int i = 0; i < blocks_; ++i) to[i] = i;
    std::shuffle(to.begin(), to.end(), random);
    const int64_t vectors = int64_t{config_.kv_heads} * config_.block_size;
    for (OwnedCache* cache : {&k_, &v_}) {
      const OwnedCache old(*cache);
      const size_t bytes = (*cache)->row_elements() * config_.type->block_bytes;
      for (int i = 0; i < blocks_; ++i) {
        std::memcpy((*cache)->data + to[i] * bytes, old->data + i * bytes, bytes);
        if (old.scales() != nullptr)
          std::copy_n(old.scales() + i * vectors, vectors, cache->scales() + to[i] * vectors);
      }
    }
    for (int32_t& block : table_) block = to[block];
  }

 private:
  // Writes the queries of a position, the same ones each time. Few positions of long sequences are asked for.
  void query(int sequence, int position, float* to) const {
    Normals normal(queries_ + (static_cast<uint64_t>(sequence) << 48 | static_cast<uint64_t>(position) << 24));
    for (int i = 0; i < config_.heads * config_.head_dim; ++i) to[i] = normal();
    if (!rounds_queries_) return;
    for (float* head = to; head < to + config_.heads * config_.head_dim; head += config_.head_dim) {
      float largest = 1e-30f;
      for (int j = 0; j < config_.head_dim; ++j) largest = std::max(largest, std::abs(head[j]));
      int exponent = 0;
      std::frexp(largest, &exponent);
      for (int j = 0; j < config_.head_dim; ++j) {
        std::byte rounded{};
        const float scaled = std::ldexp(head[j], 8 - exponent);
        from_float(&kFloat8E4M3, &scaled, &rounded, 1);
        to_float(&kFloat8E4M3, &rounded, &head[j], 1);
        head[j] = std::ldexp(head[j], exponent - 8);
      }
    }
  }

  Config config_;
  std::vector<int> lengths_;
  int stride_, blocks_;
  OwnedCache k_, v_;
  Owned sinks_, slopes_, bias_;
  std::vector<int32_t> table_;
  uint64_t queries_;
  bool rounds_queries_ = false;
};

const Config kConfigs[] = {
    {},
    {.heads = 8, .kv_heads = 1, .head_dim = 24, .value_dim = 40, .block_size = 8, .type = &kBFloat16},
    {.heads = 3, .kv_heads = 3, .head_dim = 20, .value_dim = 20, .block_size = 64, .type = &kFloat16},
    {.heads = 4, .kv_heads = 4, .head_dim = 128, .value_dim = 128, .block_size = 32, .window = 37},
    {.heads = 6, .kv_heads = 2, .block_size = 16, .type = &kBFloat16, .soft_cap = 3.0f, .sinks = true},
    {.heads = 71, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .alibi = true},
    {.heads = 2, .kv_heads = 1, .head_dim = 80, .value_dim = 16, .block_size = 24, .window = 600, .sinks = true},
    {.heads = 5, .kv_heads = 1, .head_dim = 72, .value_dim = 56, .type = &kBFloat16, .values_in_keys = true},
    {.heads = 100, .kv_heads = 1, .head_dim = 40, .value_dim = 33, .block_size = 8, .values_in_keys = true},
    {.heads = 8, .kv_heads = 2, .head_dim = 128, .value_dim = 128, .type = &kBFloat16},
    {.heads = 6, .kv_heads = 1, .head_dim = 256, .value_dim = 256, .type = &kFloat16, .window = 45, .soft_cap = 9.0f},
    {.heads = 3, .kv_heads = 3, .head_dim = 96, .value_dim = 64, .type = &kFloat16, .sinks = true, .alibi = true},
    {.heads = 3, .kv_heads = 3, .head_dim = 32, .value_dim = 32, .causal = false},
    {.heads = 4, .kv_heads = 2, .head_dim = 40, .value_dim = 40, .window = 1, .causal = false},
    {.heads = 4, .kv_heads = 4, .block_size = 8, .type = &kBFloat16, .window = 65, .sinks = true, .causal = false},
    {.heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 24, .window = 700, .causal = false},
    {.heads = 5, .kv_heads = 5, .head_dim = 48, .value_dim = 48, .causal = false, .relative_reach = 19},
    {.heads = 2, .kv_heads = 1, .window = 50, .relative_reach = 128},
    {.heads = 4, .kv_heads = 2, .block_size = 8, .type = &kBFloat16, .chunk = 37},
    {.heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 24, .chunk = 200},
    {.heads = 2, .kv_heads = 2, .sinks = true, .chunk = 1},
};

class AttentionTest : public OpsTest {
 protected:
  // Returns whether softmax weights are rounded to 8-bit floats (three mantissa bits).
  static constexpr float kNarrowTolerance = 5e-2f;
  static bool multiplied_narrow(const Config& c, int rows) {
    const bool dims = c.head_dim % 16 == 0 && c.value_dim % 16 == 0 && std::max(c.head_dim, c.value_dim) <= 128;
    return !GetParam()->can.batch_invariant && c.type == &kFloat8E4M3 && dims && rows * c.heads / c.kv_heads > 64;
  }
  // Returns the root mean square of the difference, relative to that of the second tensor.
  static double distance(const Tensor& a, const Tensor& b) {
    double between = 0, all = 0;
    for (int64_t i = 0; i < a.rows() * a.row_stride; ++i) {
      between += (double{a.f32()[i]} - b.f32()[i]) * (double{a.f32()[i]} - b.f32()[i]);
      all += double{b.f32()[i]} * b.f32()[i];
    }
    return std::sqrt(between / all);
  }
  static void expect_same(const std::vector<Owned>& a, const std::vector<Owned>& b, const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t s = 0; s < a.size(); ++s) {
      ASSERT_EQ(a[s]->shape, b[s]->shape);
      for (int64_t r = 0; r < a[s]->rows(); ++r) {
        ASSERT_TRUE(same_bits(a[s].row(r), b[s].row(r), a[s]->shape[1])) << what << ", sequence " << s << " row " << r;
      }
    }
  }
  // Compares spans with the same rows of whole sequences.
  static void expect_same_rows(const std::vector<Owned>& part, const std::vector<Span>& spans,
                               const std::vector<Owned>& whole, const std::string& what) {
    for (size_t i = 0; i < spans.size(); ++i) {
      for (int r = 0; r < spans[i].rows(); ++r) {
        const Owned& all = whole[static_cast<size_t>(spans[i].sequence)];
        ASSERT_TRUE(same_bits(part[i].row(r), all.row(spans[i].begin + r), all->shape[1]))
            << what << ", sequence " << spans[i].sequence << " row " << spans[i].begin + r;
      }
    }
  }
};

TEST_P(AttentionTest, MatchesTheReference) {
  for (const Config& config : share(kConfigs)) {
    SCOPED_TRACE(config.str());
    const Scene scene(config, {1, 5, 32, 33, 70, 131}, random);
    const std::vector<Owned> out = scene.whole(device.ctx), expected = scene.whole(reference.ctx);
    for (size_t s = 0; s < out.size(); ++s) expect_close(out[s], expected[s], attention_tolerance(config.type));
  }
}

TEST_P(AttentionTest, LongContextsMatchTheReference) {
  for (const Config& config : share(kConfigs)) {
    SCOPED_TRACE(config.str());
    const Scene scene(config, {1300, 512, 513}, random);
    const std::vector<Span> spans = {{0, 1290, 1300}, {1, 511, 512}, {2, 510, 513}};
    const std::vector<Owned> out = scene.attend(device.ctx, spans), expected = scene.attend(reference.ctx, spans);
    // ALiBi's biases grow with the distance, and so does their rounding.
    const float tolerance = attention_tolerance(config.type) * (config.alibi ? 4.0f : 1.0f);
    for (size_t s = 0; s < out.size(); ++s) expect_close(out[s], expected[s], tolerance);
  }
}

// Sequences with so many keys that kernels split them, in a batch with short ones and one with many rows. The op runs
// twice, because what the first call leaves in the workspace must not affect the second.
TEST_P(AttentionTest, VeryLongContextsMatchTheReference) {
  for (Config config : {Config{.sinks = true}, Config{.window = 5000}, Config{.kv_heads = 4, .soft_cap = 2.0f}}) {
    config.heads = 12, config.head_dim = config.value_dim = 16, config.type = &kBFloat16;
    SCOPED_TRACE(config.str());
    const Scene scene(config, {9000, 1100, 300, 5000, 1}, random);
    const std::vector<Span> spans = {{0, 8999, 9000}, {1, 1090, 1100}, {2, 0, 300}, {3, 4998, 5000}, {4, 0, 1}};
    const std::vector<Owned> out = scene.attend(device.ctx, spans), again = scene.attend(device.ctx, spans),
                             expected = scene.attend(reference.ctx, spans);
    for (size_t s = 0; s < out.size(); ++s) expect_close(out[s], expected[s], attention_tolerance(config.type));
    expect_same(out, again, "the same call");
  }
}

// One row each of so many sequences that a warp of a device processes several of them, or parts of two.
TEST_P(AttentionTest, ManySequencesMatchTheReference) {
  const Config config{.heads = 8, .kv_heads = 8, .head_dim = 16, .value_dim = 16, .type = &kBFloat16};
  struct Lengths {
    int sequences, least, most, long_ones = 0;
  };
  for (const auto& [sequences, least, most, long_ones] :
       {Lengths{90, 200, 1200}, {70, 1024, 1024}, {470, 1, 70}, {190, 1, 1, 50}, {150, 1, 200, 20}}) {
    SCOPED_TRACE(sequences);
    std::vector<int> lengths(static_cast<size_t>(sequences));
    std::ranges::generate(lengths, [&] { return std::uniform_int_distribution(least, most)(random); });
    for (int s = 0; s < long_ones; ++s) lengths[static_cast<size_t>(s)] += 700;
    const Scene scene(config, lengths, random);
    std::vector<Span> spans;
    for (int s = 0; s < sequences; ++s) spans.push_back({s, lengths[s] - 1, lengths[s]});
    const std::vector<Owned> out = scene.attend(device.ctx, spans), expected = scene.attend(reference.ctx, spans);
    for (size_t s = 0; s < out.size(); ++s) expect_close(out[s], expected[s], attention_tolerance(config.type));
  }
}

TEST_P(AttentionTest, RowsKeepTheirBits) {
  if (GetParam()->rank == 0) GTEST_SKIP() << "the reference computes rows one by one";
  if (!GetParam()->can.batch_invariant) GTEST_SKIP() << "kernels are chosen by the number of rows";
  constexpr int kLength = sized(1100, 530);  // more rows of a sequence than one thread takes
  std::vector<Config> configs(std::begin(kConfigs), std::end(kConfigs));
  for (const DType type : GetParam()->can.narrow_caches) {
    configs.push_back({.heads = 14, .head_dim = 72, .type = type, .window = 333});
  }
  for (const Config& config : share(configs)) {
    SCOPED_TRACE(config.str());
    Scene scene(config, {kLength, 70, 3}, random);
    const std::vector<Owned> whole = scene.whole(device.ctx);
    for (int threads : {1, 3, 4}) {
      Checked other(*GetParam(), threads);
      expect_same(scene.whole(other.ctx), whole, fmt::format("{} threads", threads));
    }
    for (int rows : {1, 50, kLength - 1}) {
      const std::vector<Span> last = {{0, kLength - rows, kLength}};
      expect_same_rows(scene.attend(device.ctx, last), last, whole, fmt::format("the last {} rows", rows));
    }
    for (int chunk : {1, 7, 64, 300}) {
      if (!config.causal) break;  // rows see keys of later chunks
      for (int begin = 0; begin < kLength; begin += chunk) {
        std::vector<Span> spans;
        if (begin < 70) spans.push_back({1, begin, std::min(begin + chunk, 70)});
        spans.push_back({0, begin, std::min(begin + chunk, kLength)});
        if (begin < 3) spans.push_back({2, begin, std::min(begin + chunk, 3)});
        expect_same_rows(scene.attend(device.ctx, spans), spans, whole, fmt::format("chunks of {}", chunk));
      }
    }
    scene.relocate(random);
    expect_same(scene.whole(device.ctx), whole, "other blocks");
  }
}

// A token whose key and value are NaN affects only the rows that attend to it.
TEST_P(AttentionTest, NanReachesOnlyRowsThatSeeIt) {
  std::vector<DType> types = {&kFloat32, &kBFloat16, &kFloat16};
  types.insert(types.end(), GetParam()->can.narrow_caches.begin(), GetParam()->can.narrow_caches.end());
  for (DType type : types) {
    for (const auto& [window, causal] : {std::pair(0, true), {9, true}, {9, false}, {1, false}}) {
      const Config config{.block_size = 8, .type = type, .window = window, .causal = causal};
      SCOPED_TRACE(config.str());
      Scene scene(config, {75, 40}, random);
      const std::vector<Owned> clean = scene.whole(device.ctx);
      const std::vector<float> nan(config.head_dim, std::nanf(""));
      scene.put(0, 44, nan);
      const std::vector<Owned> out = scene.whole(device.ctx);
      // Tensor cores multiply keys that a row does not attend to by zero (docs/cuda.md).
      const bool exact = !on_tensor_cores();
      for (int64_t r = 0; r < 75; ++r) {
        const bool sees = (r >= 44 || !causal) && (window == 0 || std::abs(r - 44) < window);
        if (!sees && !exact) continue;
        EXPECT_EQ(std::isnan(out[0].row(r)[0]), sees) << r;
        if (!sees) {
          EXPECT_TRUE(same_bits(out[0].row(r), clean[0].row(r), out[0]->shape[1])) << r;
        }
      }
      EXPECT_TRUE(same_bits(out[1]->f32(), clean[1]->f32(), out[1]->shape.elements()));
    }
  }
}

// Blocks that slid out of the window may be freed and hold anything. The op must not read their table entries.
TEST_P(AttentionTest, BlocksBeforeTheWindowAreNotRead) {
  constexpr int kBlock = 8, kWindow = 20, kLength = 141, kBlocks = (kLength + kBlock - 1) / kBlock;
  for (const DType type : {&kFloat32, &kBFloat16, &kFloat16}) {
    for (const int rows : {1, 20, 40}) {
      SCOPED_TRACE(fmt::format("{}, {} rows", type->name, rows));
      Owned k(type, {kBlocks + 1, 2, kBlock, 64}), v(k), q(&kFloat32, {rows, 256}), a(&kFloat32, {rows, 256}), b(a);
      k.fill(random), v.fill(random), q.fill(random);
      const std::vector<float> nan(k->row_elements(), std::nanf(""));  // the last block now belongs to another sequence
      for (const Owned* cache : {&k, &v}) {
        from_float(type, nan.data(), (*cache)->data + kBlocks * nan.size() * type->block_bytes, nan.size());
      }
      const std::vector<int32_t> start = {0, rows}, kv_len = {kLength};
      std::vector<int32_t> all(kBlocks);
      for (int i = 0; i < kBlocks; ++i) all[i] = kBlocks - 1 - i;
      std::vector<int32_t> kept = all;
      std::fill_n(kept.begin(), (kLength - rows - kWindow + 1) / kBlock, kBlocks);
      AttentionArgs args{.out = a,
                         .q = q,
                         .k_cache = *k,
                         .v_cache = *v,
                         .query_start = start,
                         .kv_len = kv_len,
                         .block_table = all,
                         .block_table_stride = kBlocks,
                         .heads = 4,
                         .scale = 0.125f,
                         .window = kWindow};
      attention(device.ctx, args);
      args.out = b, args.block_table = kept;
      attention(device.ctx, args);
      EXPECT_TRUE(same_bits(a->f32(), b->f32(), rows * 256));
    }
  }
}

// 8-bit caches. The reference reads the same caches.
TEST_P(AttentionTest, NarrowCachesMatchTheReference) {
  const Config configs[] = {
      {},
      {.heads = 8, .head_dim = 128, .value_dim = 128},
      {.heads = 6, .kv_heads = 1, .head_dim = 256, .value_dim = 256, .window = 45},
      {.heads = 5, .kv_heads = 1, .head_dim = 80, .value_dim = 80, .block_size = 8, .sinks = true},
      {.heads = 24, .kv_heads = 3, .head_dim = 96, .value_dim = 64, .block_size = 32},
      {.heads = 3, .kv_heads = 3, .head_dim = 20, .value_dim = 36, .alibi = true},
      {.heads = 2, .kv_heads = 1, .head_dim = 33, .value_dim = 47, .block_size = 8, .chunk = 100},
      {.heads = 5, .kv_heads = 1, .head_dim = 72, .value_dim = 56, .values_in_keys = true},
      {.heads = 4, .kv_heads = 2, .relative_reach = 40},
      {.heads = 8, .kv_heads = 1, .soft_cap = 3.0f, .causal = false}};
  for (const DType type : GetParam()->can.narrow_caches) {
    for (Config config : share(configs)) {
      config.type = type;
      SCOPED_TRACE(config.str());
      const float tolerance =
          std::max(attention_tolerance(!GetParam()->can.batch_invariant && type != &kInt8 ? &kFloat16 : type),
                   3e-5f);  // scores of slopes are large
      Scene scene(config, {1300, 70, 131, 1, 512}, random);
      if (type == &kFloat8E4M3) scene.round_queries();
      for (const std::vector<Span>& spans :
           {std::vector<Span>{{0, 1299, 1300}, {1, 60, 70}, {2, 129, 131}, {3, 0, 1}, {4, 511, 512}},
            std::vector<Span>{{0, 1200, 1300}, {1, 0, 70}, {2, 0, 131}, {4, 508, 512}}}) {
        const std::vector<Owned> out = scene.attend(device.ctx, spans), expected = scene.attend(reference.ctx, spans);
        for (size_t i = 0; i < out.size(); ++i) {
          const bool many = multiplied_narrow(config, spans[i].rows());
          expect_close(out[i], expected[i], many ? kNarrowTolerance : tolerance);
        }
      }
    }
  }
}

// Many rows over 8-bit float caches, with every option that changes scores, and over more keys than a sum of 8-bit
// float products has bits for.
TEST_P(AttentionTest, ManyRowsOverEightBitFloatsMatchTheReference) {
  if (std::ranges::find(GetParam()->can.narrow_caches, &kFloat8E4M3) == GetParam()->can.narrow_caches.end())
    GTEST_SKIP();
  constexpr int kKeys = sized(3000, 1000);
  const float tolerance = std::max(attention_tolerance(!GetParam()->can.batch_invariant ? &kFloat16 : &kFloat8E4M3),
                                   3e-5f);  // scores of slopes are large
  const Config configs[] = {
      {.head_dim = 128, .value_dim = 128},
      {.head_dim = 128, .value_dim = 128, .window = 300, .sinks = true},
      {.heads = 6, .head_dim = 112, .value_dim = 128, .block_size = 8, .alibi = true},
      {.head_dim = 128, .value_dim = 96, .block_size = 32, .soft_cap = 3.0f, .values_in_keys = true},
      {.chunk = 700},
      {.window = 65, .causal = false},
      {.head_dim = 48, .value_dim = 16, .relative_reach = 40}};
  for (Config config : share(configs)) {
    config.type = &kFloat8E4M3;
    SCOPED_TRACE(config.str());
    Scene scene(config, {kKeys, 200, 70}, random);
    const std::vector<Span> spans = {{0, kKeys - 45, kKeys}, {1, 0, 200}, {2, 5, 70}};
    for (const bool rounded : {false, true}) {
      if (rounded) scene.round_queries();
      const std::vector<Owned> out = scene.attend(device.ctx, spans), expected = scene.attend(reference.ctx, spans);
      for (size_t s = 0; s < out.size(); ++s) {
        const bool many = multiplied_narrow(config, spans[s].rows());
        if (rounded) expect_close(out[s], expected[s], many ? kNarrowTolerance : tolerance);
        // Rounding queries and weights to three bits has a root mean square error of 2.6e-2 each; bf16 has less than
        // 3e-3.
        EXPECT_LE(distance(out[s], expected[s]), many ? rounded ? 3e-2 : 5e-2 : 3e-3) << "sequence " << s;
      }
    }
  }
}

// Values that are the first columns of the keys of one kv head. Dimensions are those of latent attention models and
// similar ones. Sequences have one row or many, and not a whole number of blocks.
TEST_P(AttentionTest, LatentCachesMatchTheReference) {
  const Config configs[] = {
      {.heads = 16, .head_dim = 576, .value_dim = 512},
      {.heads = 20, .head_dim = 576, .value_dim = 512, .block_size = 64, .window = 100},
      {.heads = 128, .head_dim = 576, .value_dim = 512, .block_size = 32},
      {.heads = 40, .head_dim = 288, .value_dim = 256, .block_size = 24, .soft_cap = 3.0f, .sinks = true},
      {.heads = 7, .head_dim = 520, .value_dim = 440, .block_size = 8, .chunk = 90},
      {.heads = 3, .head_dim = 24, .value_dim = 16, .sinks = true, .alibi = true},
      {.heads = 65, .head_dim = 72, .value_dim = 64, .causal = false},
  };
  for (Config config : share(configs)) {
    config.kv_heads = 1, config.values_in_keys = true;
    for (const DType type : {&kBFloat16, &kFloat16}) {
      if (type == &kFloat16 && config.heads > 20) continue;
      config.type = type;
      SCOPED_TRACE(config.str());
      const Scene scene(config, {700, 70, 131, 1, 512, 64}, random);
      for (const std::vector<Span>& spans :
           {std::vector<Span>{{0, 699, 700}, {1, 69, 70}, {2, 130, 131}, {3, 0, 1}, {4, 511, 512}, {5, 63, 64}},
            std::vector<Span>{{0, 696, 699}, {4, 508, 511}, {5, 0, 40}},
            std::vector<Span>{{1, 0, 69}, {2, 100, 130}}}) {
        const std::vector<Owned> out = scene.attend(device.ctx, spans), again = scene.attend(device.ctx, spans),
                                 expected = scene.attend(reference.ctx, spans);
        for (size_t i = 0; i < out.size(); ++i) expect_close(out[i], expected[i], attention_tolerance(type));
        expect_same(out, again, "the same call");
      }
    }
  }
}

// Positions that no row sees hold anything.
TEST_P(AttentionTest, PositionsBeforeTheFirstAreNotSeen) {
  const Config configs[] = {
      {.first = 1},
      {.heads = 8, .kv_heads = 1, .head_dim = 128, .value_dim = 128, .first = 1},
      {.heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 24, .block_size = 8, .sinks = true, .first = 1},
      {.heads = 5, .kv_heads = 1, .head_dim = 33, .value_dim = 47, .block_size = 24, .soft_cap = 3.0f, .first = 2},
      {.heads = 3, .kv_heads = 1, .head_dim = 256, .value_dim = 256, .block_size = 32, .first = 1},
      {.heads = 16, .kv_heads = 1, .head_dim = 72, .value_dim = 64, .values_in_keys = true, .first = 1},
      {.heads = 5, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .values_in_keys = true, .first = 1},
      {.heads = 4, .kv_heads = 2, .window = 40, .first = 1},
      {.heads = 2, .kv_heads = 2, .chunk = 37, .first = 5},
      {.heads = 2, .kv_heads = 1, .alibi = true, .first = 70},
      {.heads = 8, .kv_heads = 1, .head_dim = 64, .value_dim = 96, .first = 67},
  };
  for (Config config : share(configs)) {
    for (const DType type : {&kFloat32, &kBFloat16, &kFloat16, &kFloat8E4M3, &kFloat8E5M2, &kInt8}) {
      const bool narrow = type->block_bytes == 1;
      if (narrow && !GetParam()->caches(type)) continue;
      config.type = type;
      SCOPED_TRACE(config.str());
      Scene scene(config, {300, 90, 80}, random);
      if (type == &kFloat8E4M3) scene.round_queries();
      const int f = config.first;
      for (int sequence = 0; sequence < 3; ++sequence) {
        for (int p = 0; p < f; ++p) scene.put(sequence, p, std::vector<float>(config.head_dim, std::nanf("")));
      }
      const bool rounded = !GetParam()->can.batch_invariant && narrow && type != &kInt8;
      // scores of slopes are large
      const float tolerance = std::max(attention_tolerance(rounded ? &kFloat16 : type), config.alibi ? 3e-5f : 1e-5f);
      for (const std::vector<Span>& spans : {std::vector<Span>{{0, f, 110}, {1, f, f + 1}, {2, f + 1, 80}},
                                             std::vector<Span>{{0, 200, 300}, {1, f + 1, f + 9}, {2, f, f + 1}},
                                             std::vector<Span>{{0, 297, 300}, {1, f, f + 2}, {2, 79, 80}}}) {
        const std::vector<Owned> out = scene.attend(device.ctx, spans), expected = scene.attend(reference.ctx, spans);
        for (size_t i = 0; i < spans.size(); ++i) {
          const auto& [sequence, begin, end] = spans[i];
          SCOPED_TRACE(fmt::format("rows {} to {} of sequence {}", begin, end, sequence));
          expect_close(out[i], expected[i], multiplied_narrow(config, end - begin) ? kNarrowTolerance : tolerance);
        }
      }
    }
  }
}

// A NaN token of one sequence, and NaN in blocks beyond the ends of sequences.
TEST_P(AttentionTest, NanOfLatentCachesStaysInItsSequence) {
  const Config config{
      .heads = 16, .kv_heads = 1, .head_dim = 72, .value_dim = 64, .type = &kBFloat16, .values_in_keys = true};
  Scene scene(config, {75, 40, 300}, random);
  const std::vector<Owned> clean = scene.whole(device.ctx);
  scene.put(0, 44, std::vector<float>(config.head_dim, std::nanf("")));
  const std::vector<Owned> out = scene.whole(device.ctx);
  EXPECT_TRUE(std::isnan(out[0].row(44)[0]));
  for (size_t s = 1; s < out.size(); ++s) {
    EXPECT_TRUE(same_bits(out[s]->f32(), clean[s]->f32(), out[s]->shape.elements())) << s;
  }
  const std::vector<Owned> before = scene.attend(device.ctx, {{0, 0, 44}});
  for (int r = 0; r < 44; ++r) EXPECT_FALSE(std::isnan(before[0].row(r)[0])) << r;
}

SLUICE_FOR_EVERY_KERNEL(AttentionTest, &OpTable::attention);

}  // namespace
}  // namespace sluice::ops::attention_test
