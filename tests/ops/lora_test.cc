// Low-rank changes by adapters, of every backend against the reference.
#include <numeric>

#include "ops/lora_matmul.h"
#include "ops/testing.h"

namespace sluice::ops::lora_test {
namespace {

class LoraTest : public OpsTest {};

struct Case {
  int64_t rows, k;
  int rank, slots;
  std::vector<int64_t> parts;  // outputs of each
  bool gaps = false;           // between rows, so that no row but the first is aligned
};

const Case kCases[] = {
    {1, 1, 1, 1, {1}},
    {1, 64, 16, 2, {64}},
    {5, 67, 3, 4, {7, 1, 30}, true},
    {33, 300, 8, 3, {128, 16, 16}, true},
    {70, 129, 5, 7, {33, 200}, true},
    {9, 2048, 64, 2, {512}},
    // For tensor cores:
    {1, 4096, 16, 4, {64, 16, 16}},
    {16, 264, 16, 1, {8}},
    {33, 320, 8, 20, {128, 16, 16}},
    {40, 1000, 10, 64, {520}},
    {300, 72, 16, 3, {40, 328}},
    {517, 96, 6, 40, {96, 24}},
    {50, 512, 32, 2, {24, 8, 40}},
    {20, 9000, 16, 3, {64}},
    {64, 1536, 40, 60, {264, 8}},
    {270, 128, 32, 2, {96, 40}},
};

// The types of the matrices, of x and of out.
struct Types {
  DType weight, x, out;
};

void run(Ctx& ctx, const LoraWeight& weight, const Tensor& out, const Tensor& x, const Tensor& inner,
         const Indices& slots) {
  lora_shrink(ctx, {.inner = inner, .x = x, .slots = slots, .weight = &weight});
  lora_expand(ctx, {.out = out, .inner = inner, .slots = slots, .weight = &weight});
}

void expect_like_the_reference(const Case& c, const Types& types, Checked& device, Checked& reference,
                               std::mt19937& random) {
  SCOPED_TRACE(fmt::format("{} x {}, rank {}, {} parts, {} {} {}", c.rows, c.k, c.rank, c.parts.size(),
                           types.weight->name, types.x->name, types.out->name));
  LoraWeight weight{.k = c.k, .slots = c.slots, .rank = c.rank, .parts = static_cast<int>(c.parts.size())};
  for (size_t i = 0; i < c.parts.size(); ++i) weight.part_ends[i] = weight.n += c.parts[i];
  Owned a(types.weight, {c.slots * weight.inner(), c.k}), b(types.weight, {c.slots * weight.n, c.rank});
  Owned scales(&kFloat32, {c.slots, weight.parts});
  a.fill(random), b.fill(random), scales.fill(random);
  weight.type = types.weight, weight.a = a->data, weight.b = b->data, weight.scales = scales->f32();
  Owned x(types.x, {c.rows, c.k}, c.gaps ? 3 : 0),
      inner(&kFloat32, {LoraWeight::inner_rows(c.rows), weight.inner()}, c.gaps ? 1 : 0);
  Owned out(types.out, {c.rows, weight.n}, c.gaps ? 5 : 0);
  x.fill(random), out.fill(random);
  const Owned before(out);
  Owned expected(out);
  std::vector<int32_t, TestAllocator<int32_t>> slots;
  // Neighbours often have the same adapter, as the tokens of a prompt do.
  for (int64_t row = 0; row < c.rows; ++row) {
    const bool same = row > 0 && random() % 4 != 0;
    slots.push_back(same ? slots.back() : static_cast<int32_t>(random() % (c.slots + 1)) - 1);
  }
  const Indices indices(std::span(slots.data(), slots.size()));
  run(device.ctx, weight, out, x, inner, indices);
  run(reference.ctx, weight, expected, x, inner, indices);
  const auto numbers = [&](const Owned& tensor) {
    std::vector<float> values;
    for (int64_t row = 0; row < c.rows; ++row) {
      std::vector<float> one(static_cast<size_t>(weight.n));
      to_float(types.out, tensor->slice_rows(row, 1).data, one.data(), one.size());
      values.insert(values.end(), one.begin(), one.end());
    }
    return values;
  };
  const std::vector<float> actual = numbers(out), wanted = numbers(expected), old = numbers(before);
  const float step = types.out == &kBFloat16 ? 8e-3f : types.weight == &kBFloat16 ? 1e-4f : 1e-5f;
  // Sums are as large as their terms together, which are of inner values.
  const float typical = std::sqrt(static_cast<float>(c.k * c.rank));
  for (size_t i = 0; i < actual.size(); ++i) {
    if (slots[i / static_cast<size_t>(weight.n)] < 0) {
      ASSERT_EQ(actual[i], old[i]) << i;
    } else {
      ASSERT_NEAR(actual[i], wanted[i], step * (std::abs(wanted[i]) + typical)) << i;
    }
  }
}

TEST_P(LoraTest, MatchesTheReference) {
  for (const Case& c : kCases) {
    for (DType type : {&kFloat32, &kBFloat16}) {
      expect_like_the_reference(c, {type, &kFloat32, &kFloat32}, device, reference, random);
    }
  }
}

// Only backends whose matmuls take or return bf16 rows get them.
TEST_P(LoraTest, RowsOfBf16) {
  if (!std::string_view(GetParam()->name).starts_with("cuda")) GTEST_SKIP() << "matmuls of this backend have fp32 rows";
  for (const Case& c : kCases) {
    for (DType type : {&kFloat32, &kBFloat16}) {
      expect_like_the_reference(c, {type, &kBFloat16, &kFloat32}, device, reference, random);
      expect_like_the_reference(c, {type, &kBFloat16, &kBFloat16}, device, reference, random);
    }
  }
}

// A row's bits depend on that row and its adapter alone.
TEST_P(LoraTest, RowsAreIndependent) {
  constexpr int64_t kRows = 12, kColumns = 200;
  for (DType type : {&kFloat32, &kBFloat16}) {
    LoraWeight weight{.n = 96, .k = kColumns, .slots = 3, .rank = 8, .parts = 2, .part_ends = {40, 96}, .type = type};
    Owned a(type, {3 * weight.inner(), kColumns}), b(type, {3 * weight.n, 8}), scales(&kFloat32, {3, 2});
    a.fill(random), b.fill(random), scales.fill(random);
    weight.a = a->data, weight.b = b->data, weight.scales = scales->f32();
    Owned x(&kFloat32, {kRows, kColumns}), inner(&kFloat32, {LoraWeight::inner_rows(kRows), weight.inner()}),
        out(&kFloat32, {kRows, weight.n});
    x.fill(random), out.fill(random);
    Owned single(out);
    std::vector<int32_t, TestAllocator<int32_t>> slots;
    for (int64_t row = 0; row < kRows; ++row) slots.push_back(static_cast<int32_t>(row % 4) - 1);
    const Indices all(std::span(slots.data(), slots.size()));
    run(device.ctx, weight, out, x, inner, all);
    for (int64_t row = 0; row < kRows; ++row) {
      run(device.ctx, weight, single->slice_rows(row, 1), x->slice_rows(row, 1),
          inner->slice_rows(0, LoraWeight::inner_rows(1)), all.part(static_cast<size_t>(row), 1));
      EXPECT_TRUE(same_bits(out.row(row), single.row(row), weight.n)) << row;
    }
  }
}

using Slots = std::vector<int32_t, TestAllocator<int32_t>>;

Slots random_slots(std::mt19937& random, int64_t rows, int count) {
  Slots slots;
  for (int64_t row = 0; row < rows; ++row) slots.push_back(static_cast<int32_t>(random() % (count + 1)) - 1);
  return slots;
}

// On the device as well.
Indices indices_of(const Slots& slots) { return {std::span(slots.data(), slots.size()), slots.data()}; }

std::vector<int32_t> numbers_of(const Tensor& list) {
  return {list.as<int32_t>(), list.as<int32_t>() + list.shape.elements()};
}

// A matrix of bf16 and its adapters.
struct Adapted {
  LoraWeight lora;
  Owned matrix, a, b, scales;

  Adapted(const Case& c, std::mt19937& random)
      : lora{.k = c.k, .slots = c.slots, .rank = c.rank, .parts = static_cast<int>(c.parts.size()), .type = &kBFloat16},
        matrix(&kBFloat16, {std::accumulate(c.parts.begin(), c.parts.end(), int64_t{0}), c.k}),
        a(&kBFloat16, {c.slots * lora.inner(), c.k}),
        b(&kBFloat16, {c.slots * matrix->rows(), c.rank}),
        scales(&kFloat32, {c.slots, lora.parts}) {
    for (size_t i = 0; i < c.parts.size(); ++i) lora.part_ends[i] = lora.n += c.parts[i];
    matrix.fill(random), a.fill(random, 0.2f), b.fill(random), scales.fill(random);
    scales->f32()[0] = 0;  // inner values that are zero, as those of an adapter with a lower rank
    lora.a = a->data, lora.b = b->data, lora.scales = scales->f32();
  }
};

struct Packed : Weight {
  Buffer storage;

  Packed(Ctx& ctx, const Tensor& matrix) : Weight{.dtype = matrix.dtype, .n = matrix.rows(), .k = matrix.shape[1]} {
    const MatmulKernels& kernels = ctx.ops.matmul.at(dtype);
    storage = Buffer(kernels.packed_bytes(n, k), test_memory());
    data = storage.data();
    kernels.pack(ctx.queue, *this, 0, matrix);
  }
};

Owned converted(DType type, const Owned& from) {
  Owned to(type, from->shape);
  std::vector<float> values(static_cast<size_t>(from->shape.elements()));
  to_float(from->dtype, from->data, values.data(), values.size());
  from_float(type, values.data(), to->data, values.size());
  return to;
}

// Calls a matmul that adapters change, and captures two of them in a graph that runs with several sets of adapters.
void expect_matmuls_like_the_reference(const Case& c, const Adapted& adapted, bool wants_bf16, Checked& device,
                                       Checked& reference, bool captures, std::mt19937& random) {
  const Packed weight(device.ctx, adapted.matrix), plain(reference.ctx, adapted.matrix);
  const DType type = wants_bf16 ? output_type(device.ctx, weight, c.rows) : &kFloat32;
  if (wants_bf16 && type == &kFloat32) return;
  SCOPED_TRACE(fmt::format("{} x {}, rank {}, {} parts, {}", c.rows, c.k, c.rank, c.parts.size(), type->name));
  const Owned inputs = converted(&kFloat32, Owned(&kBFloat16, {c.rows, c.k}).fill(random));
  const Owned x = converted(input_type(device.ctx, weight, c.rows), inputs);
  Owned before(type, {c.rows, adapted.lora.n}), out(before), again(before);
  before.fill(random);
  Owned inner(&kFloat32, {LoraWeight::inner_rows(c.rows), adapted.lora.inner()}),
      unchanged = converted(&kFloat32, before);
  matmul(reference.ctx, {.out = unchanged, .x = inputs, .weight = &plain, .accumulate = !wants_bf16});
  Slots slots = random_slots(random, c.rows, c.slots);
  const auto call = [&](const Tensor& to) {
    matmul(device.ctx, {.out = to, .x = x, .weight = &weight, .accumulate = !wants_bf16},
           {.inner = inner, .x = x, .slots = indices_of(slots), .weight = &adapted.lora});
  };
  const auto reset = [&] {
    for (Owned* results : {&out, &again}) std::memcpy((*results)->data, before->data, before.bytes());
  };
  const auto expect_results = [&](std::initializer_list<const Owned*> all) {
    Owned expected(unchanged);
    run(reference.ctx, adapted.lora, expected, inputs, inner, indices_of(slots));
    for (const Owned* results : all) expect_close(converted(&kFloat32, *results), expected, wants_bf16 ? 8e-3f : 4e-3f);
  };
  reset();
  call(out);
  expect_results({&out});
  if (!captures) return;
  const auto graph = device.ctx.queue.capture([&] { call(out), call(again); });
  for (const int most : {c.slots, 1, 0}) {
    std::ranges::copy(random_slots(random, c.rows, most), slots.begin());
    reset();
    graph->launch();
    device.ctx.queue.wait();
    expect_results({&out, &again});
  }
}

TEST_P(LoraTest, OfMatmuls) {
  std::vector<Case> cases{{32, 64, 16, 1, {128}},       {32, 192, 8, 3, {128, 256}},  {32, 1088, 40, 40, {384}},
                          {32, 448, 64, 5, {128, 128}}, {32, 576, 24, 32, {128, 16}}, {7, 100, 16, 2, {40}}};
  if (GetParam()->name == "cuda") {
    // Fewer rows have kernels of their own for large matrices only.
    const std::initializer_list<Case> large{{32, 4096, 16, 8, {512, 128, 128}},
                                            {32, 8192, 16, 32, {256}},
                                            {17, 4160, 16, 32, {4096, 128}},
                                            {9, 2048, 16, 4, {8192, 512, 512}},
                                            {5, 14336, 24, 2, {1280}}};
    cases.insert(cases.end(), large);
  }
  for (const Case& c : cases) {
    const Adapted adapted(c, random);
    for (const bool bf16 : {false, true}) {
      expect_matmuls_like_the_reference(c, adapted, bf16, device, reference, GetParam()->can.captures, random);
    }
  }
}

TEST_P(LoraTest, SlotsOfHeads) {
  const Slots slots{2, -1, 0};
  Owned out(&kInt32, {12});
  matrix_slots(device.ctx, {.out = out, .slots = indices_of(slots), .matrices = 4});
  EXPECT_THAT(numbers_of(out), ::testing::ElementsAre(8, 9, 10, 11, -1, -1, -1, -1, 0, 1, 2, 3));
  matrix_slots(device.ctx, {.out = out, .slots = indices_of(slots), .matrices = 4, .shared = true});
  EXPECT_THAT(numbers_of(out), ::testing::ElementsAre(2, 2, 2, 2, -1, -1, -1, -1, 0, 0, 0, 0));
}

// Experts with their own matrices, of which this process has some: every place gets what its expert has for its row.
TEST_P(LoraTest, OfExperts) {
  for (const auto& [rows, experts, top_k] : {std::array{1, 4, 2}, {7, 5, 3}, {40, 16, 4}, {300, 130, 8}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts", rows, top_k, experts));
    const int64_t places = int64_t{rows} * top_k, first = experts / 4, held = experts - first - experts / 3, k = 72;
    Owned logits(&kFloat32, {rows, experts}), weights(&kFloat32, {rows, top_k}), chosen(&kInt32, {rows, top_k});
    Owned entries(&kInt32, {places}), of_rows(&kInt32, {places}), at(&kInt32, {places}), starts(&kInt32, {experts + 1});
    logits.fill(random);
    route(device.ctx, {.experts = chosen, .weights = weights, .logits = logits, .routing = {.top_k = top_k}});
    group_by_expert(device.ctx,
                    {.experts = chosen, .entries = entries, .rows = of_rows, .places = at, .starts = starts});
    Slots slots;
    for (int row = 0; row < rows; ++row) slots.push_back(static_cast<int32_t>(random() % 4) - 1);
    Owned computed(&kInt32, {places}), by_reference(&kInt32, {places});
    const MatrixSlotsArgs args{.out = computed,
                               .slots = indices_of(slots),
                               .matrices = held,
                               .rows = of_rows,
                               .starts = starts->slice_rows(first, held + 1)};
    MatrixSlotsArgs again = args;
    again.out = by_reference;
    matrix_slots(device.ctx, args);
    matrix_slots(reference.ctx, again);
    Slots wanted(static_cast<size_t>(places), -1);
    for (int64_t place = 0; place < places; ++place) {
      const int64_t expert = chosen->as<int32_t>()[entries->as<int32_t>()[place]] - first;
      const int32_t slot = slots[static_cast<size_t>(of_rows->as<int32_t>()[place])];
      if (slot >= 0 && expert >= 0 && expert < held) {
        wanted[static_cast<size_t>(place)] = static_cast<int32_t>(slot * held + expert);
      }
    }
    ASSERT_THAT(numbers_of(computed), ::testing::ElementsAreArray(wanted));
    ASSERT_THAT(numbers_of(by_reference), ::testing::ElementsAreArray(wanted));
    LoraWeight weight{.n = 48, .k = k, .slots = static_cast<int>(3 * held), .rank = 4, .parts = 2};
    weight.part_ends[0] = 16, weight.part_ends[1] = 48, weight.type = &kBFloat16;
    Owned a(weight.type, {weight.slots * weight.inner(), k}), b(weight.type, {weight.slots * weight.n, 4});
    Owned scales(&kFloat32, {weight.slots, 2}), x(&kFloat32, {places, k}), out(&kFloat32, {places, weight.n});
    a.fill(random), b.fill(random), scales.fill(random), x.fill(random), out.fill(random);
    weight.a = a->data, weight.b = b->data, weight.scales = scales->f32();
    Owned inner(&kFloat32, {LoraWeight::inner_rows(places), weight.inner()}), expected(out);
    const auto* written = computed->as<const int32_t>();
    const Indices of_places({written, static_cast<size_t>(places)}, written);
    lora_shrink(device.ctx, {.inner = inner, .x = x, .slots = of_places, .weight = &weight, .computed = true});
    lora_expand(device.ctx, {.out = out, .inner = inner, .slots = of_places, .weight = &weight, .computed = true});
    run(reference.ctx, weight, expected, x, inner, indices_of(wanted));
    for (int64_t place = 0; place < places; ++place) {
      for (int64_t i = 0; i < weight.n; ++i) {
        ASSERT_NEAR(out.row(place)[i], expected.row(place)[i], 1e-4f * (std::abs(expected.row(place)[i]) + 17));
      }
    }
  }
}

SLUICE_FOR_EVERY_KERNEL(LoraTest, &OpTable::lora_shrink, &OpTable::lora_expand, &OpTable::matrix_slots);

}  // namespace
}  // namespace sluice::ops::lora_test
