// Norms, activations, sums, row copies and the rotary store of every backend against the reference.
#include <limits>

#include "ops/testing.h"

namespace sluice::ops::elementwise_test {
namespace {

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGelu,    Activation::kGeluTanh,
                               Activation::kRelu, Activation::kRelu2,   Activation::kQuickGelu,
                               Activation::kTanh, Activation::kSigmoid, Activation::kIdentity};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ElementwiseTest : public OpsTest {};

TEST_P(ElementwiseTest, NormsOfMatrices) {
  for (auto [rows, columns] : {std::pair{1, 1}, {1, 7}, {3, 16}, {5, 65}, {2, 2048}, {40, 300}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    Owned x(&kFloat32, {rows, columns}, 3), weight(&kFloat32, {1, columns}), bias(&kFloat32, {1, columns});
    x.fill(random, 5.0f), weight.fill(random), bias.fill(random);
    Owned out(&kFloat32, {rows, columns}), expected(&kFloat32, {rows, columns});
    for (const float* w : {weight->f32(), static_cast<float*>(nullptr)}) {
      for (float offset : {0.0f, 1.0f}) {
        rms_norm(device.ctx, out, x, w, 1e-5f, offset);
        rms_norm(reference.ctx, expected, x, w, 1e-5f, offset);
        expect_close(out, expected, 2e-6f);
      }
      for (const float* b : {bias->f32(), static_cast<float*>(nullptr)}) {
        layer_norm(device.ctx, out, x, w, b, 1e-5f);
        layer_norm(reference.ctx, expected, x, w, b, 1e-5f);
        expect_close(out, expected, 4e-6f);
      }
    }
  }
}

// Per-head norms work in place on the q columns of a fused, strided result.
TEST_P(ElementwiseTest, NormOfHeadsInPlace) {
  Owned x(&kFloat32, {5, 3, 24}, 40), weight(&kFloat32, {1, 24});
  x.fill(random), weight.fill(random);
  const Owned before(x);
  Owned expected(x);
  rms_norm(device.ctx, x, x, weight->f32(), 1e-6f);
  rms_norm(reference.ctx, expected, expected, weight->f32(), 1e-6f);
  expect_close(x, expected, 2e-6f);
  for (int64_t row = 0; row < 4; ++row) EXPECT_TRUE(same_bits(x.row(row) + 72, before.row(row) + 72, 40));
}

TEST_P(ElementwiseTest, RowsScaledToTheLengthOfOthers) {
  for (auto [rows, columns] : {std::pair{1, 1}, {3, 7}, {2, 65}, {5, 2048}, {1, 9000}}) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    Owned x(&kFloat32, {rows, columns}, 3), like(&kFloat32, {rows, columns}, 5);
    x.fill(random, 0.3f), like.fill(random, 7.0f);
    std::fill_n(x.row(0), columns, 1e-4f);  // below the floor: not scaled up to it
    Owned expected(x);
    match_rms(device.ctx, x, like, 1e-5f);
    match_rms(reference.ctx, expected, like, 1e-5f);
    expect_close(x, expected, 2e-6f);
  }
}

TEST_P(ElementwiseTest, GaussianTopKOfRows) {
  for (auto [rows, columns] : {std::pair{1, 1}, {3, 7}, {2, 65}, {5, 2048}, {1, 9000}}) {
    for (float deviations : {1.6448536f, 0.0f, -1.0f}) {
      SCOPED_TRACE(fmt::format("{} x {}, {}", rows, columns, deviations));
      Owned x(&kFloat32, {rows, columns}, 3);
      x.fill(random, 2.0f);
      Owned expected(x);
      gaussian_top_k(device.ctx, x, deviations);
      gaussian_top_k(reference.ctx, expected, deviations);
      expect_close(x, expected, 4e-6f, 1.0f);
    }
  }
}

TEST_P(ElementwiseTest, CopiesOfStridedRows) {
  for (auto [rows, columns] : {std::pair{1, 1}, {3, 7}, {40, 65}, {2, 9000}}) {
    Owned x(&kFloat32, {rows, columns}, 5), out(&kFloat32, {rows, columns}, 3);
    x.fill(random), out.fill(random);
    const Owned before(out);
    copy(device.ctx, out, x);
    for (int row = 0; row < rows; ++row) {
      EXPECT_TRUE(same_bits(out.row(row), x.row(row), columns));
      if (row + 1 == rows) break;
      EXPECT_TRUE(same_bits(out.row(row) + columns, before.row(row) + columns, 3)) << "between rows";
    }
  }
}

TEST_P(ElementwiseTest, Activations) {
  for (Activation activation : kAll) {
    for (int columns : {1, 15, 16, 100, 40000}) {
      SCOPED_TRACE(fmt::format("activation {}, {} columns", static_cast<int>(activation), columns));
      Owned gate_up(&kFloat32, {3, 2 * columns}, 5), out(&kFloat32, {3, columns}, 1),
          expected(&kFloat32, {3, columns}, 1);
      gate_up.fill(random, 3.0f);
      glu(device.ctx, out, gate_up, activation);
      glu(reference.ctx, expected, gate_up, activation);
      expect_close(out, expected, 1e-6f, 1.0f);
      Owned x(gate_up), y(gate_up);
      unary(device.ctx, x, activation);
      unary(reference.ctx, y, activation);
      expect_close(x, y, 1e-6f, 1.0f);
    }
  }
}

// The vector functions, element by element, within 4 ulp plus the cancellation in their definitions.
TEST_P(ElementwiseTest, ActivationsAreAccurateOverTheWholeRange) {
  for (Activation activation : kAll) {
    Owned x(&kFloat32, {1, 8001});
    for (int i = 0; i <= 8000; ++i) x.row(0)[i] = static_cast<float>(i - 4000) * 0.0251f;
    const Owned inputs(x);
    unary(device.ctx, x, activation);
    for (int i = 0; i <= 8000; ++i) {
      const float in = inputs.row(0)[i], exact = activate(activation, in);
      float scale = std::abs(exact);
      if (activation == Activation::kGelu) scale = std::max(scale, std::abs(in));  // 1 + erf cancels, as in PyTorch
      const bool rounds_exponent = activation == Activation::kGeluTanh || activation == Activation::kQuickGelu;
      if (rounds_exponent) scale *= std::max(1.0f, in * in);
      ASSERT_LE(std::abs(x.row(0)[i] - exact), 5e-7f * scale + 1e-30f) << static_cast<int>(activation) << " at " << in;
    }
  }
}

TEST_P(ElementwiseTest, ActivationsOfInfinityAndNan) {
  for (Activation activation : {Activation::kTanh, Activation::kSigmoid}) {
    Owned x(&kFloat32, {1, 4});
    const float values[] = {kInfinity, -kInfinity, std::nanf(""), 0.0f};
    std::memcpy(x->data, values, sizeof values);
    unary(device.ctx, x, activation);
    EXPECT_EQ(x.row(0)[0], 1.0f);
    EXPECT_EQ(x.row(0)[1], activation == Activation::kTanh ? -1.0f : 0.0f);
    EXPECT_TRUE(std::isnan(x.row(0)[2]));
    EXPECT_EQ(x.row(0)[3], activation == Activation::kTanh ? 0.0f : 0.5f);
  }
}

TEST_P(ElementwiseTest, MapsAndXielu) {
  for (int columns : {1, 15, 100, 40000}) {
    for (Map function : {Map::kScale, Map::kClamp, Map::kSoftCap}) {
      SCOPED_TRACE(fmt::format("map {}, {} columns", static_cast<int>(function), columns));
      Owned x(&kFloat32, {3, columns}, 5);
      x.fill(random, 4.0f);
      Owned expected(x);
      map(device.ctx, x, function, 1.7f);
      map(reference.ctx, expected, function, 1.7f);
      expect_close(x, expected, 5e-7f);
    }
    Owned x(&kFloat32, {3, columns}, 5);
    x.fill(random, 4.0f);
    Owned expected(x);
    const Xielu parameters{.alpha_p = 0.9f, .alpha_n = 1.3f, .beta = 0.5f, .eps = -1e-6f};
    xielu(device.ctx, x, parameters);
    xielu(reference.ctx, expected, parameters);
    expect_close(x, expected, 1e-6f, 1.0f);
  }
}

TEST_P(ElementwiseTest, ClampedGlu) {
  for (int columns : {1, 16, 100}) {
    Owned gate_up(&kFloat32, {5, 2 * columns}, 3), out(&kFloat32, {5, columns}, 1), expected(out);
    gate_up.fill(random, 5.0f);
    clamped_glu(device.ctx, out, gate_up, 1.702f, 3.5f);
    clamped_glu(reference.ctx, expected, gate_up, 1.702f, 3.5f);
    expect_close(out, expected, 1e-6f, 1.0f);
  }
}

TEST_P(ElementwiseTest, AddGatherEmbed) {
  Owned x(&kFloat32, {9, 131}, 4);
  x.fill(random);
  Owned out(&kFloat32, {9, 131}), expected(out);
  out.fill(random);
  std::memcpy(expected->data, out->data, out.bytes());
  add(device.ctx, out, x, 0.37f);
  add(reference.ctx, expected, x, 0.37f);
  expect_close(out, expected, 2e-7f);

  const std::vector<int32_t> rows = {8, 0, 3, 3};
  Owned gathered(&kFloat32, {4, 131}, 2);
  gather_rows(device.ctx, gathered, x, rows);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(same_bits(gathered.row(i), x.row(rows[i]), 131));

  for (DType type : {&kFloat32, &kBFloat16, &kFloat16, &kFloat8E4M3, &kFloat8E5M2, &kFloat64}) {
    Owned table(type, {50, 131});
    if (type == &kFloat64) {
      for (int i = 0; i < 50 * 131; ++i) table->as<double>()[i] = i * 0.25;
    } else {
      table.fill(random);
    }
    Owned a(&kFloat32, {4, 131}), b(&kFloat32, {4, 131});
    embed(device.ctx, a, table, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      to_float(type, table->data + rows[i] * 131 * type->block_bytes, b.row(i), 131);
      EXPECT_TRUE(same_bits(a.row(i), b.row(i), 131)) << type->name;
    }
  }
}

// Copies run one after another: a copy may read the row that the one before wrote.
TEST_P(ElementwiseTest, CopyRowsInOrder) {
  for (const std::vector<int32_t>& pairs : {std::vector<int32_t>{0, 4, 4, 1, 2, 0, 3, 3}, {0, 4, 3, 1, 0, 2}}) {
    for (DType type : {&kFloat32, &kBFloat16}) {
      for (int columns : {1, 8, 131}) {
        for (int gap : {0, 5}) {
          Owned x(type, {5, columns}, gap), expected(type, {5, columns}, gap);
          x.fill(random);
          std::memcpy(expected->data, x->data, x.bytes());
          copy_rows(device.ctx, x, x, pairs);
          const size_t stride = static_cast<size_t>(columns + gap) * type->block_bytes;
          for (size_t i = 0; i < pairs.size(); i += 2) {
            std::memmove(expected->data + pairs[i + 1] * stride, expected->data + pairs[i] * stride,
                         static_cast<size_t>(columns) * type->block_bytes);
          }
          EXPECT_EQ(std::memcmp(x->data, expected->data, x.bytes()), 0) << type->name << " " << columns << "+" << gap;
        }
      }
    }
  }
}

// From one tensor to another, as many rows as there are pairs.
TEST_P(ElementwiseTest, CopyRowsToAnother) {
  for (DType type : {&kFloat32, &kBFloat16, &kFloat8E4M3}) {
    for (int columns : {1, 8, 131, 512}) {
      for (int gap : {0, 5}) {
        Owned from(type, {9, columns}, gap), to(type, {7, columns}, 0), expected(type, {7, columns}, 0);
        from.fill(random);
        const std::vector<int32_t> pairs = {8, 0, 0, 6, 3, 3, 3, 1};
        copy_rows(device.ctx, to, from, pairs);
        const size_t bytes = static_cast<size_t>(columns) * type->block_bytes;
        const size_t stride = static_cast<size_t>(columns + gap) * type->block_bytes;
        for (size_t i = 0; i < pairs.size(); i += 2) {
          std::memcpy(expected->data + pairs[i + 1] * bytes, from->data + pairs[i] * stride, bytes);
        }
        EXPECT_EQ(std::memcmp(to->data, expected->data, to.bytes()), 0) << type->name << " " << columns << "+" << gap;
      }
    }
  }
}

struct RopeCase {
  int heads, kv_heads, head_dim, value_dim, rotary_dim, block_size;
  bool interleaved;
};

TEST_P(ElementwiseTest, RopeStore) {
  for (const RopeCase& c : {RopeCase{4, 2, 64, 64, 64, 16, false}, RopeCase{3, 3, 24, 40, 24, 8, false},
                            RopeCase{2, 1, 128, 128, 32, 32, false}, RopeCase{2, 1, 80, 80, 20, 16, true},
                            RopeCase{8, 1, 64, 16, 64, 64, true}, RopeCase{2, 2, 16, 16, 0, 16, false}}) {
    std::vector<DType> types = {&kFloat32, &kBFloat16, &kFloat16};
    types.insert(types.end(), GetParam()->can.narrow_caches.begin(), GetParam()->can.narrow_caches.end());
    for (DType type : types) {
      SCOPED_TRACE(fmt::format("head_dim {}, rotary_dim {}, {}", c.head_dim, c.rotary_dim, type->name));
      const int tokens = 11;
      Owned q(&kFloat32, {tokens, c.heads * c.head_dim}, 8), k(&kFloat32, {tokens, c.kv_heads * c.head_dim}, 8);
      Owned v(&kFloat32, {tokens, c.kv_heads * c.value_dim}, 8), cos_sin(&kFloat32, {100, std::max(c.rotary_dim, 2)});
      q.fill(random), k.fill(random), v.fill(random), cos_sin.fill(random);
      // A token of zeros, and for caches with scales a token with a NaN element.
      std::fill_n(k.row(3), k->shape[1], 0.0f), std::fill_n(v.row(3), v->shape[1], 0.0f);
      if (type == &kInt8) v.row(5)[c.value_dim - 1] = std::nanf("");
      OwnedCache k_cache(type, {6, c.kv_heads, c.block_size, c.head_dim}),
          v_cache(type, {6, c.kv_heads, c.block_size, c.value_dim});
      Owned expected_q(q);
      OwnedCache expected_k(k_cache), expected_v(v_cache);
      std::vector<int32_t> positions, slots;
      for (int t = 0; t < tokens; ++t) {
        positions.push_back((t * 37) % 100);
        slots.push_back((t * 5 + 3) % (6 * c.block_size));
      }
      const Tensor angles = c.rotary_dim == 0 ? Tensor() : *cos_sin;
      RopeStoreArgs args{.q = q,
                         .k = k,
                         .v = v,
                         .cos_sin = angles,
                         .interleaved = c.interleaved,
                         .k_cache = k_cache,
                         .v_cache = v_cache,
                         .positions = positions,
                         .slots = slots};
      rope_store(device.ctx, args);
      args.q = expected_q, args.k_cache = expected_k, args.v_cache = expected_v;
      rope_store(reference.ctx, args);
      expect_close(q, expected_q, 1e-6f);
      Owned only_q(k), expected_only_q(k);
      RopeStoreArgs rotation{.q = only_q,
                             .k = {},
                             .v = {},
                             .cos_sin = angles,
                             .interleaved = c.interleaved,
                             .k_cache = k_cache,
                             .v_cache = v_cache,
                             .positions = positions,
                             .slots = {}};
      rope_store(device.ctx, rotation);
      rotation.q = expected_only_q;
      rope_store(reference.ctx, rotation);
      expect_close(only_q, expected_only_q, 1e-6f);
      if (type != &kInt8) {
        EXPECT_EQ(std::memcmp(v_cache->data, expected_v->data, v_cache.bytes()), 0);
      }
      expect_cached(k_cache, expected_k, 1e-6f);
      expect_cached(v_cache, expected_v, 1e-6f);
      const Ops& ops = device.ctx.ops;
      if (ops.normalizes_heads == nullptr || !ops.normalizes_heads(angles, c.interleaved, k_cache)) continue;
      Owned weights(&kFloat32, {2, c.head_dim});
      q.fill(random), k.fill(random), weights.fill(random);
      args.q = q, args.k = k, args.k_cache = k_cache;
      args.q_norm = {weights.row(0), 1e-6f}, args.k_norm = {weights.row(1), 1e-5f};
      Owned normal_q(q), normal_k(k);
      rope_store(device.ctx, args);
      normalize_heads(reference.ctx, normal_q, c.head_dim, args.q_norm);
      normalize_heads(reference.ctx, normal_k, c.head_dim, args.k_norm);
      args.q = normal_q, args.k = normal_k, args.k_cache = expected_k, args.q_norm = args.k_norm = {};
      rope_store(reference.ctx, args);
      expect_close(q, normal_q, 4e-6f);
      expect_cached(k_cache, expected_k, 4e-6f);
    }
  }
}

// Keys alone, with and without queries. The values that are not stored have the scales of the keys.
TEST_P(ElementwiseTest, RopeStoreWithoutValues) {
  constexpr int kTokens = 7, kDim = 48, kRotary = 16;
  std::vector<DType> types = {&kFloat32, &kBFloat16};
  types.insert(types.end(), GetParam()->can.narrow_caches.begin(), GetParam()->can.narrow_caches.end());
  for (DType type : types) {
    for (const int heads : {0, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} heads", type->name, heads));
      Owned q(&kFloat32, {kTokens, heads * kDim}, 8), k(&kFloat32, {kTokens, kDim}, 8);
      Owned cos_sin(&kFloat32, {50, kRotary});
      q.fill(random), k.fill(random), cos_sin.fill(random);
      OwnedCache cache(type, {2, 1, 16, kDim}), expected(type, {2, 1, 16, kDim});
      Owned expected_q(q);
      const std::vector<int32_t> positions{3, 4, 5, 6, 7, 8, 49}, slots{5, 4, 31, 0, 16, -1, 7};
      const auto store = [&](Ctx& ctx, const Tensor& queries, const OwnedCache& keys) {
        rope_store(ctx, {.q = queries,
                         .k = k,
                         .v = (*k).slice_columns(0, 0),
                         .cos_sin = cos_sin,
                         .k_cache = keys,
                         .v_cache = {Tensor(keys->data, type, {2, 1, 16, 0}), keys.scales()},
                         .positions = positions,
                         .slots = slots});
        ctx.queue.wait();
      };
      store(device.ctx, q, cache), store(reference.ctx, expected_q, expected);
      expect_close(q, expected_q, 1e-6f);
      expect_cached(cache, expected, 1e-6f);
    }
  }
}

SLUICE_FOR_EVERY_BACKEND(ElementwiseTest);

}  // namespace
}  // namespace sluice::ops::elementwise_test
