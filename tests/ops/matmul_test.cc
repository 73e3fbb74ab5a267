// Matmuls of every backend and weight type. Compares with the reference. Checks that a row's bits are the same alone,
// in batches of other sizes, and with other numbers of threads.
#include "ops/gated_matmul.h"
#include "ops/testing.h"

namespace sluice::ops::matmul_test {
namespace {

constexpr DType kTypes[] = {&kFloat32, &kBFloat16, &kFloat16};

struct Packed : Weight {
  Buffer storage;
};

Packed packed(Ctx& ctx, DType stored, const std::vector<const Owned*>& sources, int64_t k) {
  const MatmulKernels& kernels = ctx.ops.matmul.at(stored);
  Packed weight;
  weight.dtype = stored;
  weight.k = k;
  for (const Owned* source : sources) weight.n += (*source)->rows();
  weight.storage = Buffer(kernels.packed_bytes(weight.n, k), test_memory());
  weight.data = weight.storage.data();
  int64_t row = weight.n;
  for (auto source = sources.rbegin(); source != sources.rend(); ++source) {  // any order
    row -= (**source)->rows();
    kernels.pack(ctx.queue, weight, row, ***source);
  }
  return weight;
}

class MatmulTest : public OpsTest {
 protected:
  void compare(DType stored, DType source, int64_t rows, int64_t n, int64_t k, bool bias, bool accumulate) {
    SCOPED_TRACE(fmt::format("{} from {}: {} rows, n {}, k {}", stored->name, source->name, rows, n, k));
    Owned matrix(source, {n, k}, 1), x(&kFloat32, {rows, k}, 3), biases(&kFloat32, {1, n});
    matrix.fill(random), x.fill(random), biases.fill(random);
    Owned out(&kFloat32, {rows, n}, 5);
    out.fill(random);
    Owned expected(out);
    const Owned before(out);
    for (auto [d, result] : {std::pair{&device, &out}, {&reference, &expected}}) {
      const Packed weight = packed(d->ctx, stored, {&matrix}, k);
      matmul(d->ctx, {.out = *result,
                      .x = x,
                      .weight = &weight,
                      .bias = bias ? biases->f32() : nullptr,
                      .accumulate = accumulate});
    }
    expect_close(out, expected, tolerance(stored, k), 1.0f);
    for (int64_t r = 0; r < rows; ++r) EXPECT_TRUE(same_bits(out.row(r) + n, before.row(r) + n, 5)) << "past row " << r;
  }
};

TEST_P(MatmulTest, MatchesTheReference) {
  for (DType stored : kTypes) {
    int i = 0;
    for (int64_t n : {1, 15, 16, 33, 64, 100, 257}) {
      for (int64_t k : {1, 2, 7, 64, 131, 600}) {
        const int64_t rows = std::array{1, 2, 3, 5, 6, 7, 13, 31}[i++ % 8];
        compare(stored, stored, rows, n, k, i % 2 == 0, i % 3 == 0);
      }
    }
    compare(stored, stored, 210, 130, 401, true, true);
    compare(stored, stored, 800, 20, 33, false, false);
  }
}

// A step without logits has none.
TEST_P(MatmulTest, TakesNoRows) {
  for (DType stored : kTypes) compare(stored, stored, 0, 33, 64, false, false);
}

TEST_P(MatmulTest, ConvertsWhenPacking) {
  for (DType stored : kTypes) {
    for (DType source : kTypes) compare(stored, source, 4, 37, 301, false, false);
  }
}

// Packing q, k and v one by one, with sizes that are not multiples of a panel, equals packing them at once.
TEST_P(MatmulTest, FusedSourcesPackLikeOne) {
  const int64_t k = 77;
  for (DType stored : kTypes) {
    Owned whole(stored, {61, k});
    whole.fill(random);
    Owned q(stored, {30, k}), key(stored, {7, k}), value(stored, {24, k});
    const size_t row_bytes = k * stored->block_bytes;
    std::memcpy(q->data, whole->data, 30 * row_bytes);
    std::memcpy(key->data, whole->data + 30 * row_bytes, 7 * row_bytes);
    std::memcpy(value->data, whole->data + 37 * row_bytes, 24 * row_bytes);
    const Packed one = packed(device.ctx, stored, {&whole}, k),
                 three = packed(device.ctx, stored, {&q, &key, &value}, k);
    ASSERT_EQ(one.storage.size(), three.storage.size());
    EXPECT_EQ(std::memcmp(one.storage.data(), three.storage.data(), one.storage.size()), 0) << stored->name;
  }
}

// The kernels of a GPU take tiles of up to 256 rows, and choose them by the numbers of rows and outputs.
TEST_P(MatmulTest, RowsKeepTheirBitsInLargeBatches) {
  if (!std::string_view(GetParam()->name).starts_with("cuda")) GTEST_SKIP() << "only GPUs have such tiles";
  if (!GetParam()->can.batch_invariant) GTEST_SKIP() << "kernels are chosen by the number of rows";
  for (DType stored : {&kBFloat16, &kFloat16}) {
    for (auto [n, k, total] : {std::tuple<int64_t, int64_t, int64_t>{8525, 192, 600},
                               {4099, 328, 1100},
                               {72, 4096, 300},
                               {13568, 128, 140}}) {
      Owned matrix(stored, {n, k}), x(&kFloat32, {total, k}), biases(&kFloat32, {1, n}),
          start(&kFloat32, {total, n}, 3);
      matrix.fill(random), x.fill(random), biases.fill(random), start.fill(random);
      const Packed weight = packed(device.ctx, stored, {&matrix}, k);
      const auto multiply = [&](const Owned& out, int64_t first, int64_t rows) {
        matmul(device.ctx, {.out = out->slice_rows(first, rows),
                            .x = x->slice_rows(first, rows),
                            .weight = &weight,
                            .bias = biases->f32(),
                            .accumulate = true});
      };
      const Owned whole(start);
      multiply(whole, 0, total);
      for (const int64_t batch : {1, 2, 7, 8, 9, 16, 20, 33, 64, 65, 128, 129, 257, 300}) {
        const Owned out(start);
        for (int64_t r = 0; r < total; r += batch) {
          multiply(out, r, std::min(batch, total - r));
          if (batch < 33 && r > 3 * batch) break;
        }
        for (int64_t r = 0; r < (batch < 33 ? 4 * batch : total); ++r) {
          ASSERT_TRUE(same_bits(out.row(r), whole.row(r), n))
              << stored->name << " n " << n << " k " << k << " batch " << batch << " row " << r;
        }
      }
    }
  }
}

TEST_P(MatmulTest, RowsKeepTheirBitsInEveryBatch) {
  const int64_t total = !GetParam()->can.batch_invariant ? 31 : 70;  // beyond, another kernel may be chosen
  for (DType stored : kTypes) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{161, 515}, {64, 2048}, {48, 33}}) {
      Owned matrix(stored, {n, k}), x(&kFloat32, {total, k}), biases(&kFloat32, {1, n}), start(&kFloat32, {total, n});
      matrix.fill(random), x.fill(random), biases.fill(random), start.fill(random);
      const Packed weight = packed(device.ctx, stored, {&matrix}, k);
      Owned alone(start);
      for (int64_t r = 0; r < total; ++r) {
        matmul(device.ctx, {.out = alone->slice_rows(r, 1),
                            .x = x->slice_rows(r, 1),
                            .weight = &weight,
                            .bias = biases->f32(),
                            .accumulate = true});
      }
      for (int threads = 1; threads <= 4; ++threads) {
        Checked other(*GetParam(), threads);
        for (int64_t batch = 2; batch <= total; batch += threads == 2 ? sized(1, 9) : sized(11, 34)) {
          Owned out(start);
          for (int64_t r = 0; r < total; r += batch) {
            const int64_t rows = std::min(batch, total - r);
            matmul(other.ctx, {.out = out->slice_rows(r, rows),
                               .x = x->slice_rows(r, rows),
                               .weight = &weight,
                               .bias = biases->f32(),
                               .accumulate = true});
          }
          ASSERT_TRUE(same_bits(out->f32(), alone->f32(), total * n))
              << stored->name << " n " << n << " k " << k << " batch " << batch << " threads " << threads;
        }
      }
    }
  }
}

TEST_P(MatmulTest, NanStaysInItsRow) {
  for (DType stored : kTypes) {
    for (int64_t rows : {2, 9, 40}) {
      Owned matrix(stored, {50, 101}), x(&kFloat32, {rows, 101}), out(&kFloat32, {rows, 50}),
          clean(&kFloat32, {rows, 50});
      matrix.fill(random), x.fill(random);
      const Packed weight = packed(device.ctx, stored, {&matrix}, 101);
      matmul(device.ctx, {.out = clean, .x = x, .weight = &weight});
      x.row(1)[100] = std::nanf("");
      matmul(device.ctx, {.out = out, .x = x, .weight = &weight});
      for (int64_t r = 0; r < rows; ++r) {
        if (r == 1) continue;
        EXPECT_TRUE(same_bits(out.row(r), clean.row(r), 50)) << stored->name << " row " << r;
      }
      for (int64_t i = 0; i < 50; ++i) EXPECT_TRUE(std::isnan(out.row(1)[i]));
    }
  }
}

// The products of gated units equal those of a matmul and of gates behind it.
TEST_P(MatmulTest, GatedUnits) {
  int taken = 0;
  for (DType stored : {&kBFloat16, &kFloat16}) {
    for (auto [inner, k, rows, bias] : {std::tuple<int64_t, int64_t, int64_t, bool>{64, 64, 1024, false},
                                        {200, 192, 1025, true},
                                        {1000, 320, 1100, false},
                                        {136, 64, 1300, true}}) {
      SCOPED_TRACE(fmt::format("{}: {} rows, [2 x {}, {}]", stored->name, rows, inner, k));
      Owned matrix(stored, {2 * inner, k}), x(stored, {rows, k}, 8), biases(&kFloat32, {1, 2 * inner});
      matrix.fill(random), x.fill(random), biases.fill(random);
      Owned out(stored, {rows, inner}, 8);
      out.fill(random);
      const Owned before(out);
      const Packed weight = packed(device.ctx, stored, {&matrix}, k);
      const float* bias_or_none = bias ? biases->f32() : nullptr;
      if (!gated_matmul(device.ctx, {.out = out, .x = x, .weight = &weight, .bias = bias_or_none}, Activation::kSilu)) {
        EXPECT_EQ(std::memcmp(out->data, before->data, out.bytes()), 0);
        continue;
      }
      ++taken;
      Owned wide(&kFloat32, {rows, k}), gate_up(&kFloat32, {rows, 2 * inner}), expected(&kFloat32, {rows, inner});
      for (int64_t r = 0; r < rows; ++r)
        to_float(stored, x->slice_rows(r, 1).data, wide.row(r), static_cast<size_t>(k));
      const Packed plain = packed(reference.ctx, stored, {&matrix}, k);
      matmul(reference.ctx, {.out = gate_up, .x = wide, .weight = &plain, .bias = bias_or_none});
      glu(reference.ctx, expected, gate_up, Activation::kSilu);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> row(static_cast<size_t>(inner));
        to_float(stored, out->slice_rows(r, 1).data, row.data(), row.size());
        for (int64_t i = 0; i < inner; ++i) {
          const float wanted = expected.row(r)[i];
          ASSERT_NEAR(row[static_cast<size_t>(i)], wanted,
                      0.01f * std::abs(wanted) + 1e-3f * std::sqrt(static_cast<float>(k)))
              << "row " << r << ", unit " << i;
        }
        const size_t used = static_cast<size_t>(inner) * 2;
        ASSERT_EQ(std::memcmp(out->slice_rows(r, 1).data + used, before->slice_rows(r, 1).data + used, 16), 0);
      }
    }
  }
  if (taken == 0) GTEST_SKIP() << "no kernel writes such products";
}

SLUICE_FOR_EVERY_BACKEND(MatmulTest);

}  // namespace
}  // namespace sluice::ops::matmul_test
