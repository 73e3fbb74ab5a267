// Rows in the types that matmuls round their inputs to (ops::input_type): the ops that write them, and matmuls with
// inputs rounded to 8-bit floats. For backends without such types, the tests only check that they report fp32.
#include <numeric>

#include "ops/testing.h"
#include "quant/groups.h"

namespace sluice::ops::rounded_test {
namespace {

constexpr DType kRounded[] = {&kBFloat16, &kFloat16, &kFloat8E4M3};

// Memory of `rows` rows as ops::take_rows lays them out.
class Rows {
 public:
  Rows(DType type, int64_t rows, int64_t columns)
      : buffer_(static_cast<size_t>(rows * columns) * 4, test_memory()),
        tensor_(rows_in(Tensor(buffer_.data(), &kFloat32, {rows, columns}), type)) {
    std::memset(buffer_.data(), 0xff, buffer_.size());
  }
  operator Tensor() const { return tensor_; }
  const Tensor& operator*() const { return tensor_; }
  // Returns the rows as fp32.
  std::vector<float> values() const {
    const int64_t columns = tensor_.shape[1], rows = tensor_.rows();
    std::vector<float> out(static_cast<size_t>(rows * columns));
    if (tensor_.dtype != &kFloat8E4M3) {
      to_float(tensor_.dtype, tensor_.data, out.data(), out.size());
      return out;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      const auto code = static_cast<uint8_t>(tensor_.data[i]);
      out[i] = quant::Fp8::value(code) * row_scales(tensor_)[static_cast<int64_t>(i) / columns];
    }
    return out;
  }

 private:
  Buffer buffer_;
  Tensor tensor_;
};

// Half a step of a type, relative to the number, and for 8-bit floats also relative to the row's largest magnitude.
void expect_rounded(const Rows& rows, const Tensor& exact, const std::string& what) {
  const DType type = (*rows).dtype;
  const float each = type == &kBFloat16 ? 0x1p-8f : type == &kFloat16 ? 0x1p-11f : 0x1p-4f;
  const float small = type == &kFloat8E4M3 ? 0x1p-10f / 448 : type == &kFloat16 ? 0x1p-24f : 0.0f;
  const std::vector<float> values = rows.values();
  const int64_t columns = exact.shape[1];
  for (int64_t r = 0; r < exact.rows(); ++r) {
    const float* e = exact.f32() + r * exact.row_stride;
    float top = 0;
    for (int64_t i = 0; i < columns; ++i) top = std::max(top, std::abs(e[i]));
    for (int64_t i = 0; i < columns; ++i) {
      const float bound = 1.01f * (each * std::abs(e[i]) + small * (type == &kFloat8E4M3 ? top : 1.0f)) + 1e-5f * top;
      ASSERT_NEAR(values[static_cast<size_t>(r * columns + i)], e[i], bound)
          << what << " " << type->name << " row " << r << " column " << i << " of " << columns;
    }
  }
}

class RoundedTest : public OpsTest {
 protected:
  bool rounds() const {
    const auto kernels = device.ctx.ops.matmul.find(&kBFloat16);
    return kernels != device.ctx.ops.matmul.end() && kernels->second.input_type != nullptr;
  }
};

TEST_P(RoundedTest, NormsWriteEveryType) {
  if (!rounds()) GTEST_SKIP() << "matmuls take fp32";
  for (DType type : kRounded) {
    for (const int64_t columns : {4, 128, 132, 1024, 4096, 20480}) {
      const int64_t rows = 5;
      Owned x(&kFloat32, {rows, columns}, 4), weight(&kFloat32, {1, columns}), bias(&kFloat32, {1, columns}),
          exact(&kFloat32, {rows, columns});
      x.fill(random, 3.0f), weight.fill(random), bias.fill(random);
      std::fill_n(x.row(3), columns, 0.0f);
      const Rows out(type, rows, columns);
      rms_norm(device.ctx, out, x, weight->f32(), 1e-5f, 0.5f);
      rms_norm(reference.ctx, exact, x, weight->f32(), 1e-5f, 0.5f);
      expect_rounded(out, exact, "rms_norm");
      layer_norm(device.ctx, out, x, weight->f32(), bias->f32(), 1e-5f);
      layer_norm(reference.ctx, exact, x, weight->f32(), bias->f32(), 1e-5f);
      expect_rounded(out, exact, "layer_norm");
    }
  }
}

// Uses so many rows that a thread block processes several in turn (device/row_stream.cuh).
TEST_P(RoundedTest, NormsAndGatesOfManyRows) {
  if (!rounds()) GTEST_SKIP() << "matmuls take fp32";
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2209, 4096}, {1200, 8200}, {600, 14336}}) {
    Owned x(&kFloat32, {rows, columns}, 4), weight(&kFloat32, {1, columns}), exact(&kFloat32, {rows, columns});
    x.fill(random, 3.0f), weight.fill(random);
    std::fill_n(x.row(3), columns, 0.0f);
    rms_norm(reference.ctx, exact, x, weight->f32(), 1e-5f, 0.5f);
    for (DType type : {&kFloat32, &kBFloat16, &kFloat8E4M3}) {
      const Rows out(type, rows, columns);
      rms_norm(device.ctx, out, x, weight->f32(), 1e-5f, 0.5f);
      expect_rounded(out, exact, "rms_norm");
    }
    Owned given(&kBFloat16, {rows, 2 * columns}), wide(&kFloat32, {rows, 2 * columns});
    given.fill(random);
    to_float(&kBFloat16, given->data, wide->f32(), static_cast<size_t>(rows * 2 * columns));
    const Rows out(&kFloat8E4M3, rows, columns);
    glu(device.ctx, out, given, Activation::kSilu);
    glu(reference.ctx, exact, wide, Activation::kSilu);
    expect_rounded(out, exact, "glu");
  }
}

TEST_P(RoundedTest, GatesReadAndWriteEveryType) {
  if (!rounds()) GTEST_SKIP() << "matmuls take fp32";
  for (DType type : {&kFloat32, &kBFloat16, &kFloat16, &kFloat8E4M3}) {
    for (DType input : {&kFloat32, &kBFloat16}) {
      for (const int64_t columns : {4, 128, 260, 14336, 20000}) {
        const int64_t rows = 3;
        Owned given(input, {rows, 2 * columns}), wide(&kFloat32, {rows, 2 * columns}),
            exact(&kFloat32, {rows, columns});
        given.fill(random);
        to_float(input, given->data, wide->f32(), static_cast<size_t>(rows * 2 * columns));
        for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          const Rows out(type, rows, columns);
          glu(device.ctx, out, given, activation);
          glu(reference.ctx, exact, wide, activation);
          expect_rounded(out, exact, "glu");
        }
      }
    }
  }
}

// Returns the inputs rounded as matmuls with 8-bit float inputs round them.
Owned as_fp8(const Owned& x, int64_t group) {
  Owned out(x);
  for (int64_t r = 0; r < x->rows(); ++r) {
    for (int64_t i = 0; i < x->shape[1]; i += group) {
      float* values = out.row(r) + i;
      float top = 1e-30f;
      for (int64_t j = 0; j < group; ++j) top = std::max(top, std::abs(values[j]));
      const float scale = top * (1.0f / 448.0f), inverse = 448.0f / top;
      for (int64_t j = 0; j < group; ++j) {
        values[j] = quant::Fp8::value(quant::Fp8::nearest(values[j] * inverse)) * scale;
      }
    }
  }
  return out;
}

double distance(const Tensor& a, const Tensor& b) {
  double error = 0, size = 0;
  for (int64_t r = 0; r < a.rows(); ++r) {
    for (int64_t i = 0; i < a.shape[1]; ++i) {
      const double x = a.f32()[r * a.row_stride + i], y = b.f32()[r * b.row_stride + i];
      error += (x - y) * (x - y), size += y * y;
    }
  }
  return std::sqrt(error / size);
}

// Matmuls with 8-bit weights that may round inputs to 8-bit floats. Inputs are fp32, or rows that are already rounded.
TEST_P(RoundedTest, Fp8InputsMultiplyAsTheyAreRounded) {
  const auto kernels = device.ctx.ops.matmul.find(&quant::Fp8::kType);
  if (!rounds() || kernels == device.ctx.ops.matmul.end()) GTEST_SKIP() << "no matmuls with 8-bit floats";
  int i = 0;
  for (const InputRounding rounding : {InputRounding::kFp8PerRow, InputRounding::kFp8PerGroup}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{16, 128}, {48, 384}, {272, 1024}, {4096, 512}, {32, 8320}}) {
      for (const int64_t rows : {1, 5, 8, 31, 64, 100, 200}) {
        const bool biased = ++i % 3 == 0, accumulate = i % 2 == 0;
        SCOPED_TRACE(fmt::format("{} rows, n {}, k {}, {}", rows, n, k, static_cast<int>(rounding)));
        std::vector<float> values(static_cast<size_t>(n * k));
        std::normal_distribution<float> normal;
        for (float& v : values) v = normal(random);
        std::vector<std::byte> blocks(values.size() / 128 * sizeof(quant::Fp8::Block));
        // One scale per row, or one per block.
        const auto step = static_cast<size_t>(rounding == InputRounding::kFp8PerRow ? k : 128);
        for (size_t at = 0; at < values.size(); at += step) {
          from_float(&quant::Fp8::kType, values.data() + at, blocks.data() + at / 128 * sizeof(quant::Fp8::Block),
                     step);
        }
        const Tensor matrix(blocks.data(), &quant::Fp8::kType, {n, k});
        Owned x(&kFloat32, {rows, k}, 4), bias(&kFloat32, {1, n}), out(&kFloat32, {rows, n});
        x.fill(random), bias.fill(random), out.fill(random);
        const Owned before(out);
        Owned expected(out), exact(out);
        const auto product = [&](Checked& d, const Tensor& to, const Tensor& from) {
          const MatmulKernels& own = d.ctx.ops.matmul.at(&quant::Fp8::kType);
          Buffer memory(own.packed_bytes(n, k), test_memory());
          const Weight weight{.dtype = &quant::Fp8::kType, .n = n, .k = k, .data = memory.data(), .inputs = rounding};
          own.pack(d.ctx.queue, weight, n / 2, matrix.slice_rows(n / 2, n - n / 2));
          own.pack(d.ctx.queue, weight, 0, matrix.slice_rows(0, n / 2));
          const DType type = input_type(d.ctx, weight, rows);
          const bool plain = to.dtype == &kFloat32;
          matmul(d.ctx, {.out = to,
                         .x = from,
                         .weight = &weight,
                         .bias = biased && plain ? bias->f32() : nullptr,
                         .accumulate = accumulate && plain});
          return type;
        };
        const DType type = product(device, out, x);
        const int64_t group = rounding == InputRounding::kFp8PerRow ? k : 128;
        product(reference, expected, as_fp8(x, group));
        product(reference, exact, x);
        // Kernels for few rows, and devices without such matmuls, round to bf16 or not at all.
        const double rounded = distance(out, expected), unrounded = distance(out, exact);
        EXPECT_LT(std::min(rounded, unrounded), 5e-3) << rounded << " and " << unrounded;
        EXPECT_LT(unrounded, 0.05);
        if (type == &kFloat32) continue;
        ASSERT_EQ(type, &kFloat8E4M3);
        EXPECT_LT(rounded, 3e-3);
        // On rows of length sqrt(k), a norm without weights only changes the type.
        Owned normed(&kFloat32, {rows, k}), again(before);
        rms_norm(reference.ctx, normed, x, nullptr, 0.0f);
        const Rows eighths(type, rows, k);
        rms_norm(device.ctx, eighths, x, nullptr, 0.0f);
        product(device, again, eighths);
        Owned wanted(before);
        product(reference, wanted, as_fp8(normed, k));
        EXPECT_LT(distance(again, wanted), 5e-3);
      }
    }
  }
}

// The same matmuls with experts. Inputs are rounded if each expert has many rows.
TEST_P(RoundedTest, Fp8InputsOfExpertsMultiplyAsTheyAreRounded) {
  const auto kernels = device.ctx.ops.matmul.find(&quant::Fp8::kType);
  if (!rounds() || kernels == device.ctx.ops.matmul.end()) GTEST_SKIP() << "no matmuls with 8-bit floats";
  const std::vector<std::vector<int>> cases = {
      {0, 40, 1, 0, 60}, {300, 0, 2, 17, 256}, {130, 100, 65}, {16, 15, 18, 33}, {900}};
  for (const std::vector<int>& counts : cases) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{36, 128}, {160, 1152}, {50, 256}}) {
      const auto experts = static_cast<int64_t>(counts.size());
      SCOPED_TRACE(fmt::format("{} experts, n {}, k {}", experts, n, k));
      Owned starts(&kInt32, {experts + 1});
      auto* start = starts->as<int32_t>();
      start[0] = 0;
      std::partial_sum(counts.begin(), counts.end(), start + 1);
      const int64_t rows = start[experts];
      Owned x(&kFloat32, {rows, k}, 4), out(&kFloat32, {rows, n}), rounded(out), exact(out);
      x.fill(random);
      std::vector<Owned> matrices;
      for (int64_t e = 0; e < experts; ++e) matrices.emplace_back(&kFloat32, Shape{n, k}).fill(random);
      const auto multiply = [&](Checked& d, const Owned& to, const Owned& from) {
        const MatmulKernels& own = d.ctx.ops.matmul.at(&quant::Fp8::kType);
        const int64_t all = experts * stacked_outputs(n);
        const Buffer memory(own.packed_bytes(all, k), test_memory());
        const Weight weight{
            .dtype = &quant::Fp8::kType, .n = all, .k = k, .data = memory.data(), .inputs = InputRounding::kFp8PerRow};
        for (int64_t e = 0; e < experts; ++e) {
          own.pack(d.ctx.queue, weight, e * stacked_outputs(n), matrices[static_cast<size_t>(e)]);
        }
        expert_matmul(d.ctx, {.out = to, .x = from, .starts = starts, .weight = &weight});
      };
      multiply(device, out, x), multiply(reference, rounded, as_fp8(x, k)), multiply(reference, exact, x);
      const double close = distance(out, rounded), far = distance(out, exact);
      EXPECT_LT(std::min(close, far), 5e-3) << close << " and " << far;
      EXPECT_LT(far, 0.05);
    }
  }
}

TEST_P(RoundedTest, ProductsGiveAndTakeSixteenBits) {
  if (!rounds()) GTEST_SKIP() << "matmuls take fp32";
  for (DType type : {&kBFloat16, &kFloat16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{40, 72}, {256, 512}, {12288, 2048}}) {
      for (const int64_t rows : {8, 33, 100}) {
        SCOPED_TRACE(fmt::format("{}: {} rows, n {}, k {}", type->name, rows, n, k));
        const MatmulKernels& kernels = device.ctx.ops.matmul.at(type);
        Owned matrix(type, {n, k}), wide(&kFloat32, {rows, k}), exact(&kFloat32, {rows, n});
        matrix.fill(random, 0.1f);
        const Buffer memory(kernels.packed_bytes(n, k), test_memory());
        const Weight weight{.dtype = type, .n = n, .k = k, .data = memory.data()};
        kernels.pack(device.ctx.queue, weight, 0, matrix);
        const DType input = input_type(device.ctx, weight, rows), output = output_type(device.ctx, weight, rows);
        if (input == &kFloat32) continue;
        ASSERT_EQ(input, type);
        const Rows x(input, rows, k);
        Owned sampled(&kFloat32, {rows, k});
        sampled.fill(random);
        from_float(input, sampled->f32(), (*x).data, static_cast<size_t>(rows * k));
        const std::vector<float> seen = x.values();
        std::copy(seen.begin(), seen.end(), wide->f32());
        matmul(device.ctx, {.out = exact, .x = wide, .weight = &weight});
        Owned out(&kFloat32, {rows, n});
        matmul(device.ctx, {.out = out, .x = x, .weight = &weight});
        EXPECT_LT(distance(out, exact), 1e-5);
        const Rows rounded(output, rows, n);
        matmul(device.ctx, {.out = rounded, .x = x, .weight = &weight});
        if (output != &kFloat32) expect_rounded(rounded, exact, "matmul");
      }
    }
  }
}

TEST_P(RoundedTest, AttentionGivesSixteenBits) {
  if (!rounds()) GTEST_SKIP() << "matmuls take fp32";
  constexpr int kHeads = 8, kKvHeads = 2, kBlock = 16, kBlocks = 60;
  for (const int dim : {64, 128, 40}) {
    for (const auto& [rows, keys] : {std::pair{1, 900}, {3, 70}, {200, 333}}) {
      Owned k(&kBFloat16, {kBlocks, kKvHeads, kBlock, dim}), v(k), q(&kFloat32, {rows, kHeads * dim}),
          exact(&kFloat32, {rows, kHeads * dim});
      k.fill(random), v.fill(random), q.fill(random);
      const std::vector<int32_t> start = {0, rows}, kv_len = {keys};
      std::vector<int32_t> table(kBlocks);
      for (int i = 0; i < kBlocks; ++i) table[i] = kBlocks - 1 - i;
      AttentionArgs args{.out = exact,
                         .q = q,
                         .k_cache = *k,
                         .v_cache = *v,
                         .query_start = start,
                         .kv_len = kv_len,
                         .block_table = table,
                         .block_table_stride = kBlocks,
                         .heads = kHeads,
                         .scale = 0.1f};
      attention(device.ctx, args);
      for (DType type : {&kBFloat16, &kFloat16}) {
        const Rows out(type, rows, kHeads * dim);
        args.out = out;
        attention(device.ctx, args);
        expect_rounded(out, exact, "attention");
      }
    }
  }
}

// The first columns of bf16 results equal the rounded fp32 results.
void expect_rounded_rows(const Owned& rows, const Owned& exact, int64_t columns) {
  std::vector<float> numbers(rows.bytes() / 2);
  to_float(&kBFloat16, rows->data, numbers.data(), numbers.size());
  for (int64_t r = 0; r < rows->rows(); ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      const float want = exact.row(r)[i], got = numbers[static_cast<size_t>(r * rows->row_stride + i)];
      ASSERT_NEAR(got, want, 0x1.02p-8f * std::abs(want) + 4e-6f) << "row " << r << ", column " << i;
    }
  }
}

struct RotationCase {
  int heads, kv_heads, head_dim, value_dim, rotary_dim;
  bool interleaved;
};

// Columns of one matmul's rows, as layers pass them on: compares with fp32 input of equal values on the reference.
TEST_P(RoundedTest, RotationsReadAndWriteSixteenBits) {
  if (!rounds()) GTEST_SKIP() << "matmuls return fp32";
  constexpr int kTokens = 11, kBlock = 16, kPositions = 100;
  std::vector<int32_t> positions, slots;
  for (int t = 0; t < kTokens; ++t) positions.push_back((t * 37) % kPositions), slots.push_back(t * 5 + 3);
  for (const RotationCase& c : {RotationCase{32, 8, 128, 128, 128, false}, RotationCase{3, 3, 24, 40, 24, false},
                                RotationCase{2, 1, 128, 128, 32, false}, RotationCase{2, 1, 80, 80, 20, true},
                                RotationCase{8, 1, 64, 16, 64, false}, RotationCase{2, 2, 16, 16, 0, false}}) {
    for (DType type : {&kBFloat16, &kFloat16, &kFloat8E4M3, &kInt8, &kFloat32}) {
      for (const int64_t gap : {0, 8, 1}) {  // between rows
        SCOPED_TRACE(fmt::format("{} of {} into {}, {} between rows", c.rotary_dim, c.head_dim, type->name, gap));
        const int64_t q_width = c.heads * c.head_dim, k_width = c.kv_heads * c.head_dim,
                      v_width = c.kv_heads * c.value_dim;
        Owned rows(&kBFloat16, {kTokens, q_width + k_width + v_width}, gap), wide(&kFloat32, rows->shape, gap);
        Owned cos_sin(&kFloat32, {kPositions, std::max(c.rotary_dim, 2)});
        rows.fill(random), cos_sin.fill(random);
        to_float(&kBFloat16, rows->data, wide->f32(), rows.bytes() / 2);
        OwnedCache k_cache(type, {6, c.kv_heads, kBlock, c.head_dim}),
            v_cache(type, {6, c.kv_heads, kBlock, c.value_dim});
        OwnedCache expected_k(k_cache), expected_v(v_cache);
        const auto store = [&](Ctx& ctx, const Tensor& from, const CacheTensor& keys, const CacheTensor& values) {
          rope_store(ctx, {.q = from.slice_columns(0, q_width),
                           .k = from.slice_columns(q_width, k_width),
                           .v = from.slice_columns(q_width + k_width, v_width),
                           .cos_sin = c.rotary_dim == 0 ? Tensor() : *cos_sin,
                           .interleaved = c.interleaved,
                           .k_cache = keys,
                           .v_cache = values,
                           .positions = positions,
                           .slots = slots});
        };
        store(device.ctx, rows, k_cache, v_cache), store(reference.ctx, wide, expected_k, expected_v);
        expect_rounded_rows(rows, wide, q_width);
        expect_cached(k_cache, expected_k, 4e-6f);
        expect_cached(v_cache, expected_v, 4e-6f);
      }
    }
  }
}

TEST_P(RoundedTest, RotationsNormalizeSixteenBits) {
  if (!rounds() || device.ctx.ops.normalizes_heads == nullptr) GTEST_SKIP() << "norms of fp32";
  constexpr int kTokens = 300, kBlock = 16, kHeads = 6, kKvHeads = 2;
  std::vector<int32_t> positions, slots;
  for (int t = 0; t < kTokens; ++t) positions.push_back(t), slots.push_back(t + 3);
  for (const int dim : {32, 64, 128, 256}) {
    SCOPED_TRACE(fmt::format("heads of {}", dim));
    const int64_t q_width = kHeads * dim, k_width = kKvHeads * dim;
    Owned rows(&kBFloat16, {kTokens, q_width + 2 * k_width}, 8), wide(&kFloat32, rows->shape, 8);
    Owned cos_sin(&kFloat32, {kTokens, dim}), weights(&kFloat32, {2, dim});
    rows.fill(random), cos_sin.fill(random), weights.fill(random);
    to_float(&kBFloat16, rows->data, wide->f32(), rows.bytes() / 2);
    OwnedCache k_cache(&kBFloat16, {20, kKvHeads, kBlock, dim}), v_cache(k_cache), expected_k(k_cache),
        expected_v(k_cache);
    ASSERT_TRUE(device.ctx.ops.normalizes_heads(cos_sin, false, k_cache));
    const HeadNorm q_norm{weights.row(0), 1e-6f}, k_norm{weights.row(1), 1e-5f};
    const auto args_of = [&](const Tensor& from, const CacheTensor& keys, const CacheTensor& values) {
      return RopeStoreArgs{.q = from.slice_columns(0, q_width),
                           .k = from.slice_columns(q_width, k_width),
                           .v = from.slice_columns(q_width + k_width, k_width),
                           .cos_sin = cos_sin,
                           .k_cache = keys,
                           .v_cache = values,
                           .positions = positions,
                           .slots = slots};
    };
    RopeStoreArgs own = args_of(rows, k_cache, v_cache);
    own.q_norm = q_norm, own.k_norm = k_norm;
    rope_store(device.ctx, own);
    const RopeStoreArgs other = args_of(wide, expected_k, expected_v);
    normalize_heads(reference.ctx, other.q, dim, q_norm), normalize_heads(reference.ctx, other.k, dim, k_norm);
    rope_store(reference.ctx, other);
    expect_rounded_rows(rows, wide, q_width);
    expect_cached(k_cache, expected_k, 1e-5f);
    expect_cached(v_cache, expected_v, 1e-5f);
  }
}

// Equal values in fp32 and in bf16 give the same bits in every attention kernel.
TEST_P(RoundedTest, AttentionReadsSixteenBits) {
  if (!rounds()) GTEST_SKIP() << "matmuls return fp32";
  constexpr int kHeads = 8, kKvHeads = 2, kBlock = 16, kBlocks = 60;
  const std::vector<int32_t> start = {0, 1, 4, 204}, kv_len = {900, 70, 333};
  const int64_t rows = start.back();
  std::vector<int32_t> table(kv_len.size() * kBlocks);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>((i * 7) % kBlocks);
  for (DType cache : {&kBFloat16, &kFloat16, &kFloat8E4M3, &kInt8, &kFloat32}) {
    for (const int64_t dim : {64, 128, 40, 256, 36}) {
      for (const int64_t gap : {0, 8, 1}) {  // between rows
        OwnedCache k(cache, {kBlocks, kKvHeads, kBlock, dim}), v(cache, {kBlocks, kKvHeads, kBlock, dim});
        k.fill(random), v.fill(random);
        Owned q(&kBFloat16, {rows, kHeads * dim}, gap), wide(&kFloat32, {rows, kHeads * dim}, gap);
        q.fill(random);
        to_float(&kBFloat16, q->data, wide->f32(), q.bytes() / 2);
        Owned out(&kFloat32, {rows, kHeads * dim}), expected(out);
        AttentionArgs args{.out = expected,
                           .q = wide,
                           .k_cache = k,
                           .v_cache = v,
                           .query_start = start,
                           .kv_len = kv_len,
                           .block_table = table,
                           .block_table_stride = kBlocks,
                           .heads = kHeads,
                           .scale = 0.1f};
        attention(device.ctx, args);
        args.out = out, args.q = q;
        attention(device.ctx, args);
        EXPECT_TRUE(same_bits(out->f32(), expected->f32(), rows * kHeads * dim))
            << "cache of " << cache->name << ", heads of " << dim << ", " << gap << " between rows";
      }
    }
  }
}

TEST(Rounded, RowsThatNoProductGivesAreRefused) {
  Checked device(select_backend("reference"), 1);
  const char* why = "bfloat16, which no matmul returns here";
  Owned rows(&kBFloat16, {1, 64}), wide(&kFloat32, {1, 64}), half(&kFloat32, {1, 32});
  Owned k(&kBFloat16, {1, 1, 8, 64}), v(k);
  const std::vector<int32_t> zero = {0}, start = {0, 1}, length = {1};
  EXPECT_DEATH(glu(device.ctx, half, rows, Activation::kSilu), why);
  RopeStoreArgs store{
      .q = rows, .k = rows, .v = rows, .cos_sin = {}, .k_cache = *k, .v_cache = *v, .positions = zero, .slots = zero};
  EXPECT_DEATH(rope_store(device.ctx, store), why);
  store.q = wide;
  EXPECT_DEATH(rope_store(device.ctx, store), "q is float32, k bfloat16, v bfloat16");
  EXPECT_DEATH(attention(device.ctx, {.out = wide,
                                      .q = rows,
                                      .k_cache = *k,
                                      .v_cache = *v,
                                      .query_start = start,
                                      .kv_len = length,
                                      .block_table = zero,
                                      .block_table_stride = 1,
                                      .heads = 1}),
               why);
}

SLUICE_FOR_EVERY_BACKEND(RoundedTest);

}  // namespace
}  // namespace sluice::ops::rounded_test
