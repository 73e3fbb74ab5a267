// Low-rank changes by adapters, of every backend against the reference.
#include "ops/testing.h"

namespace sluice::ops {
namespace {

class LoraTest : public OpsTest {};

struct Case {
  int64_t rows, k;
  int rank, slots;
  std::vector<int64_t> parts;  // outputs of each
};

TEST_P(LoraTest, MatchesTheReference) {
  const Case cases[] = {{1, 1, 1, 1, {1}},          {1, 64, 16, 2, {64}},
                        {5, 67, 3, 4, {7, 1, 30}},  {33, 300, 8, 3, {128, 16, 16}},
                        {70, 129, 5, 7, {33, 200}}, {9, 2048, 64, 2, {512}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} x {}, rank {}, {} parts", c.rows, c.k, c.rank, c.parts.size()));
    LoraWeight weight{.k = c.k, .slots = c.slots, .rank = c.rank, .parts = static_cast<int>(c.parts.size())};
    for (size_t i = 0; i < c.parts.size(); ++i) weight.part_ends[i] = weight.n += c.parts[i];
    Owned a(&kFloat32, {c.slots * weight.inner(), c.k}), b(&kFloat32, {c.slots * weight.n, c.rank});
    Owned scales(&kFloat32, {c.slots, weight.parts});
    a.fill(random), b.fill(random), scales.fill(random);
    weight.a = a->f32(), weight.b = b->f32(), weight.scales = scales->f32();
    Owned x(&kFloat32, {c.rows, c.k}, 3), inner(&kFloat32, {c.rows, weight.inner()}, 1);
    Owned out(&kFloat32, {c.rows, weight.n}, 5);
    x.fill(random), out.fill(random);
    const Owned before(out);
    Owned expected(out);
    std::vector<int32_t, TestAllocator<int32_t>> slots;
    for (int64_t row = 0; row < c.rows; ++row) slots.push_back(static_cast<int32_t>(random() % (c.slots + 1)) - 1);
    const Indices indices(std::span(slots.data(), slots.size()));
    lora(device.ctx, {.out = out, .x = x, .inner = inner, .slots = indices, .weight = &weight});
    lora(reference.ctx, {.out = expected, .x = x, .inner = inner, .slots = indices, .weight = &weight});
    expect_close(out, expected, 1e-5f);
    for (int64_t row = 0; row < c.rows; ++row) {
      if (slots[static_cast<size_t>(row)] >= 0) continue;
      EXPECT_TRUE(same_bits(out.row(row), before.row(row), weight.n)) << row;
    }
  }
}

// A row's bits depend on that row and its adapter alone.
TEST_P(LoraTest, RowsAreIndependent) {
  constexpr int64_t kRows = 12, kColumns = 200;
  LoraWeight weight{.n = 96, .k = kColumns, .slots = 3, .rank = 8, .parts = 2, .part_ends = {40, 96}};
  Owned a(&kFloat32, {3 * weight.inner(), kColumns}), b(&kFloat32, {3 * weight.n, 8}), scales(&kFloat32, {3, 2});
  a.fill(random), b.fill(random), scales.fill(random);
  weight.a = a->f32(), weight.b = b->f32(), weight.scales = scales->f32();
  Owned x(&kFloat32, {kRows, kColumns}), inner(&kFloat32, {kRows, weight.inner()}), out(&kFloat32, {kRows, weight.n});
  x.fill(random), out.fill(random);
  Owned single(out);
  std::vector<int32_t, TestAllocator<int32_t>> slots;
  for (int64_t row = 0; row < kRows; ++row) slots.push_back(static_cast<int32_t>(row % 4) - 1);
  const Indices all(std::span(slots.data(), slots.size()));
  lora(device.ctx, {.out = out, .x = x, .inner = inner, .slots = all, .weight = &weight});
  for (int64_t row = 0; row < kRows; ++row) {
    lora(device.ctx, {.out = single->slice_rows(row, 1),
                      .x = x->slice_rows(row, 1),
                      .inner = inner->slice_rows(row, 1),
                      .slots = all.part(static_cast<size_t>(row), 1),
                      .weight = &weight});
    EXPECT_TRUE(same_bits(out.row(row), single.row(row), weight.n)) << row;
  }
}

SLUICE_FOR_EVERY_BACKEND(LoraTest);

}  // namespace
}  // namespace sluice::ops
