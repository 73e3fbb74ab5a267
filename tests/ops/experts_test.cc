// Ops on experts and heads. Compares routing with a plain implementation of its rules, and matmuls and sums of every
// backend with the reference. Checks that results are bit-identical under other batches and numbers of threads.
#include <numeric>

#include "ops/stacked.h"
#include "ops/testing.h"
#include "quant/groups.h"

namespace sluice::ops::experts_test {
namespace {

class ExpertsTest : public OpsTest {
 protected:
  std::vector<Owned> matrices(DType type, int count, int64_t n, int64_t k) {
    std::vector<Owned> all;
    for (int i = 0; i < count; ++i) all.emplace_back(type, Shape{n, k}).fill(random);
    return all;
  }

  // The types that the backend has matmuls for and that random numbers can be converted to.
  std::vector<DType> weight_types() const {
    std::vector<DType> types;
    for (DType type : Registry<TypeInfo>::all()) {
      const bool encodes = type->block_size == 1 || type->encode != nullptr;
      if (device.ctx.ops.matmul.contains(type) && encodes) types.push_back(type);
    }
    return types;
  }

  // Inputs are rounded to bf16, or to int8 on a CPU, and weights to bf16.
  void expect_rows_close(const Owned& out, const Owned& expected, DType stored) const {
    const bool plain = stored == &kFloat32 || stored == &kFloat16;
    const int64_t int8_block = device.ctx.ops.matmul.at(stored).int8_block;
    const double most = int8_block != 0                              ? 0.02
                        : !plain && stored == &kBFloat16             ? 5e-3
                        : !GetParam()->can.batch_invariant && !plain ? 1e-2
                        : on_tensor_cores()                          ? 1e-3
                                                                     : 1e-5;
    for (int64_t r = 0; r < out->rows(); ++r) {
      double error = 0, size = 0;
      for (int64_t i = 0; i < out->shape[1]; ++i) {
        error += std::pow(double{out.row(r)[i]} - expected.row(r)[i], 2), size += std::pow(expected.row(r)[i], 2);
      }
      ASSERT_LT(std::sqrt(error / size), most) << "row " << r;
    }
  }
};

// As experts move between ranks. The matrix ends within a panel, and two tensors meet within one.
TEST_P(ExpertsTest, AnotherMatrixTakesThePlaceOfOne) {
  constexpr int64_t kOutputs = 24, kInputs = 512, kFirst = 13;
  for (DType type : weight_types()) {
    SCOPED_TRACE(type->name);
    const MatmulKernels& kernels = device.ctx.ops.matmul.at(type);
    const std::vector<Owned> all = matrices(&kFloat32, 3, kOutputs, kInputs);
    const Packed got = stacked(device.ctx, type, {all[0], all[1]});
    const int64_t row = stacked_outputs(kOutputs);
    if (kernels.clear != nullptr) kernels.clear(device.ctx.queue, got, row, stacked_outputs(kOutputs));
    kernels.pack(device.ctx.queue, got, row, all[2]->slice_rows(0, kFirst));
    kernels.pack(device.ctx.queue, got, row + kFirst, all[2]->slice_rows(kFirst, kOutputs - kFirst));
    const Packed want = stacked(device.ctx, type, {all[0], all[2]});
    device.ctx.queue.wait();
    EXPECT_EQ(std::memcmp(got.data, want.data, kernels.packed_bytes(want.n, want.k)), 0);
  }
}

struct Routed {
  Owned experts, weights;
  Routed(Checked& device, const Tensor& logits, const Routing& routing, const float* correction = nullptr)
      : experts(&kInt32, {logits.rows(), routing.top_k}), weights(&kFloat32, {logits.rows(), routing.top_k}) {
    route(device.ctx,
          {.experts = experts, .weights = weights, .logits = logits, .correction = correction, .routing = routing});
  }
  int expert(int64_t row, int j) const { return experts->as<int32_t>()[row * experts->shape[1] + j]; }
};

TEST_P(ExpertsTest, SoftmaxTakesTheLargestAndNormalizes) {
  for (int experts : {2, 5, 64, 130}) {
    for (int top_k : {1, 2, std::min(experts, 8)}) {
      Owned logits(&kFloat32, {37, experts}, 3);
      logits.fill(random, 2.0f);
      const Routed plain(device, logits, {.top_k = top_k});
      const Routed normalized(device, logits, {.top_k = top_k, .normalize = true, .scale = 2.5f});
      for (int64_t row = 0; row < 37; ++row) {
        std::vector<int> order(experts);
        std::iota(order.begin(), order.end(), 0);
        const float* x = logits.row(row);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
        double all = 0, chosen = 0;
        for (int i = 0; i < experts; ++i) all += std::exp(double{x[i]});
        for (int j = 0; j < top_k; ++j) chosen += std::exp(double{x[order[j]]});
        order.resize(top_k);
        std::sort(order.begin(), order.end());
        for (int j = 0; j < top_k; ++j) {
          ASSERT_EQ(plain.expert(row, j), order[j]);
          EXPECT_NEAR(plain.weights.row(row)[j], std::exp(double{x[order[j]]}) / all, 1e-6);
          EXPECT_NEAR(normalized.weights.row(row)[j], 2.5 * std::exp(double{x[order[j]]}) / chosen, 4e-6);
        }
      }
    }
  }
}

// Corrections and groups affect which experts are selected. The weights remain the scores.
TEST_P(ExpertsTest, GroupsAndCorrections) {
  const int experts = 12;
  Floats logits(experts, -2.0f), correction(experts, 0.0f);
  logits[0] = 3.0f;              // group 0: one very good expert
  logits[4] = logits[5] = 1.5f;  // group 1: two good ones
  logits[8] = logits[9] = 1.0f;  // group 2
  correction[9] = -2.0f;
  const Tensor row(logits.data(), &kFloat32, {1, experts});
  const auto sigmoid = [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
  Routing routing{.top_k = 2, .score = Routing::Score::kSigmoid, .groups = 3, .top_groups = 1, .group_best = 2};
  const Routed by_two(device, row, routing, correction.data());
  EXPECT_EQ(by_two.expert(0, 0), 4);
  EXPECT_EQ(by_two.expert(0, 1), 5);
  EXPECT_NEAR(by_two.weights.row(0)[0], sigmoid(1.5f), 1e-6f);
  routing.group_best = 1;
  const Routed by_one(device, row, routing, correction.data());
  EXPECT_EQ(by_one.expert(0, 0), 0);
  EXPECT_EQ(by_one.expert(0, 1), 1);
  routing = {.top_k = 4, .score = Routing::Score::kSigmoid};
  const Routed corrected(device, row, routing, correction.data());
  EXPECT_EQ(corrected.expert(0, 3), 8);
  // Corrections below zero keep experts of other groups out, too.
  std::fill(correction.begin(), correction.end(), -3.0f);
  const Routed below_zero(device, row, {.top_k = 2, .score = Routing::Score::kSigmoid, .groups = 3, .group_best = 2},
                          correction.data());
  EXPECT_EQ(below_zero.expert(0, 0), 4);
  EXPECT_EQ(below_zero.expert(0, 1), 5);
}

TEST_P(ExpertsTest, SparseMixerSharesAmongTheClose) {
  Floats logits = {1.0f, 4.0f, 3.95f, 3.5f, -6.0f};
  const Tensor row(logits.data(), &kFloat32, {1, 5});
  const Routed routed(device, row, {.top_k = 2, .score = Routing::Score::kSparseMixer, .jitter = 0.01f});
  // Only 3.95 is within 2 % of 4. After 4 is removed, no other score is within 2 % of 3.95.
  EXPECT_EQ(routed.expert(0, 0), 1);
  EXPECT_EQ(routed.expert(0, 1), 2);
  EXPECT_NEAR(routed.weights.row(0)[0], 1.0 / (1.0 + std::exp(-0.05)), 1e-6);
  EXPECT_NEAR(routed.weights.row(0)[1], 1.0, 1e-6);
}

TEST_P(ExpertsTest, NanLogitsStillChooseExperts) {
  for (auto score : {Routing::Score::kSoftmax, Routing::Score::kSigmoid}) {
    Owned logits(&kFloat32, {1, 9});
    std::fill_n(logits.row(0), 9, std::nanf(""));
    const Routed routed(device, logits, {.top_k = 3, .score = score, .groups = 3, .top_groups = 2, .normalize = true});
    for (int j = 0; j < 3; ++j) {
      EXPECT_GE(routed.expert(0, j), 0);
      EXPECT_LT(routed.expert(0, j), 9);
      if (j > 0) {
        EXPECT_LT(routed.expert(0, j - 1), routed.expert(0, j));
      }
    }
  }
}

// Groups rows of random choices.
struct Grouped {
  int experts;
  Owned chosen, entries, rows, places, starts;
  Grouped(Checked& device, std::mt19937& random, int64_t count, int top_k, int experts)
      : experts(experts),
        chosen(&kInt32, {count, top_k}),
        entries(&kInt32, {count * top_k}),
        rows(entries),
        places(entries),
        starts(&kInt32, {experts + 1}) {
    std::vector<int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r < count; ++r) {
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + top_k);
      std::copy_n(all.begin(), top_k, chosen->as<int32_t>() + r * top_k);
    }
    group_by_expert(device.ctx,
                    {.experts = chosen, .entries = entries, .rows = rows, .places = places, .starts = starts});
  }
};

TEST_P(ExpertsTest, GroupsByExpert) {
  for (auto [count, top_k, experts] :
       {std::tuple{1, 1, 1}, {1, 2, 7}, {40, 3, 5}, {128, 8, 512}, {100, 10, 700}, {200, 8, 128}, {1000, 9, 33}}) {
    const Grouped g(device, random, count, top_k, experts);
    const auto* starts = g.starts->as<int32_t>();
    EXPECT_EQ(starts[0], 0);
    EXPECT_EQ(starts[experts], count * top_k);
    for (int e = 0; e < experts; ++e) {
      for (int32_t place = starts[e]; place < starts[e + 1]; ++place) {
        const int32_t entry = g.entries->as<int32_t>()[place];
        EXPECT_EQ(g.chosen->as<int32_t>()[entry], e);
        EXPECT_EQ(g.places->as<int32_t>()[entry], place);
        EXPECT_EQ(g.rows->as<int32_t>()[place], entry / top_k);
        if (place > starts[e]) {
          EXPECT_LT(g.entries->as<int32_t>()[place - 1], entry);
        }
      }
    }
  }
}

TEST_P(ExpertsTest, MatmulMatchesTheReference) {
  for (DType stored : {&kFloat32, &kBFloat16, &kFloat16}) {
    for (auto [count, top_k, experts, n, k] : {std::tuple{1, 2, 8, 33, 40},
                                               {7, 1, 3, 1, 5},
                                               {50, 4, 6, 100, 129},
                                               {700, 2, 3, 70, 64},
                                               {9, 3, 40, 640, 32}}) {
      SCOPED_TRACE(fmt::format("{}: {} rows, {} of {}, n {}, k {}", stored->name, count, top_k, experts, n, k));
      const std::vector<Owned> all = matrices(stored, experts, n, k);
      Owned x(&kFloat32, {int64_t{count} * top_k, k}, 3), bias(&kFloat32, {experts, n});
      x.fill(random), bias.fill(random);
      const Grouped g(device, random, count, top_k, experts);
      Owned out(&kFloat32, {int64_t{count} * top_k, n}, 2), expected(out);
      for (auto [d, result] : {std::pair{&device, &out}, {&reference, &expected}}) {
        const Packed weight = stacked(d->ctx, stored, all);
        expert_matmul(d->ctx, {.out = *result, .x = x, .starts = g.starts, .weight = &weight, .bias = bias->f32()});
      }
      expect_close(out, expected, tolerance(stored, k), 1.0f);
    }
  }
}

// Every number of rows at which tiles are split, with experts that have no rows and many rows, for every weight type.
TEST_P(ExpertsTest, ManyRowsMatchTheReference) {
  std::vector<int> many(70, 0);  // experts, most of them without rows
  many[3] = 1, many[33] = 260, many[34] = 2, many[64] = 257, many[69] = 190;
  struct Case {
    std::vector<int> counts;
    int64_t n, k;
  };
  const Case cases[] = {{{0, 1, 300, 0, 64, 65, 128, 129, 0}, 70, 256},
                        {{0, 0, 2, 90, 17, 0}, 130, 512},
                        {{127, 256, 257, 0}, 33, 128},
                        {{40}, 260, 384},
                        {{300}, 16, 1280},
                        {{60, 70, 97, 50, 0, 96, 33, 95}, 130, 320},
                        {{190, 129, 0, 150, 300}, 40, 320},
                        {many, 36, 256}};
  int turn = 0;
  for (DType stored : share(weight_types())) {
    for (const Case& c : cases) {
      const int64_t n = c.n, k = c.k, experts = static_cast<int64_t>(c.counts.size());
      if (k % stored->block_size != 0) continue;
      SCOPED_TRACE(fmt::format("{}: {} experts, n {}, k {}", stored->name, experts, n, k));
      Owned starts(&kInt32, {experts + 1});
      auto* start = starts->as<int32_t>();
      start[0] = 0;
      std::partial_sum(c.counts.begin(), c.counts.end(), start + 1);
      const int64_t rows = start[experts];
      const std::vector<Owned> all = matrices(stored, static_cast<int>(experts), n, k);
      // Rows aligned so that kernels access four elements at a time, and others.
      const int gap = ++turn % 2 == 0 ? 0 : 3;
      Owned x(&kFloat32, {rows, k}, gap), bias(&kFloat32, {experts, n}), out(&kFloat32, {rows, n}, gap), expected(out);
      x.fill(random), bias.fill(random);
      const auto multiply = [&](Checked& d, const Packed& weight, const Owned& to) {
        expert_matmul(
            d.ctx,
            {.out = to, .x = x, .starts = starts, .weight = &weight, .bias = turn % 3 == 0 ? bias->f32() : nullptr});
      };
      const Packed weight = stacked(device.ctx, stored, all);
      multiply(device, weight, out), multiply(reference, stacked(reference.ctx, stored, all), expected);
      expect_rows_close(out, expected, stored);
      // A NaN row does not change any other row.
      const Owned clean(out);
      const int64_t bad = rows / 2;
      x.row(bad)[k - 1] = std::nanf("");
      multiply(device, weight, out);
      for (int64_t r = 0; r < rows; ++r) {
        if (r != bad) {
          ASSERT_TRUE(same_bits(out.row(r), clean.row(r), n)) << "row " << r;
        }
      }
      EXPECT_TRUE(std::isnan(out.row(bad)[0]));
    }
  }
}

TEST_P(ExpertsTest, RowsAreFoundByTheirNumbers) {
  if (!device.ctx.ops.gathers_rows) GTEST_SKIP() << GetParam()->name << " wants rows in their order";
  constexpr int64_t kGiven = 7, n = 70, k = 256;
  const std::vector<std::vector<int>> cases = {
      {0, 1, 0, 2, 0}, {3, 0, 9, 1}, {17, 10, 0, 20}, {20, 64, 0, 7}, {130, 0, 300}};
  for (DType stored : share(weight_types())) {
    for (const std::vector<int>& counts : cases) {
      const auto experts = static_cast<int64_t>(counts.size());
      SCOPED_TRACE(fmt::format("{}: {} experts, the first with {} rows", stored->name, experts, counts[0]));
      Owned starts(&kInt32, {experts + 1});
      auto* start = starts->as<int32_t>();
      start[0] = 0;
      std::partial_sum(counts.begin(), counts.end(), start + 1);
      const int64_t places = start[experts];
      Owned x(&kFloat32, {kGiven, k}, 4), numbers(&kInt32, {places}), mine(&kFloat32, {places, k}),
          out(&kFloat32, {places, n}), expected(out);
      x.fill(random);
      auto* number = numbers->as<int32_t>();
      for (int64_t i = 0; i < places; ++i) number[i] = static_cast<int32_t>(random() % kGiven);
      gather_rows(device.ctx, mine, x, {number, static_cast<size_t>(places)});
      Packed weight = stacked(device.ctx, stored, matrices(stored, static_cast<int>(experts), n, k));
      for (InputRounding inputs : {InputRounding::kNone, InputRounding::kFp8PerRow}) {
        if (inputs != InputRounding::kNone && stored != &quant::Fp8::kType) continue;
        weight.inputs = inputs;
        expert_matmul(device.ctx, {.out = expected, .x = mine, .starts = starts, .weight = &weight});
        expert_matmul(device.ctx, {.out = out, .x = x, .rows = numbers, .starts = starts, .weight = &weight});
        EXPECT_TRUE(same_bits(out->f32(), expected->f32(), places * n));
      }
    }
  }
}

TEST_P(ExpertsTest, RowsKeepTheirBitsInEveryBatch) {
  if (!GetParam()->can.batch_invariant) GTEST_SKIP() << "kernels are chosen by the number of rows";
  const int experts = 5, top_k = 2, total = 60;
  const int64_t n = 150, k = 96;
  for (DType stored : {&kFloat32, &kBFloat16}) {
    const std::vector<Owned> all = matrices(stored, experts, n, k);
    const Packed weight = stacked(device.ctx, stored, all);
    Owned x(&kFloat32, {total, k}), bias(&kFloat32, {experts, n}), logits(&kFloat32, {total, experts});
    x.fill(random), bias.fill(random), logits.fill(random);
    // All steps of a layer: route, group, gather, multiply, combine.
    const auto run = [&](Checked& d, int64_t begin, int64_t rows, const Owned& result) {
      const Routed routed(d, logits->slice_rows(begin, rows), {.top_k = top_k});
      Owned entries(&kInt32, {rows * top_k}), from(entries), places(entries), starts(&kInt32, {experts + 1});
      group_by_expert(
          d.ctx, {.experts = routed.experts, .entries = entries, .rows = from, .places = places, .starts = starts});
      Owned mine(&kFloat32, {rows * top_k, k}), product(&kFloat32, {rows * top_k, n});
      gather_rows(d.ctx, mine, x->slice_rows(begin, rows), {from->as<int32_t>(), static_cast<size_t>(rows * top_k)});
      expert_matmul(d.ctx, {.out = product, .x = mine, .starts = starts, .weight = &weight, .bias = bias->f32()});
      combine(d.ctx,
              {.out = result->slice_rows(begin, rows), .x = product, .weights = routed.weights, .places = places});
    };
    Owned alone(&kFloat32, {total, n});
    for (int64_t r = 0; r < total; ++r) run(device, r, 1, alone);
    for (int threads : {1, 2, 4}) {
      Checked other(*GetParam(), threads);
      for (int64_t batch : {2, 7, 33, 60}) {
        Owned out(&kFloat32, {total, n});
        for (int64_t r = 0; r < total; r += batch) run(other, r, std::min<int64_t>(batch, total - r), out);
        ASSERT_TRUE(same_bits(out->f32(), alone->f32(), total * n)) << stored->name << " batch " << batch;
      }
    }
  }
}

TEST_P(ExpertsTest, HeadMatmulMatchesTheReference) {
  for (DType stored : {&kFloat32, &kBFloat16, &kFloat16}) {
    for (auto [tokens, heads, n, k, gap] : {std::tuple{1, 4, 33, 16, 3},
                                            {5, 3, 16, 7, 3},
                                            {300, 2, 130, 40, 3},
                                            {300, 2, 130, 40, 8},
                                            {33, 5, 256, 64, 0},
                                            {70, 3, 128, 512, 0}}) {
      SCOPED_TRACE(fmt::format("{}: {} tokens, {} heads, n {}, k {} + {}", stored->name, tokens, heads, n, k, gap));
      const std::vector<Owned> all = matrices(stored, heads, n, k);
      Owned x(&kFloat32, {tokens, heads * (k + gap)}, 1), out(&kFloat32, {tokens, heads * (n + 8)}, 2);
      x.fill(random), out.fill(random);
      Owned expected(out);
      for (auto [d, result] : {std::pair{&device, &out}, {&reference, &expected}}) {
        const Packed weight = stacked(d->ctx, stored, all);
        head_matmul(d->ctx, {.out = *result,
                             .x = x,
                             .heads = heads,
                             .n = n,
                             .out_stride = n + 8,
                             .x_stride = k + gap,
                             .weight = &weight});
      }
      expect_close(out, expected, tolerance(stored, k), 1.0f);  // columns between the heads are untouched
    }
  }
}

// Every weight type. The last of these matrices do not fit in the unpack buffer at once.
TEST_P(ExpertsTest, HeadMatmulOfManyRowsMatchesTheReference) {
  for (DType stored : share(weight_types())) {
    for (auto [rows, heads, n, k] :
         {std::tuple{70, 3, 40, 256}, {64, 4, 96, 512}, {9, 3, 40, 256}, {64, 65, 512, 512}}) {
      if (heads == 65 && stored->name != "q8_0") continue;
      SCOPED_TRACE(fmt::format("{}: {} rows, {} heads, n {}, k {}", stored->name, rows, heads, n, k));
      const std::vector<Owned> all = matrices(stored, heads, n, k);
      Owned x(&kFloat32, {rows, heads * k}), out(&kFloat32, {rows, heads * n}), expected(out);
      x.fill(random);
      for (auto [d, result] : {std::pair{&device, &out}, {&reference, &expected}}) {
        const Packed weight = stacked(d->ctx, stored, all);
        head_matmul(
            d->ctx,
            {.out = *result, .x = x, .heads = heads, .n = n, .out_stride = n, .x_stride = k, .weight = &weight});
      }
      expect_rows_close(out, expected, stored);
    }
  }
}

TEST_P(ExpertsTest, CombineMatchesTheReference) {
  std::vector<DType> types = {&kFloat32};
  // Only matmuls of GPUs write bf16.
  if (std::string_view(GetParam()->name).starts_with("cuda")) types.push_back(&kBFloat16);
  for (DType type : types) {
    for (bool accumulate : {false, true}) {
      for (auto [rows, top_k, n, gap] :
           {std::tuple{1, 1, 1, 0}, {6, 2, 19, 3}, {33, 8, 100, 3}, {33, 8, 100, 4}, {5, 3, 2048, 0}}) {
        SCOPED_TRACE(fmt::format("{} {} of {} x {} + {}", type->name, rows, top_k, n, gap));
        Owned x(type, {int64_t{rows} * top_k, n}, gap), weights(&kFloat32, {rows, top_k}),
            out(&kFloat32, {rows, n}, gap);
        x.fill(random), weights.fill(random), out.fill(random);
        Owned expected(out), places(&kInt32, {int64_t{rows} * top_k});
        std::iota(places->as<int32_t>(), places->as<int32_t>() + rows * top_k, 0);
        std::shuffle(places->as<int32_t>(), places->as<int32_t>() + rows * top_k, random);
        for (const Tensor& order : {*places, Tensor()}) {
          combine(device.ctx, {.out = out, .x = x, .weights = weights, .places = order, .accumulate = accumulate});
          combine(reference.ctx,
                  {.out = expected, .x = x, .weights = weights, .places = order, .accumulate = accumulate});
          expect_close(out, expected, 2e-6f, 1.0f);
        }
      }
    }
  }
}

TEST_P(ExpertsTest, LatentStoreMatchesTheReference) {
  std::vector<DType> types = {&kFloat32, &kBFloat16, &kFloat16};
  types.insert(types.end(), GetParam()->can.narrow_caches.begin(), GetParam()->can.narrow_caches.end());
  for (DType type : types) {
    for (bool interleaved : {false, true}) {
      const int64_t latent = 37, rotary = 14, heads = 3, tokens = 9;
      Owned q(&kFloat32, {tokens, heads * (latent + rotary)}, 2), q_rope(&kFloat32, {tokens, heads * rotary}, 1),
          c(&kFloat32, {tokens, latent}, 3), k_rope(&kFloat32, {tokens, rotary}, 5), table(&kFloat32, {40, rotary});
      OwnedCache cache(type, {2, 1, 8, latent + rotary});
      q.fill(random), q_rope.fill(random), c.fill(random), k_rope.fill(random), table.fill(random), cache.fill(random);
      Owned expected_q(q);
      OwnedCache expected_cache(cache);
      const std::vector<int32_t> positions = {3, 39, 0, 1, 2, 5, 5, 8, 20}, slots = {0, 15, 7, 8, 1, 2, 3, 4, 5};
      LatentStoreArgs args{.q = q,
                           .q_rope = q_rope,
                           .latent = c,
                           .k_rope = k_rope,
                           .cos_sin = table,
                           .interleaved = interleaved,
                           .k_cache = cache,
                           .positions = positions,
                           .slots = slots};
      latent_store(device.ctx, args);
      args.q = expected_q, args.k_cache = expected_cache;
      latent_store(reference.ctx, args);
      expect_close(q, expected_q, 1e-6f);
      const std::vector<float> a = cache.numbers(), b = expected_cache.numbers();
      const float tolerance = type == &kFloat32 ? 1e-6f : type->block_bytes == 1 ? 0.25f : 0.02f;
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
    }
  }
}

SLUICE_FOR_EVERY_BACKEND(ExpertsTest);

}  // namespace
}  // namespace sluice::ops::experts_test
