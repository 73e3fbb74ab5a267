// Tests the types of queries, keys and values between their matmul and attention.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <random>

#include "base/thread_pool.h"
#include "nn/attention/attention.h"
#include "ops/ops.h"

namespace sluice::types_test {
namespace {

constexpr int kHidden = 32, kHeads = 4, kKvHeads = 2, kDim = 16, kRows = 6, kBlock = 8;

class MadeUp : public Checkpoint {
 public:
  void add(const std::string& name, const Shape& shape, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::vector<float>& values = memory_.emplace_back(static_cast<size_t>(shape.elements()));
    for (float& v : values) v = normal(random);
    const Tensor t(values.data(), &kFloat32, shape);
    tensors_[name] = {.name = name, .dtype = &kFloat32, .shape = shape, .data = t.data, .bytes = t.bytes()};
  }

 private:
  std::deque<std::vector<float>> memory_;
};

// The reference's ops on a device whose matmuls of at least kRows rows may give bf16, which other ops then read.
struct Seen {
  DType product = nullptr, rotated = nullptr, queries = nullptr;
} seen;

const ops::Ops& reference() { return ops::select_backend("reference").open(0).ops(); }

// Calls `body` with x as fp32 and rounds the result back.
void as_fp32(const Tensor& x, const std::function<void(const Tensor&)>& body) {
  if (x.data == nullptr || x.dtype == &kFloat32) return body(x);
  const auto columns = static_cast<size_t>(x.shape[1]);
  std::vector<float> memory(static_cast<size_t>(x.rows()) * columns);
  const auto row = [&](int64_t r) { return x.data + r * x.row_stride * x.dtype->block_bytes; };
  for (int64_t r = 0; r < x.rows(); ++r) to_float(x.dtype, row(r), memory.data() + r * x.shape[1], columns);
  body(Tensor(memory.data(), &kFloat32, x.shape));
  for (int64_t r = 0; r < x.rows(); ++r) from_float(x.dtype, memory.data() + r * x.shape[1], row(r), columns);
}

ops::Ops rounding_ops() {
  ops::Ops table = reference();
  ops::MatmulKernels& kernels = table.matmul.at(&kBFloat16);
  kernels.output_type = [](const ops::Queue&, const ops::Weight&, int64_t rows) -> DType {
    return rows >= kRows ? &kBFloat16 : &kFloat32;
  };
  kernels.matmul = [](ops::Queue& queue, const ops::MatmulArgs& args) {
    if (seen.product == nullptr) seen.product = args.out.dtype;
    ops::MatmulArgs wide = args;
    as_fp32(args.out, [&](const Tensor& out) {
      wide.out = out;
      reference().matmul.at(&kBFloat16).matmul(queue, wide);
    });
  };
  table.rope_store = [](ops::Queue& queue, const ops::RopeStoreArgs& args) {
    seen.rotated = args.q.dtype;
    ops::RopeStoreArgs wide = args;
    as_fp32(args.q, [&](const Tensor& q) {
      as_fp32(args.k, [&](const Tensor& k) {
        as_fp32(args.v, [&](const Tensor& v) {
          wide.q = q, wide.k = k, wide.v = v;
          reference().rope_store(queue, wide);
        });
      });
    });
  };
  table.attention = [](ops::Queue& queue, const ops::AttentionArgs& args) {
    seen.queries = args.q.dtype;
    ops::AttentionArgs wide = args;
    as_fp32(args.q, [&](const Tensor& q) {
      wide.q = q;
      reference().attention(queue, wide);
    });
  };
  return table;
}

class AttentionTypes : public ::testing::Test {
 protected:
  AttentionSpec spec() const {
    AttentionSpec s;
    s.heads = kHeads, s.kv_heads = kKvHeads, s.head_dim = kDim, s.scale = 0.25f;
    return s;
  }

  // Runs a sequence of `rows` tokens through the layer.
  std::vector<float> run(const ops::Ops& table, const AttentionSpec& s, DType cache, int rows = kRows) {
    std::mt19937 random(5);
    MadeUp made;
    const int64_t q_width = (s.output_gate ? 2 : 1) * s.q_width();
    made.add("q_proj.weight", {q_width, kHidden}, random);
    made.add("k_proj.weight", {s.kv_width(), kHidden}, random);
    made.add("v_proj.weight", {s.v_width(), kHidden}, random);
    made.add("o_proj.weight", {kHidden, s.out_width()}, random);
    for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
      if (s.qkv_bias) made.add(name, {name[0] == 'q' ? s.q_width() : s.kv_width()}, random);
    }
    for (const char* name : {"q_norm.weight", "k_norm.weight"}) {
      if (s.qk_norm != QkNorm::kNone) made.add(name, {kDim}, random);
    }
    LoadContext context{.checkpoint = made, .queue = queue_, .ops = table, .dtype = &kBFloat16};
    const Attention attention(Weights(context), s, kHidden);
    context.finish();

    Arena arena(1 << 20);
    ops::Ctx ctx(table, queue_, arena);
    const Tensor x = arena.take(&kFloat32, {rows, kHidden}), out = arena.take(&kFloat32, {rows, kHidden});
    const Tensor table_of_angles = arena.take(&kFloat32, {rows, kDim});
    std::normal_distribution<float> normal;
    for (int i = 0; i < rows * kHidden; ++i) x.f32()[i] = normal(random);
    for (int i = 0; i < rows * kDim; ++i) {
      const float angle = 0.1f * static_cast<float>(i / kDim * (i % (kDim / 2)));
      table_of_angles.f32()[i] = i % kDim < kDim / 2 ? std::cos(angle) : std::sin(angle);
    }
    Batch batch;
    batch.tokens.resize(rows), batch.positions.resize(rows);
    std::iota(batch.positions.begin(), batch.positions.end(), 0);
    batch.slots = batch.positions;
    batch.query_start = {0, rows}, batch.kv_len = {rows}, batch.block_table = {0}, batch.block_table_stride = 1;
    const BatchView view(batch);
    const Rope::Rows rope{table_of_angles, view.positions};
    const KvCache::Layer kv{arena.take(cache, {1, kKvHeads, kBlock, kDim}),
                            arena.take(cache, {1, kKvHeads, kBlock, kDim})};
    seen = {};
    attention(ctx, TokenMixerStep{.batch = view, .rope = &rope, .kv = &kv}, out, x, false);
    return {out.f32(), out.f32() + rows * kHidden};
  }

  // Expects `type` between the matmul and attention, and results close to fp32.
  void expect_type(DType type, const AttentionSpec& s, DType cache = &kBFloat16, int rows = kRows) {
    const std::vector<float> expected = run(reference(), s, cache, rows), actual = run(rounding_, s, cache, rows);
    EXPECT_EQ(seen.product, type);
    EXPECT_EQ(seen.rotated, type);
    EXPECT_EQ(seen.queries, type);
    ASSERT_EQ(actual.size(), expected.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      error += std::pow(actual[i] - expected[i], 2), size += std::pow(expected[i], 2);
    }
    // Rounded keys and values may differ by one step of the cache's type.
    const double step = cache == &kFloat8E4M3 ? 0x1p-4 : 0x1p-8;
    EXPECT_LE(std::sqrt(error / size), type == &kFloat32 ? 0.0 : step);
  }

  ThreadPool threads_{1, false};
  ops::Queue queue_{ops::select_backend("reference").open(0), threads_};
  const ops::Ops rounding_ = rounding_ops();
};

TEST_F(AttentionTypes, RowsAreWhatTheProductMayGive) {
  expect_type(&kBFloat16, spec());
  expect_type(&kBFloat16, spec(), &kFloat8E4M3);
  expect_type(&kFloat32, spec(), &kBFloat16, kRows - 1);
}

TEST_F(AttentionTypes, CachesOfMoreBitsKeepThem) {
  expect_type(&kFloat32, spec(), &kFloat16);
  expect_type(&kFloat32, spec(), &kFloat32);
}

TEST_F(AttentionTypes, WhatReadsRowsInBetweenReadsFp32) {
  const std::vector<std::function<void(AttentionSpec&)>> changes = {
      [](AttentionSpec& s) { s.qkv_bias = true; },
      [](AttentionSpec& s) { s.qk_norm = QkNorm::kHead; },
      [](AttentionSpec& s) { s.value_norm = true; },
      [](AttentionSpec& s) { s.value_scale = 0.5f; },
      [](AttentionSpec& s) { s.clip = 0.2f; },
      [](AttentionSpec& s) { s.output_gate = true; },
      [](AttentionSpec& s) { s.qk_norm = QkNorm::kHeadAfterRope; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    AttentionSpec changed = spec();
    changes[i](changed);
    expect_type(&kFloat32, changed);
  }
}

}  // namespace
}  // namespace sluice::types_test
