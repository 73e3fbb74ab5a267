// Matmuls with weights in block formats. Compares every backend and format with the reference, for weights packed in
// pieces and for batches. Also tests embedding tables in these formats.
#include <map>
#include <string_view>

#include "ops/testing.h"
#include "quant/fp4.h"
#include "quant/nf4.h"
#include "sluice/error.h"

namespace sluice::ops::matmul_blocks_test {
namespace {

// Returns the block formats that a backend has matmuls for.
std::vector<DType> block_types(const Ops& ops) {
  std::vector<DType> types;
  for (DType type : Registry<TypeInfo>::all()) {
    if (type->block_size > 1 && ops.matmul.contains(type)) types.push_back(type);
  }
  return types;
}

// Random blocks whose values are finite and of moderate size; those of NVFP4 repeat a scale of the tensor.
std::vector<std::byte> random_blocks(DType type, int64_t rows, int64_t k, std::mt19937& random) {
  std::vector<std::byte> all(static_cast<size_t>(rows * k / type->block_size) * type->block_bytes);
  std::vector<float> values(type->block_size);
  constexpr float kScaleOfTensor = 0.0031f;
  for (size_t at = 0; at < all.size(); at += type->block_bytes) {
    float largest;
    do {
      for (int i = 0; i < type->block_bytes; ++i) all[at + i] = static_cast<std::byte>(random());
      if (type == &quant::ScaledNVFP4::kType) std::memcpy(all.data() + at, &kScaleOfTensor, sizeof kScaleOfTensor);
      to_float(type, all.data() + at, values.data(), values.size());
      largest = 0;
      for (float v : values) largest = std::isnan(v) ? INFINITY : std::max(largest, std::abs(v));
    } while (largest > 10.0f || largest < 1e-3f);
  }
  return all;
}

struct Packed : Weight {
  Buffer storage;
};

// Packs `source` in pieces of uneven height, the last first.
Packed packed(Ctx& ctx, const Tensor& source) {
  const MatmulKernels& kernels = ctx.ops.matmul.at(source.dtype);
  Packed weight;
  weight.dtype = source.dtype;
  weight.n = source.rows();
  weight.k = source.shape[1];
  weight.storage = Buffer(kernels.packed_bytes(weight.n, weight.k), test_memory());
  weight.data = weight.storage.data();
  int64_t end = weight.n;
  for (int64_t piece = 7; end > 0; end -= std::min(piece, end), piece += 6) {
    const int64_t rows = std::min(piece, end);
    kernels.pack(ctx.queue, weight, end - rows, source.slice_rows(end - rows, rows));
  }
  return weight;
}

// x as kernels see it: rounded to bf16, or to int8 (MatmulKernels::int8_block).
Owned rounded(const Owned& x, bool bf16, int64_t block) {
  Owned out(x);
  if (bf16) {
    for (int64_t r = 0; r < x->rows(); ++r) {
      for (int64_t i = 0; i < x->shape[1]; ++i) out.row(r)[i] = bf16_to_float(float_to_bf16(x.row(r)[i]));
    }
  }
  if (block == 0) return out;
  for (int64_t r = 0; r < x->rows(); ++r) {
    for (int64_t i = 0; i < x->shape[1]; i += block) {
      float* values = out.row(r) + i;
      float top = 0;
      for (int64_t j = 0; j < block; ++j) top = std::max(top, std::abs(values[j]));
      const float inverse = top == 0 ? 0.0f : 127.0f / top;
      for (int64_t j = 0; j < block; ++j) values[j] = std::nearbyint(values[j] * inverse) * (top / 127.0f);
    }
  }
  return out;
}

using MatmulBlocksTest = OpsTest;

// The number of rows from which backends that round inputs may round weights too.
constexpr int64_t kTiledRows = 9;

// Kernels may also round the weights to bf16, each by 2^-9 of up to 10: with many rows, and always the levels of NF4.
// Otherwise tensor cores sum numbers that an offset makes positive, or inputs are rounded to 15 bits of their row's
// largest magnitude. The latter does not apply to heads, for which `rows` is 0.
void expect_product(const Owned& out, const Owned& expected, DType type, int64_t k, bool bf16, int64_t rows) {
  const bool weights = bf16 && (rows >= kTiledRows || type == &quant::NF4::kType);
  const float each = !bf16 ? 1e-6f : weights ? 8e-3f : rows > 0 ? 5e-4f : 1e-5f;
  expect_close(out, expected, each * std::sqrt(static_cast<float>(k)) + 1e-6f, weights ? 8.0f : 1.0f);
}

TEST_P(MatmulBlocksTest, MatchesTheReference) {
  for (DType type : share(block_types(device.ctx.ops))) {
    int i = 0;
    for (const int64_t n : {1, 16, 37, 64, 130}) {
      for (const int64_t blocks : {1, 3, 9}) {
        const int64_t rows = std::array{1, 2, 5, 7, 8, 12, 16, 40, 64, 100, 200, 300}[i++ % 12],
                      k = blocks * type->block_size;
        SCOPED_TRACE(fmt::format("{}: {} rows, n {}, k {}", type->name, rows, n, k));
        std::vector<std::byte> data = random_blocks(type, n, k, random);
        const Tensor matrix(data.data(), type, {n, k});
        Owned sampled(&kFloat32, {rows, k}, 3), bias(&kFloat32, {1, n}), out(&kFloat32, {rows, n}, 5);
        sampled.fill(random), bias.fill(random), out.fill(random);
        Owned expected(out);
        const bool bf16 = !GetParam()->can.batch_invariant;
        const Owned x = rounded(sampled, bf16, 0);
        const Owned seen = rounded(x, false, device.ctx.ops.matmul.at(type).int8_block);
        for (auto [d, input, result] : {std::tuple{&device, &x, &out}, {&reference, &seen, &expected}}) {
          const Packed weight = packed(d->ctx, matrix);
          matmul(d->ctx,
                 {.out = *result, .x = *input, .weight = &weight, .bias = bias->f32(), .accumulate = i % 2 == 0});
        }
        expect_product(out, expected, type, k, bf16, rows);
      }
    }
  }
}

TEST_P(MatmulBlocksTest, ExpertsAndHeadsMatchTheReference) {
  const int64_t matrices = 3, n = 20, k = 512;
  const bool bf16 = !GetParam()->can.batch_invariant;
  for (DType type : share(block_types(device.ctx.ops))) {
    const int64_t all = matrices * stacked_outputs(n);
    std::vector<std::byte> data = random_blocks(type, all, k, random);
    const Packed own = packed(device.ctx, Tensor(data.data(), type, {all, k}));
    const Packed plain = packed(reference.ctx, Tensor(data.data(), type, {all, k}));
    const int64_t int8_block = device.ctx.ops.matmul.at(type).int8_block;
    for (const int rows : {9, 150, 200}) {
      SCOPED_TRACE(fmt::format("{}: {} rows", type->name, rows));
      Owned starts(&kInt32, {matrices + 1}), x(&kFloat32, {rows, k}), out(&kFloat32, {rows, n}), expected(out);
      std::ranges::copy(std::array{0, rows / 3, rows / 3, rows}, starts->as<int32_t>());
      x.fill(random);
      const Owned seen = rounded(x, bf16, int8_block);
      expert_matmul(device.ctx, {.out = out, .x = x, .starts = starts, .weight = &own});
      expert_matmul(reference.ctx, {.out = expected, .x = seen, .starts = starts, .weight = &plain});
      expect_product(out, expected, type, k, bf16, rows);
    }
    SCOPED_TRACE(fmt::format("{}: heads", type->name));
    Owned x(&kFloat32, {5, matrices * k}), out(&kFloat32, {5, matrices * n}), expected(out);
    x.fill(random);
    Owned seen = rounded(x, bf16, int8_block);
    for (auto [d, input, weight, result] :
         {std::tuple{&device, &x, &own, &out}, {&reference, &seen, &plain, &expected}}) {
      head_matmul(d->ctx, {.out = *result,
                           .x = *input,
                           .heads = static_cast<int>(matrices),
                           .n = n,
                           .out_stride = n,
                           .x_stride = k,
                           .weight = weight});
    }
    expect_product(out, expected, type, k, bf16, 0);
  }
}

// Packed weights take at most 1.15 times their size in the file. Exceptions are the codebook and digit formats, whose
// entries are expanded to codes, Q1_0, whose bits are stored as two, and Q2_K, whose scales become those of int8
// (bench/results/2026-11-cpu.md gives costs and gains).
TEST_P(MatmulBlocksTest, PackedSizeIsThatOfTheFile) {
  if (!GetParam()->open(0).memory().host_accessible()) GTEST_SKIP() << "devices have layouts of their own";
  const std::map<std::string_view, double> most = {
      {"iq1_s", 2.17}, {"iq1_m", 2.08}, {"iq2_xxs", 1.64}, {"iq2_xs", 1.57}, {"iq2_s", 1.42}, {"iq3_xxs", 1.43},
      {"iq3_s", 1.28}, {"tq1_0", 1.41}, {"q2_k", 1.20},    {"tq2_0", 1.16},  {"q1_0", 2.01}};
  constexpr int64_t kOutputs = 256, kInputs = 4096;
  for (DType type : share(block_types(device.ctx.ops))) {
    const auto file = static_cast<double>(Tensor(nullptr, type, {kOutputs, kInputs}).bytes());
    const double ratio = static_cast<double>(device.ctx.ops.matmul.at(type).packed_bytes(kOutputs, kInputs)) / file;
    const auto exception = most.find(type->name);
    EXPECT_LE(ratio, exception != most.end() ? exception->second : 1.15) << type->name;
  }
}

// The error of rounding x to int8: half a step of 1/127 of a block's largest input per element, averaging out over k.
TEST_P(MatmulBlocksTest, Int8InputsStayNearTheExactProduct) {
  const int64_t rows = 9, n = 48, k = 1024;
  for (DType type : share(block_types(device.ctx.ops))) {
    std::vector<std::byte> data = random_blocks(type, n, k, random);
    const Tensor matrix(data.data(), type, {n, k});
    Owned x(&kFloat32, {rows, k}), out(&kFloat32, {rows, n}), exact(&kFloat32, {rows, n});
    x.fill(random);
    for (auto [d, result] : {std::pair{&device, &out}, {&reference, &exact}}) {
      const Packed weight = packed(d->ctx, matrix);
      matmul(d->ctx, {.out = *result, .x = x, .weight = &weight});
    }
    double error = 0, size = 0;
    for (int64_t i = 0; i < rows * n; ++i) {
      error += std::pow(double{out->f32()[i]} - exact->f32()[i], 2);
      size += std::pow(exact->f32()[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.012) << type->name;
  }
}

TEST_P(MatmulBlocksTest, WhatIsNotFiniteStaysInItsRow) {
  const int64_t rows = 8, n = 40, k = 512;
  for (DType type : share(block_types(device.ctx.ops))) {
    std::vector<std::byte> data = random_blocks(type, n, k, random);
    const Packed weight = packed(device.ctx, Tensor(data.data(), type, {n, k}));
    Owned x(&kFloat32, {rows, k}), clean(&kFloat32, {rows, n}), out(&kFloat32, {rows, n});
    x.fill(random);
    matmul(device.ctx, {.out = clean, .x = x, .weight = &weight});
    for (const float value : {std::nanf(""), INFINITY, -INFINITY}) {
      x.row(5)[300] = value;
      matmul(device.ctx, {.out = out, .x = x, .weight = &weight});
      for (int64_t r = 0; r < rows; ++r) {
        if (r == 5) continue;
        EXPECT_TRUE(same_bits(out.row(r), clean.row(r), n)) << type->name << " row " << r;
      }
      for (int64_t i = 0; i < n; ++i) {
        // Int8 has no infinity, so the result is NaN instead of an infinity of either sign.
        const bool nan = std::isnan(value) || device.ctx.ops.matmul.at(type).int8_block != 0;
        EXPECT_TRUE(nan ? std::isnan(out.row(5)[i]) : !std::isfinite(out.row(5)[i])) << type->name << ", " << value;
      }
    }
  }
}

// Scales down to 2^-127, where neither scale nor weight is a normal number. Devices throw for scales that they cannot
// represent.
TEST_P(MatmulBlocksTest, ScalesOfMxfp4MayBeOfAnySize) {
  using Block = quant::MXFP4::Block;
  constexpr int64_t kOutputs = 20, kInputs = 320;
  std::vector<Block> blocks(kOutputs * kInputs / 32);
  const Tensor matrix(reinterpret_cast<std::byte*>(blocks.data()), &quant::MXFP4::kType, {kOutputs, kInputs});
  for (const int e : {0, 1, 2, 127, 129, 190}) {
    for (Block& block : blocks) {
      block.e = static_cast<uint8_t>(e);
      std::ranges::fill(block.qs, uint8_t{0x17});  // 6 and 0.5
    }
    const Packed weight = packed(device.ctx, matrix);
    for (const int64_t rows : {1, 12, 40, 70}) {
      Owned x(&kFloat32, {rows, kInputs}), out(&kFloat32, {rows, kOutputs});
      const float input = e < 64 ? 0x1p60f : 1.0f;
      for (int64_t row = 0; row < rows; ++row) std::ranges::fill_n(x.row(row), kInputs, input);
      matmul(device.ctx, {.out = out, .x = x, .weight = &weight});
      const double expected = std::ldexp(kInputs * 3.25 * input, e - 127);
      for (int64_t row = 0; row < rows; ++row) {
        for (int i = 0; i < kOutputs; ++i) {
          ASSERT_NEAR(out.row(row)[i] / expected, 1.0, 1e-3) << "2^" << e - 127 << ", row " << row << " of " << rows;
        }
      }
    }
  }
  for (Block& block : blocks) block.e = 254;
  if (std::string_view(GetParam()->name).starts_with("cuda")) {
    EXPECT_THROW(packed(device.ctx, matrix), Error);
  } else {
    packed(device.ctx, matrix);
  }
}

TEST_P(MatmulBlocksTest, RowsKeepTheirBitsInEveryBatch) {
  if (GetParam()->rank == 0) GTEST_SKIP() << "the reference computes every element by itself";
  const int64_t total = !GetParam()->can.batch_invariant ? 4 : 50, n = 70;  // which have one kernel for every format
  for (DType type : share(block_types(device.ctx.ops))) {
    const int64_t k = 3 * 256 + (type->block_size < 256 ? type->block_size : 0);
    std::vector<std::byte> data = random_blocks(type, n, k, random);
    const Packed weight = packed(device.ctx, Tensor(data.data(), type, {n, k}));
    Owned x(&kFloat32, {total, k}), alone(&kFloat32, {total, n}), out(&kFloat32, {total, n});
    x.fill(random);
    for (int64_t r = 0; r < total; ++r) {
      matmul(device.ctx, {.out = alone->slice_rows(r, 1), .x = x->slice_rows(r, 1), .weight = &weight});
    }
    for (const int64_t batch : {int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{7}, total}) {
      for (int64_t r = 0; r < total; r += batch) {
        const int64_t rows = std::min(batch, total - r);
        matmul(device.ctx, {.out = out->slice_rows(r, rows), .x = x->slice_rows(r, rows), .weight = &weight});
      }
      ASSERT_TRUE(same_bits(out->f32(), alone->f32(), total * n)) << type->name << " batch " << batch;
    }
  }
}

TEST_P(MatmulBlocksTest, PacksWhatFormatsWrite) {
  Owned matrix(&kBFloat16, {21, 512});
  matrix.fill(random);
  for (DType type : share(block_types(device.ctx.ops))) {
    if (type->encode == nullptr) continue;
    std::vector<float> values(21 * 512);
    to_float(&kBFloat16, matrix->data, values.data(), values.size());
    std::vector<std::byte> blocks(values.size() / type->block_size * type->block_bytes);
    for (int r = 0; r < 21; ++r) {  // row by row: elements of one call may share a scale
      const size_t row_bytes = blocks.size() / 21;
      from_float(type, values.data() + r * 512, blocks.data() + r * row_bytes, 512);
    }
    const Packed direct = packed(device.ctx, Tensor(blocks.data(), type, {21, 512}));
    Packed converted;
    converted.dtype = type, converted.n = 21, converted.k = 512;
    converted.storage = Buffer(direct.storage.size(), test_memory());
    converted.data = converted.storage.data();
    device.ctx.ops.matmul.at(type).pack(device.ctx.queue, converted, 0, matrix);
    EXPECT_EQ(std::memcmp(direct.data, converted.data, direct.storage.size()), 0) << type->name;
  }
}

TEST_P(MatmulBlocksTest, EmbedsRows) {
  for (DType type : share(block_types(device.ctx.ops))) {
    const int64_t columns = 2 * type->block_size;
    std::vector<std::byte> data = random_blocks(type, 9, columns, random);
    const Buffer memory(data.size(), test_memory());
    std::memcpy(memory.data(), data.data(), data.size());
    const Tensor table(memory.data(), type, {9, columns});
    const std::vector<int32_t> ids{8, 0, 3, 3};
    Owned out(&kFloat32, {4, columns}, 2);
    embed(device.ctx, out, table, ids);
    std::vector<float> expected(9 * columns);
    to_float(type, data.data(), expected.data(), expected.size());
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(same_bits(out.row(i), expected.data() + ids[i] * columns, columns));
  }
}

SLUICE_FOR_EVERY_BACKEND(MatmulBlocksTest);

}  // namespace
}  // namespace sluice::ops::matmul_blocks_test
