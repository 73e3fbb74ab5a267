// Gated units of experts as results of the matmul (ops/gated_matmul.h), and the matmul that reads them. Compares with
// the reference, and checks that shapes that no kernel takes leave the results alone.
#include <numeric>

#include "ops/gated_matmul.h"
#include "ops/stacked.h"
#include "ops/testing.h"

namespace sluice::ops::gated_experts_test {
namespace {

struct Case {
  std::vector<int> counts;  // rows of each expert
  int64_t inner, k, next_n;
  int before = 0, behind = 0;  // rows of the experts of other ranks
  bool takes = true;           // whether a kernel that takes any case takes this one
  Activation activation = Activation::kSilu;
};

// Many experts with few rows, most of them without any, and a few with many.
std::vector<int> uneven(int experts) {
  std::vector<int> counts(static_cast<size_t>(experts), 0);
  for (size_t e = 0; e < counts.size(); e += 3) counts[e] = static_cast<int>(e * 7 % 80);
  counts[1] = 257, counts[experts - 1] = 1;
  return counts;
}

std::vector<Case> cases() {
  return {
      // Tiles of 256 rows: whole ones, parts of them, and none.
      {.counts = {0, 1, 300, 0, 512, 255, 257, 0}, .inner = 64, .k = 64, .next_n = 64},
      {.counts = {129, 1024, 0, 193}, .inner = 192, .k = 320, .next_n = 36, .before = 5, .behind = 70},
      // Tiles of 128 rows.
      {.counts = {63, 64, 65, 0, 127, 128, 129, 1, 0, 90, 33, 31, 95, 96, 97, 7},
       .inner = 128,
       .k = 192,
       .next_n = 100},
      {.counts = uneven(128), .inner = 64, .k = 128, .next_n = 72, .before = 3},
      // What the next matmul would not read: rows with padding, results that are not whole quads.
      {.counts = {600, 500}, .inner = 200, .k = 64, .next_n = 64, .takes = false},
      {.counts = {600, 500}, .inner = 20, .k = 64, .next_n = 64, .takes = false},
      {.counts = {600, 500}, .inner = 64, .k = 64, .next_n = 33, .takes = false},
      // Few rows, in all or of an expert.
      {.counts = {100, 0, 200}, .inner = 64, .k = 64, .next_n = 64, .takes = false},
      {.counts = std::vector<int>(200, 6), .inner = 64, .k = 64, .next_n = 64, .takes = false},
      {.counts = {600, 500}, .inner = 64, .k = 64, .next_n = 64, .takes = false, .activation = Activation::kGeluTanh},
  };
}

class GatedExpertsTest : public OpsTest {
 protected:
  std::vector<Owned> matrices(DType type, size_t count, int64_t n, int64_t k) {
    std::vector<Owned> all;
    for (size_t i = 0; i < count; ++i) all.emplace_back(type, Shape{n, k}).fill(random, 1 / std::sqrt(float(k)));
    return all;
  }
};

// The places of a batch. Their inputs are rows of x that `numbers` names, or the rows of `mine` in order.
struct Batch {
  std::vector<Owned> in, out;  // matrices of experts
  Owned x, mine, numbers, starts, in_bias, out_bias;
  bool gathers, bias;
  Activation activation;
  int64_t places;
};

struct Results {
  Owned units, out;  // units are fp32 here
  bool taken = false;
};

// `most`: the error of a row, relative to the row.
void expect_rows_close(const Owned& got, const Owned& wanted, int64_t begin, int64_t end, double most) {
  for (int64_t r = begin; r < end; ++r) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < wanted->shape[1]; ++i) {
      error += std::pow(double{got.row(r)[i]} - wanted.row(r)[i], 2), size += std::pow(wanted.row(r)[i], 2);
    }
    ASSERT_LT(std::sqrt(error / size), most) << "row " << r;
  }
}

// What an expert layer does (nn/moe/moe.cc).
void run(Checked& d, DType stored, const Batch& b, Results& to) {
  const Packed in = stacked(d.ctx, stored, b.in), out = stacked(d.ctx, stored, b.out);
  const bool gathers = b.gathers && d.ctx.ops.gathers_rows;
  const int64_t inner = to.units->shape[1];
  const GatedExperts sizes{
      .experts = std::ssize(b.in), .places = b.places, .units = inner, .k = b.x->shape[1], .next_n = to.out->shape[1]};
  Owned rounded(stored, {b.places, inner});
  std::memset(rounded->data, 0x77, rounded.bytes());
  const Owned poison(rounded);
  ExpertMatmulArgs args{.out = rounded,
                        .x = gathers ? *b.x : *b.mine,
                        .rows = gathers ? *b.numbers : Tensor(),
                        .starts = b.starts,
                        .weight = &in,
                        .bias = b.bias ? b.in_bias->f32() : nullptr};
  to.taken = gated_experts(d.ctx, args, b.activation, to.out->shape[1]);
  EXPECT_EQ(takes_gated_experts(d.ctx, stored, sizes, b.activation), to.taken);
  Tensor units = rounded;
  d.ctx.queue.wait();
  if (to.taken) {
    const int32_t *starts = b.starts->as<int32_t>(), end = starts[b.in.size()];
    const size_t row = static_cast<size_t>(inner) * 2;
    EXPECT_EQ(std::memcmp(rounded->data, poison->data, row * starts[0]), 0) << "rows before the first";
    EXPECT_EQ(std::memcmp(rounded->data + row * end, poison->data + row * end, row * (b.places - end)), 0) << "behind";
    to_float(stored, rounded->data, to.units->f32(), static_cast<size_t>(b.places * inner));
    // Rows of x that were rounded before give the same units.
    const Owned &x = gathers ? b.x : b.mine, rounded_x(stored, x->shape, 8), same(poison);
    for (int64_t r = 0; r < x->rows(); ++r) {
      std::byte* row = rounded_x->data + r * rounded_x->row_stride * 2;
      from_float(stored, x.row(r), row, static_cast<size_t>(sizes.k));
    }
    args.x = rounded_x, args.out = same;
    EXPECT_TRUE(gated_experts(d.ctx, args, b.activation, sizes.next_n));
    d.ctx.queue.wait();
    EXPECT_EQ(std::memcmp(same->data, rounded->data, rounded.bytes()), 0);
  } else {
    EXPECT_EQ(std::memcmp(rounded->data, poison->data, rounded.bytes()), 0);
    Owned gate_up(&kFloat32, {b.places, 2 * inner});
    args.out = gate_up;
    expert_matmul(d.ctx, args);
    glu(d.ctx, to.units, gate_up, b.activation);
    d.ctx.queue.wait();
    units = to.units;
  }
  const auto multiply = [&](const Tensor& x, const Owned& result) {
    expert_matmul(
        d.ctx,
        {.out = result, .x = x, .starts = b.starts, .weight = &out, .bias = b.bias ? b.out_bias->f32() : nullptr});
    d.ctx.queue.wait();
  };
  multiply(units, to.out);
  if (!to.taken) return;
  // The same units in fp32 are rounded to the same numbers.
  const Owned again(to.out);
  multiply(to.units, again);
  EXPECT_TRUE(same_bits(again->f32(), to.out->f32(), again->shape.elements()));
  // bf16 results are these, rounded.
  if (stored != &kBFloat16) return;
  const int64_t first = b.starts->as<int32_t>()[0], end = b.starts->as<int32_t>()[b.in.size()];
  const Owned rounded_out(stored, {b.places, to.out->shape[1]}), all(to.out);
  multiply(units, rounded_out);
  to_float(stored, rounded_out->data, all->f32(), static_cast<size_t>(all->shape.elements()));
  expect_rows_close(all, to.out, first, end, 4e-3);
}

TEST_P(GatedExpertsTest, EqualMatmulAndGates) {
  if (GetParam()->name == "reference") GTEST_SKIP() << "would be compared with itself";
  int turn = 0, taken = 0, expected = 0;
  for (DType stored : {&kBFloat16, &kFloat16}) {
    for (const Case& c : cases()) {
      for (bool bias : {false, true}) {
        const auto experts = static_cast<int64_t>(c.counts.size());
        SCOPED_TRACE(fmt::format("{}: {} experts [2 x {}, {}], then {}, {}", stored->name, experts, c.inner, c.k,
                                 c.next_n, bias ? "biases" : "no bias"));
        constexpr int64_t kGiven = 150;
        const int64_t rows = std::accumulate(c.counts.begin(), c.counts.end(), int64_t{0});
        const int64_t places = c.before + rows + c.behind;
        Batch b{.in = matrices(stored, c.counts.size(), 2 * c.inner, c.k),
                .out = matrices(stored, c.counts.size(), c.next_n, c.inner),
                .x = Owned(&kFloat32, {kGiven, c.k}, ++turn % 2 == 0 ? 0 : 3),
                .mine = Owned(&kFloat32, {places, c.k}),
                .numbers = Owned(&kInt32, {places}),
                .starts = Owned(&kInt32, {experts + 1}),
                .in_bias = Owned(&kFloat32, {experts, 2 * c.inner}),
                .out_bias = Owned(&kFloat32, {experts, c.next_n}),
                .gathers = turn / 2 % 2 == 0,
                .bias = bias,
                .activation = c.activation,
                .places = places};
        b.x.fill(random), b.in_bias.fill(random), b.out_bias.fill(random);
        auto *start = b.starts->as<int32_t>(), *number = b.numbers->as<int32_t>();
        start[0] = c.before;
        std::partial_sum(c.counts.begin(), c.counts.end(), start + 1);
        for (int64_t e = 1; e <= experts; ++e) start[e] += c.before;
        for (int64_t i = 0; i < places; ++i) {
          number[i] = static_cast<int32_t>(random() % kGiven);
          std::copy_n(b.x.row(number[i]), c.k, b.mine.row(i));
        }
        const Results blank{.units = Owned(&kFloat32, {places, c.inner}), .out = Owned(&kFloat32, {places, c.next_n})};
        std::fill_n(blank.units->f32(), places * c.inner, 0.0f), std::fill_n(blank.out->f32(), places * c.next_n, 0.0f);
        Results got(blank), wanted(blank);
        run(device, stored, b, got), run(reference, stored, b, wanted);
        EXPECT_FALSE(wanted.taken);
        EXPECT_FALSE(got.taken && !c.takes);
        taken += got.taken ? 1 : 0, expected += c.takes ? 1 : 0;
        // Inputs and units are rounded to the type of the weights, or to int8 on a CPU.
        const double most = stored == &kBFloat16 || !on_tensor_cores() ? 2e-2 : 2e-3;
        expect_rows_close(got.units, wanted.units, start[0], start[experts], most);
        expect_rows_close(got.out, wanted.out, start[0], start[experts], most);
      }
    }
  }
  EXPECT_TRUE(taken == 0 || taken == expected) << taken << " of " << expected << " cases were taken";
}

TEST_P(GatedExpertsTest, NanStaysInItsRow) {
  const std::vector<Owned> all = matrices(&kBFloat16, 3, 128, 64);
  Owned x(&kFloat32, {1200, 64}), starts(&kInt32, {4});
  x.fill(random);
  std::copy_n(std::array{0, 500, 501, 1200}.begin(), 4, starts->as<int32_t>());
  const Packed weight = stacked(device.ctx, &kBFloat16, all);
  const auto units = [&](const Owned& out) {
    const bool taken =
        gated_experts(device.ctx, {.out = out, .x = x, .starts = starts, .weight = &weight}, Activation::kSilu, 64);
    device.ctx.queue.wait();
    return taken;
  };
  Owned clean(&kBFloat16, {1200, 64}), out(clean);
  if (!units(clean)) GTEST_SKIP() << "no kernel writes such units";
  for (int64_t bad : {0, 255, 499, 500, 501, 1199}) {
    x.row(bad)[63] = std::nanf("");
    ASSERT_TRUE(units(out));
    for (int64_t r = 0; r < 1200; ++r) {
      const auto* bits = out->as<uint16_t>() + r * 64;
      if (r != bad) {
        ASSERT_EQ(std::memcmp(bits, clean->as<uint16_t>() + r * 64, 128), 0) << "row " << r << ", not " << bad;
      } else {
        for (int i = 0; i < 64; ++i) ASSERT_GT(bits[i] & 0x7fff, 0x7f80) << "unit " << i;
      }
    }
    x.row(bad)[63] = 0.5f;
    ASSERT_TRUE(units(clean));
  }
}

SLUICE_FOR_EVERY_KERNEL(GatedExpertsTest, &OpTable::expert_matmul);

}  // namespace
}  // namespace sluice::ops::gated_experts_test
