// The sample op: compares samples and noise with the reference, and the kept candidates with their definition.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "ops/sample_chain.h"
#include "ops/testing.h"

namespace sluice::ops::sample_test {
namespace {

class SampleTest : public OpsTest {
 protected:
  struct Result {
    std::vector<SampledRow> rows;
    std::vector<std::vector<TopLogit>> top;  // by id
  };
  struct Changes {
    std::vector<LogitEdit> edits;
    std::vector<uint32_t> masks;
    std::vector<SamplerStep> steps;
  };

  template <class T>
  static Owned copied(const std::vector<T>& values) {
    Owned bytes(&kUInt8, {static_cast<int64_t>(values.size() * sizeof(T))});
    if (!values.empty()) std::memcpy(bytes->data, values.data(), values.size() * sizeof(T));
    return bytes;
  }

  // Leaves `logits` unchanged.
  Result run(Checked& on, const Tensor& logits, const std::vector<SampleRow>& rows, const Changes& changes = {}) {
    const auto n = static_cast<int64_t>(rows.size());
    const Owned in = copied(rows), edits = copied(changes.edits), masks = copied(changes.masks),
                steps = copied(changes.steps);
    Owned out(&kUInt8, {n * static_cast<int64_t>(sizeof(SampledRow))}), for_host = out;
    Owned top(&kUInt8, {n * kMostTop * static_cast<int64_t>(sizeof(TopLogit))});
    sample(on.ctx, {.logits = logits,
                    .rows = in,
                    .sampled = out,
                    .for_host = for_host,
                    .edits = edits,
                    .steps = steps,
                    .masks = masks,
                    .top = top});
    EXPECT_EQ(std::memcmp(out->data, for_host->data, out.bytes()), 0);
    Result result;
    for (int64_t i = 0; i < n; ++i) {
      const SampledRow& row = out->as<SampledRow>()[i];
      result.rows.push_back(row);
      const TopLogit* begin = top->as<TopLogit>() + i * kMostTop;
      result.top.emplace_back(begin, begin + std::max(row.top, 0));
      std::ranges::sort(result.top.back(), {}, &TopLogit::id);
    }
    return result;
  }

  // Returns which tokens occur in this many samples of a row. The samples differ only in SampleRow::choice.
  std::set<int> sampled_in(const Tensor& logits, SampleRow row, int samples, const Changes& changes = {}) {
    std::vector<SampleRow> rows(static_cast<size_t>(samples), row);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].choice = static_cast<uint32_t>(i);
    std::set<int> tokens;
    for (const SampledRow& one : run(device, logits, rows, changes).rows) tokens.insert(one.token);
    return tokens;
  }
};

TEST_P(SampleTest, MatchesTheReference) {
  for (const int vocab : {1, 3, 64, 1001, 5000}) {
    Owned logits(&kFloat32, {6, vocab}, 3);
    logits.fill(random, 4.0f);
    for (int i = 0; i < vocab; i += 7) logits.row(2)[i] = -INFINITY;
    logits.row(2)[0] = 1.0f;
    std::vector<SampleRow> rows;
    for (int row = 0; row < 6; ++row) {
      for (const float scale : {0.0f, 1.0f, 3.0f}) {
        rows.push_back(
            {.row = row, .scale = scale, .key = {7u, static_cast<uint32_t>(row)}, .choice = 1, .position = 9});
      }
    }
    const Result got = run(device, logits, rows), want = run(reference, logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(got.rows[i].token, want.rows[i].token) << "row " << rows[i].row << ", scale " << rows[i].scale;
    }
  }
}

// A device may split a row of many tokens among several thread blocks.
TEST_P(SampleTest, FewRowsOfManyTokensMatchTheReference) {
  constexpr int kVocab = 128'003;
  Owned logits(&kFloat32, {6, kVocab}, 1);
  logits.fill(random, 4.0f);
  logits.row(1)[kVocab - 1] = logits.row(1)[77] = 100.0f;  // equal logits: the lower id wins
  logits.row(2)[kVocab - 2] = NAN;
  std::fill_n(logits.row(3), kVocab, -INFINITY);
  Changes changes;
  changes.masks.resize(static_cast<size_t>(mask_words(kVocab)));
  for (uint32_t& word : changes.masks) word = static_cast<uint32_t>(random() & random());
  changes.edits.push_back({.id = 5, .bias = 1000.0f});
  const std::vector<SampleRow> rows{
      {.row = 0, .scale = 1.0f, .key = {3u, 4u}},
      {.row = 1},
      {.row = 2},
      {.row = 3},
      {.row = 4, .scale = 0.5f, .key = {1u, 2u}, .mask = 0},
      {.row = 4, .scale = 1.0f, .key = {1u, 2u}, .count = 40, .mass = 0.9},
      {.row = 5, .first_edit = 0, .edits = 1},
  };
  const Result want = run(reference, logits, rows, changes);
  EXPECT_EQ(want.rows[1].token, 77);
  EXPECT_EQ(want.rows[6].token, 5);
  for (int turn = 0; turn < 3; ++turn) {  // thread blocks must reset their shared state
    const Result got = run(device, logits, rows, changes);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(got.rows[i].token, want.rows[i].token) << i;
  }
}

// Each filter alone and all filters together, with few tokens and with many, must give the reference's tokens.
TEST_P(SampleTest, CutsMatchTheReference) {
  for (const float spread : share(std::array{3.0f, 0.5f, 0.002f})) {
    constexpr int kVocab = 6007;
    Owned logits(&kFloat32, {2, kVocab}, 1);
    logits.fill(random, spread);
    for (int i = 1; i < kVocab; i += 5) logits.row(1)[i] = i % 2 == 0 ? -INFINITY : logits.row(1)[i - 1];
    std::vector<SampleRow> rows;
    for (const int count : {0, 1, 40, 1500, kVocab + 5}) {
      for (const double mass : {1.0, 0.8, 0.3, 1e-9, 0.99999}) {
        for (const float least : {0.0f, 0.05f, 1.0f}) {
          for (uint32_t choice = 0; choice < 3; ++choice) {
            rows.push_back({.row = static_cast<int32_t>(choice % 2),
                            .scale = 1.3f,
                            .key = {5u, 6u},
                            .choice = choice,
                            .position = static_cast<uint32_t>(rows.size()),
                            .count = count,
                            .least = least,
                            .mass = mass});
          }
        }
      }
    }
    const Result got = run(device, logits, rows), want = run(reference, logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(got.rows[i].token, want.rows[i].token) << "spread " << spread << ", count " << rows[i].count
                                                       << ", mass " << rows[i].mass << ", least " << rows[i].least;
    }
  }
}

// Checks the set of kept tokens by sampling until all of them have occurred.
TEST_P(SampleTest, KeepsWhatItIsToldTo) {
  constexpr int kVocab = 40, kSamples = 800;
  Owned logits(&kFloat32, {1, kVocab});
  for (int i = 0; i < kVocab; ++i) logits.row(0)[i] = i % 4 == 1 ? 1.0f : -INFINITY;  // ten of weight 1, by id
  const auto first = [](int n) {
    std::set<int> ids;
    for (int i = 0; i < n; ++i) ids.insert(4 * i + 1);
    return ids;
  };
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f}, kSamples), first(10));
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .count = 3}, kSamples), first(3)) << "among equal ones the lower ids";
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .mass = 0.5}, kSamples), first(5));
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .mass = 0.51}, kSamples), first(6));
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .count = 4, .mass = 0.5}, kSamples), first(2)) << "of what top-k keeps";
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .least = 1.0f}, kSamples), first(10));
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .sigmas = 1.0f}, kSamples), first(10)) << "masked tokens do not count";
  logits.row(0)[1] = 2.0f;
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .least = 0.5f}, kSamples), first(1));
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .count = 1}, 50), first(1)) << "top-k of one is greedy";
  EXPECT_EQ(sampled_in(logits, {.scale = 0.5f, .least = 0.6f}, kSamples), first(10))
      << "weights are of the temperature";
  Changes one_left;
  one_left.masks.assign(static_cast<size_t>(mask_words(kVocab)), 0u);
  one_left.masks[0] = 1u << 9;
  EXPECT_EQ(sampled_in(logits, {.scale = 1.0f, .count = 5, .least = 0.1f, .mass = 0.9, .mask = 0}, 50, one_left),
            std::set<int>{9});
}

// Random rows, with everything at once: ties, masked and bad logits, edits, masks, filters, temperatures.
TEST_P(SampleTest, RandomRowsMatchTheReference) {
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  const auto real = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  for (int round = 0; round < sized(150, 30); ++round) {
    const int vocab = 1 + static_cast<int>(random() % (round % 5 == 0 ? 9000 : 300));
    constexpr int kRows = 5;
    Owned logits(&kFloat32, {kRows, vocab}, static_cast<int64_t>(random() % 4));
    logits.fill(random, std::pow(10.0f, real(-3.0f, 3.0f)));
    Changes changes;
    std::vector<SampleRow> rows;
    for (int row = 0; row < kRows; ++row) {
      float* to = logits.row(row);
      const int kind = static_cast<int>(random() % 6);
      for (int i = 0; i < vocab; ++i) {
        if (kind == 1) to[i] = std::round(to[i]);
        if (kind == 2 && chance(60)) to[i] = -INFINITY;
        if (kind == 3) to[i] = i % 3 == 0 ? 0.0f : -0.0f;
      }
      if (kind == 4 && chance(30)) to[random() % static_cast<uint32_t>(vocab)] = chance(50) ? NAN : INFINITY;
      SampleRow one{.row = row,
                    .scale = chance(15) ? 0.0f : std::pow(10.0f, real(-1.0f, chance(10) ? 6.0f : 1.0f)),
                    .key = {static_cast<uint32_t>(random()), static_cast<uint32_t>(random())},
                    .choice = static_cast<uint32_t>(random() % 4),
                    .position = static_cast<uint32_t>(random())};
      if (chance(25)) one.sigmas = real(0.01f, 4.0f);
      if (chance(40)) one.count = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(2 * vocab));
      if (chance(40)) one.mass = chance(20) ? 1e-12 : static_cast<double>(real(0.001f, 1.0f));
      if (chance(40)) one.least = chance(10) ? 1.0f : std::pow(10.0f, real(-12.0f, 0.0f));
      if (chance(30)) {
        one.repetition = real(0.5f, 2.0f), one.presence = real(-2.0f, 2.0f), one.frequency = real(-2.0f, 2.0f);
        one.first_edit = static_cast<int32_t>(changes.edits.size());
        for (int id = static_cast<int>(random() % 3); id < vocab; id += 1 + static_cast<int>(random() % 20)) {
          const float bias = chance(10) ? -INFINITY : chance(2) ? NAN : real(-5.0f, 5.0f);
          changes.edits.push_back({.id = id, .bias = bias, .output = static_cast<int32_t>(random() % 4) - 1});
        }
        one.edits = static_cast<int32_t>(changes.edits.size()) - one.first_edit;
      }
      if (chance(30)) {
        const int64_t words = mask_words(vocab);
        one.mask = static_cast<int32_t>(static_cast<int64_t>(changes.masks.size()) / words);
        for (int64_t i = 0; i < words; ++i) {
          changes.masks.push_back(chance(30) ? ~0u : chance(40) ? 0u : static_cast<uint32_t>(random()));
        }
      }
      rows.push_back(one);
    }
    const Result got = run(device, logits, rows, changes), want = run(reference, logits, rows, changes);
    for (int row = 0; row < kRows; ++row) {
      const SampleRow& one = rows[static_cast<size_t>(row)];
      ASSERT_EQ(got.rows[row].token, want.rows[row].token)
          << "round " << round << ", row " << row << ", vocabulary " << vocab << ", scale " << one.scale << ", sigmas "
          << one.sigmas << ", count " << one.count << ", mass " << one.mass << ", least " << one.least << ", mask "
          << one.mask;
    }
  }
}

// A random sampler of a chain.
SamplerStep random_step(std::mt19937& random, int vocab) {
  const auto real = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  switch (random() % 13) {
    case 0:
      return {.kind = SamplerKind::kTemperature,
              .a = 1.0 / static_cast<double>(real(0.2f, 2.0f)),
              .b = random() % 2 == 0 ? real(0.1f, 1.0f) : 0.0f,
              .c = real(0.0f, 3.0f)};
    case 1:
      return {.kind = SamplerKind::kTopNSigma, .b = real(0.01f, 4.0f)};
    case 2:
      return {.kind = SamplerKind::kTopK, .count = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(vocab))};
    case 3:
      return {.kind = SamplerKind::kTopP, .a = static_cast<double>(real(0.01f, 0.9999f))};
    case 4:
      return {.kind = SamplerKind::kTypicalP, .a = static_cast<double>(real(0.01f, 0.9999f))};
    case 5:
      return {.kind = SamplerKind::kTopA, .b = real(0.0f, 1.0f)};
    case 6:
      return {.kind = SamplerKind::kEpsilon, .b = std::pow(10.0f, real(-6.0f, 0.0f))};
    case 7:
      return {.kind = SamplerKind::kEta, .b = std::pow(10.0f, real(-6.0f, 0.0f))};
    case 8:
      return {.kind = SamplerKind::kXtc, .b = real(0.0f, 1.0f), .c = real(0.0f, 0.5f)};
    case 9:
      return {.kind = SamplerKind::kSmoothing, .b = real(0.0f, 3.0f), .c = real(1.0f, 3.0f)};
    case 10:
      return {.kind = SamplerKind::kMirostat1, .count = vocab, .b = real(0.0f, 12.0f)};
    case 11:
      return {.kind = SamplerKind::kMirostat2, .b = real(-1.0f, 12.0f)};
    default:
      return {.kind = SamplerKind::kMinP, .b = std::pow(10.0f, real(-8.0f, 0.0f))};
  }
}

// Chains of random samplers, each at most once, over few tokens and many, with ties and masks.
TEST_P(SampleTest, RandomChainsMatchTheReference) {
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  for (int round = 0; round < sized(200, 40); ++round) {
    const int vocab = 1 + static_cast<int>(random() % (round % 4 == 0 ? 9000 : 300));
    constexpr int kRows = 6;
    Owned logits(&kFloat32, {kRows, vocab}, static_cast<int64_t>(random() % 4));
    logits.fill(random, std::pow(10.0f, std::uniform_real_distribution<float>(-2.0f, 1.0f)(random)));
    Changes changes;
    std::vector<SampleRow> rows;
    std::string what;
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < vocab; ++i) {
        float& logit = logits.row(row)[i];
        if (row == 1) logit = std::round(logit);
        if (row == 2 && chance(60)) logit = -INFINITY;
      }
      SampleRow one{.row = row,
                    .scale = 1.0f,
                    .key = {static_cast<uint32_t>(random()), static_cast<uint32_t>(random())},
                    .position = static_cast<uint32_t>(random() % 1000)};
      one.first_step = static_cast<int32_t>(changes.steps.size());
      std::set<SamplerKind> used;
      for (int i = 0; i < 8; ++i) {
        const SamplerStep step = random_step(random, vocab);
        if (!used.insert(step.kind).second) continue;
        changes.steps.push_back(step);
        what += std::to_string(static_cast<int>(step.kind)) + " ";
      }
      what += "| ";
      if (chance(20)) changes.steps.push_back({.kind = SamplerKind::kAdaptiveP, .b = 0.3f});
      one.wants_probability = row % 2;
      one.steps = static_cast<int32_t>(changes.steps.size()) - one.first_step;
      if (row == 3) {
        for (int64_t i = 0; i < mask_words(vocab); ++i) changes.masks.push_back(static_cast<uint32_t>(random()));
        one.mask = 0;
      }
      if (row == 4) {
        one.edits = 1;
        changes.edits.push_back({.id = vocab / 2, .bias = 1.0f});
      }
      rows.push_back(one);
    }
    rows.push_back({.row = 5, .scale = 1.0f, .key = {1u, 2u}, .count = 3});  // beside one without a chain
    const Result got = run(device, logits, rows, changes), want = run(reference, logits, rows, changes);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(got.rows[i].token, want.rows[i].token)
          << "round " << round << ", row " << i << ", vocabulary " << vocab << ", chains " << what;
      EXPECT_EQ(got.rows[i].probability, want.rows[i].probability) << "round " << round << ", row " << i;
      // A mask may leave no token of a small vocabulary.
      const bool wanted = rows[i].wants_probability == 1 && rows[i].steps > 0 && want.rows[i].token >= 0;
      EXPECT_EQ(want.rows[i].probability > 0, wanted) << "round " << round << ", row " << i;
    }
  }
}

// Long rows of every kind, with samplers that keep few tokens and with samplers that keep thousands. A device may hold
// such rows in another way, and sample those that do not fit a short list in yet another one.
TEST_P(SampleTest, LongRowsMatchTheReference) {
  if (GetParam()->name == "reference") GTEST_SKIP() << "would be compared with itself";
  using enum SamplerKind;
  const std::vector<SampleRow> filters{
      {.scale = 0.0f},
      {.scale = 1.0f},
      {.scale = 0.3f},
      {.scale = 1.25f, .count = 50, .least = 0.01f, .mass = 0.9},
      {.scale = 1.0f, .count = 1000},
      {.scale = 1.0f, .count = 4000, .mass = 0.999},
      {.scale = 1.0f, .mass = 0.95},
      {.scale = 4.0f, .mass = 0.9999},
      {.scale = 1.0f, .least = 0.05f},
      {.scale = 1.0f, .sigmas = 1.5f},
      {.scale = 0.7f, .sigmas = 3.0f, .count = 40},
  };
  const SamplerStep dynamic{.kind = kTemperature, .a = 1.25, .b = 0.5f, .c = 1.0f},
      sigma{.kind = kTopNSigma, .b = 3.0f};
  const SamplerStep top_k{.kind = kTopK, .count = 1000}, top_p{.kind = kTopP, .a = 0.95};
  const SamplerStep typical{.kind = kTypicalP, .a = 0.95}, adaptive{.kind = kAdaptiveP, .b = 0.3f};
  const std::vector<std::vector<SamplerStep>> chains{
      {sigma,
       dynamic,
       {.kind = kSmoothing, .b = 0.2f, .c = 1.0f},
       top_k,
       typical,
       top_p,
       {.kind = kMinP, .b = 0.001f},
       {.kind = kTopA, .b = 0.01f},
       {.kind = kEpsilon, .b = 1e-5f},
       {.kind = kEta, .b = 1e-5f},
       {.kind = kXtc, .b = 0.5f, .c = 0.1f},
       adaptive},
      {typical},
      {{.kind = kMirostat1, .count = 50'000, .b = 6.0f}},
      {{.kind = kTemperature, .a = 1.25}, {.kind = kMirostat2, .b = 5.0f}},
      {top_p, top_k, {.kind = kXtc, .b = 0.9f, .c = 0.01f}},
      {{.kind = kXtc, .b = 1.0f, .c = 0.0001f}, top_k, typical},
      {{.kind = kEta, .b = 1e-4f}, adaptive},
      {{.kind = kTemperature, .a = 0.5, .b = 0.4f, .c = 0.0f}, {.kind = kTopA, .b = 0.5f}, top_p},
  };
  for (const int64_t gap : {0, 1}) {  // with and without rows that begin at multiples of 16 bytes
    const int vocab = static_cast<int>(sized(gap == 0 ? 152'064 : 66'003, 9000));
    constexpr int kRows = 14;
    Owned logits(&kFloat32, {kRows, vocab}, gap);
    logits.fill(random, 2.5f);
    Changes changes;
    std::vector<SampleRow> rows;
    for (int row = 0; row < kRows; ++row) {
      float* to = logits.row(row);
      for (int i = 0; i < vocab; ++i) {
        if (row == 1) to[i] *= 2.4f;                                              // few tokens are likely
        if (row == 2) to[i] *= 0.004f;                                            // all are
        if (row == 3) to[i] = -0.0f;                                              // ties
        if (row == 4) to[i] = std::round(to[i]);                                  // also
        if (row == 5 && random() % 10 != 0) to[i] = -INFINITY;                    // a few thousand tokens
        if (row == 6 && i % (vocab / 3) != 7) to[i] = -INFINITY;                  // three tokens
        if (row == 7 && i >= 6000 && i < 10'000) to[i] = std::abs(to[i]) + 9.0f;  // neighbours are likely
        if (row == 8) to[i] = -INFINITY;
      }
      if (row == 9) to[vocab - 1] = 5000.0f;
      if (row == 10) to[vocab / 2] = NAN;
      const bool edited = row == 11;  // such a row belongs to one sample
      for (int turn = 0; turn < (edited ? 1 : 7); ++turn) {
        const size_t kind = edited ? 3 : random() % (filters.size() + chains.size());
        SampleRow one{.scale = 1.0f};
        if (kind < filters.size()) {
          one = filters[kind];
        } else {
          const auto& chain = chains[kind - filters.size()];
          one.first_step = static_cast<int32_t>(changes.steps.size()), one.steps = static_cast<int32_t>(chain.size());
          one.wants_probability = turn % 2;
          changes.steps.insert(changes.steps.end(), chain.begin(), chain.end());
        }
        one.row = row, one.key[0] = static_cast<uint32_t>(random()), one.position = static_cast<uint32_t>(turn);
        if (row == 12) one.mask = 0;
        if (row == 13) one.mask = 1;
        if (edited) one.edits = 500, one.repetition = 1.2f, one.presence = 0.5f;
        rows.push_back(one);
      }
    }
    for (int i = 0; i < 500; ++i) {
      changes.edits.push_back({.id = i * (vocab / 500),
                               .bias = i % 7 == 0   ? 8.0f
                                       : i % 5 == 0 ? -INFINITY
                                                    : 0.0f,
                               .output = i % 3 - 1});
    }
    for (int64_t i = 0; i < 2 * mask_words(vocab); ++i) {
      changes.masks.push_back(i < mask_words(vocab) ? static_cast<uint32_t>(random()) : random() % 300 == 0 ? 9u : 0u);
    }
    const Result want = run(reference, logits, rows, changes);
    const auto expect = [&](const std::vector<SampledRow>& got, size_t from, size_t first, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        const SampleRow& row = rows[first + i];
        EXPECT_EQ(got[from + i].token, want.rows[first + i].token)
            << "gap " << gap << ", row " << row.row << ", scale " << row.scale << ", sigmas " << row.sigmas
            << ", count " << row.count << ", mass " << row.mass << ", least " << row.least << ", steps " << row.steps
            << " from " << row.first_step;
        EXPECT_EQ(got[from + i].probability, want.rows[first + i].probability) << "row " << row.row;
      }
    };
    // Few rows at once, all, and many: a device may divide a row among more blocks, the fewer rows there are.
    constexpr size_t kFew = 30;
    for (size_t first = 0; first < rows.size(); first += kFew) {
      const size_t count = std::min(kFew, rows.size() - first);
      const auto* begin = rows.data() + first;
      expect(run(device, logits, {begin, begin + count}, changes).rows, 0, first, count);
    }
    expect(run(device, logits, rows, changes).rows, 0, 0, rows.size());
    constexpr size_t kUnedited = 11 * 7;  // rows before the edited one
    std::vector<SampleRow> copies(rows);
    for (const size_t count : {size_t{1}, size_t{3}}) {
      while (copies.size() < rows.size() + count * kUnedited) {
        copies.insert(copies.end(), rows.begin(), rows.begin() + kUnedited);
      }
      const Result many = run(device, logits, copies, changes);
      expect(many.rows, 0, 0, rows.size());
      for (size_t i = 0; i < count; ++i) expect(many.rows, rows.size() + i * kUnedited, 0, kUnedited);
    }
  }
}

// The usual samplers as a chain give the tokens of the quicker way.
TEST_P(SampleTest, AChainOfTheUsualSamplersGivesTheSameTokens) {
  for (const int vocab : {40, 3000}) {
    Owned logits(&kFloat32, {1, vocab});
    logits.fill(random, 2.0f);
    Changes changes;
    changes.steps = {{.kind = SamplerKind::kTopNSigma, .b = 2.5f},
                     {.kind = SamplerKind::kTemperature, .a = 1 / 0.8},
                     {.kind = SamplerKind::kTopK, .count = 30},
                     {.kind = SamplerKind::kTopP, .a = 0.9},
                     {.kind = SamplerKind::kMinP, .b = 0.05f}};
    std::vector<SampleRow> quick, chain;
    for (uint32_t i = 0; i < 500; ++i) {
      SampleRow row{.scale = static_cast<float>(1 / 0.8),
                    .key = {i, 5u},
                    .sigmas = 2.5f,
                    .count = 30,
                    .least = 0.05f,
                    .mass = 0.9};
      quick.push_back(row);
      row.steps = 5;
      chain.push_back(row);
    }
    const Result want = run(device, logits, quick), got = run(device, logits, chain, changes);
    for (size_t i = 0; i < quick.size(); ++i) EXPECT_EQ(got.rows[i].token, want.rows[i].token) << i;
  }
}

// Ten logits of 4 and ten of 0 have a mean of 2 and a standard deviation of 2, whatever the temperature.
TEST_P(SampleTest, TopNSigmaKeepsWhatItIsToldTo) {
  Owned logits(&kFloat32, {1, 100});
  std::set<int> upper, both;
  for (int i = 0; i < 100; ++i) logits.row(0)[i] = i % 5 != 0 ? -INFINITY : i % 2 == 0 ? 4.0f : 0.0f;
  for (int i = 0; i < 100; i += 5) both.insert(i);
  for (int i = 0; i < 100; i += 10) upper.insert(i);
  for (const float scale : {0.01f, 0.5f}) {
    EXPECT_EQ(sampled_in(logits, {.scale = scale, .sigmas = 1.99f}, 800), upper);
    EXPECT_EQ(sampled_in(logits, {.scale = scale, .sigmas = 2.0f}, 800), both);
  }
  EXPECT_EQ(sampled_in(logits, {.scale = 0.5f, .sigmas = 1.0f, .count = 11}, 800), upper) << "before top-k";
  EXPECT_EQ(sampled_in(logits, {.scale = 0.5f, .sigmas = 1.0f, .count = 2}, 200), (std::set<int>{0, 10}));
  EXPECT_EQ(sampled_in(logits, {.scale = 0.5f, .sigmas = 1.0f, .mass = 0.5}, 200), (std::set<int>{0, 10, 20, 30, 40}))
      << "top-p is a share of what it keeps";
}

// Its sums are integers whose range ends far from the logits of models. Beyond it a logit counts as the end.
TEST_P(SampleTest, TopNSigmaTakesAnyLogit) {
  Owned logits(&kFloat32, {1, 40});
  for (int i = 0; i < 40; ++i) logits.row(0)[i] = i < 20 ? 1000.0f : -3e38f;
  std::set<int> upper;
  for (int i = 0; i < 20; ++i) upper.insert(i);
  EXPECT_EQ(sampled_in(logits, {.scale = 0.01f, .sigmas = 1.9f}, 800), upper);
  for (int i = 0; i < 20; ++i) logits.row(0)[i] = 5000.0f;
  EXPECT_EQ(sampled_in(logits, {.scale = 0.01f, .sigmas = 1.9f}, 800), upper);
}

// Every bit of the noise is that of the reference: without a filter, and over many samples of one row.
TEST_P(SampleTest, ManySamplesMatchTheReference) {
  Owned logits(&kFloat32, {2, 2003});
  logits.fill(random, 1.0f);
  std::fill_n(logits.row(1), 2003, 3.0f);
  std::vector<SampleRow> rows;
  for (uint32_t i = 0; i < 4000; ++i) {
    rows.push_back({.row = static_cast<int32_t>(i % 2), .scale = 1.0f, .key = {i, 77u}, .position = i / 7});
  }
  const Result got = run(device, logits, rows), want = run(reference, logits, rows);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(got.rows[i].token, want.rows[i].token) << i;
}

TEST_P(SampleTest, RowsWithoutAnAnswer) {
  Owned logits(&kFloat32, {5, 999});
  logits.fill(random);
  logits.row(0)[500] = NAN;
  logits.row(1)[998] = INFINITY;
  for (int i = 0; i < 999; ++i) logits.row(2)[i] = -INFINITY, logits.row(3)[i] = 0.25f;
  std::vector<SampleRow> rows;
  for (int row = 0; row < 5; ++row) rows.push_back({.row = row, .scale = 1.0f, .count = 5, .mass = 0.5});
  const Result got = run(device, logits, rows);
  for (int row = 0; row < 3; ++row) EXPECT_EQ(got.rows[row].token, -1) << row;
  EXPECT_LT(got.rows[3].token, 3) << "999 equal logits";
  EXPECT_GE(got.rows[4].token, 0);
}

// Random edits, masks and reports. Checks the tokens, the lists, the log-probability data, and that logits are
// unchanged.
TEST_P(SampleTest, EditedRowsMatchTheReference) {
  for (const int vocab : {1, 5, 63, 1000, 4097}) {
    constexpr int kRows = 8;
    Owned logits(&kFloat32, {kRows, vocab}, 3);
    logits.fill(random, 4.0f);
    for (int i = 0; i < vocab; i += 3) logits.row(1)[i] = -INFINITY;
    logits.row(1)[0] = 1.0f;
    const auto words = static_cast<size_t>(mask_words(vocab));
    Changes changes;
    std::vector<SampleRow> rows;
    for (int row = 0; row < kRows; ++row) {
      SampleRow asked{.row = row, .scale = row % 2 == 0 ? 0.0f : 1.5f, .key = {3u, static_cast<uint32_t>(row)}};
      if (row % 4 == 3) asked.count = 7, asked.mass = 0.7;
      asked.repetition = 1.3f, asked.presence = 0.4f, asked.frequency = 0.25f;
      asked.first_edit = static_cast<int32_t>(changes.edits.size());
      for (int id = static_cast<int>(random() % 4); id < vocab; id += 1 + static_cast<int>(random() % 9)) {
        const float bias = random() % 3 != 0 ? 0.0f : random() % 4 == 0 ? -INFINITY : 2.5f;
        changes.edits.push_back({.id = id, .bias = bias, .output = static_cast<int32_t>(random() % 4) - 1});
      }
      asked.edits = static_cast<int32_t>(changes.edits.size()) - asked.first_edit;
      if (row % 3 == 1) {
        asked.mask = static_cast<int32_t>(changes.masks.size() / words);
        for (size_t i = 0; i < words; ++i) changes.masks.push_back(static_cast<uint32_t>(random() | 1));
      }
      asked.report = row - 2;
      if (row == 6) asked.target = vocab / 2;
      rows.push_back(asked);
    }
    const Owned before = logits;
    const Result got = run(device, logits, rows, changes), want = run(reference, logits, rows, changes);
    for (int row = 0; row < kRows; ++row) {
      SCOPED_TRACE(std::to_string(vocab) + ", row " + std::to_string(row));
      EXPECT_EQ(std::memcmp(logits.row(row), before.row(row), static_cast<size_t>(vocab) * sizeof(float)), 0);
      const SampledRow &g = got.rows[row], &w = want.rows[row];
      EXPECT_EQ(g.token, w.token);
      if (rows[row].report < 0) continue;
      EXPECT_EQ(g.raw_max, w.raw_max);
      EXPECT_NEAR(g.raw_total, w.raw_total, w.raw_total * 1e-5);
      EXPECT_EQ(g.top, w.top);
      for (size_t i = 0; i < want.top[row].size(); ++i) {
        EXPECT_EQ(got.top[row][i].id, want.top[row][i].id);
        EXPECT_EQ(got.top[row][i].logit, want.top[row][i].logit);
      }
      if (w.token < 0) continue;
      EXPECT_EQ(g.token_logit, w.token_logit);
      EXPECT_EQ(g.before, w.before);
    }
  }
}

TEST_P(SampleTest, EditsAndMasksMayLeaveNothing) {
  constexpr int kVocab = 100;
  Owned logits(&kFloat32, {5, kVocab});
  logits.fill(random);
  logits.row(2)[50] = NAN;
  for (int i = 0; i < kVocab; ++i) logits.row(3)[i] = i == 50 ? NAN : -INFINITY;
  Changes changes;
  for (int id = 0; id < kVocab; ++id) changes.edits.push_back({.id = id, .bias = -INFINITY});
  changes.edits.push_back({.id = 7, .bias = INFINITY});
  changes.edits.push_back({.id = 7, .bias = INFINITY});
  changes.masks.assign(static_cast<size_t>(mask_words(kVocab)), 0u);
  changes.masks[0] = 2u;
  std::vector<SampleRow> rows;
  rows.push_back({.row = 0, .first_edit = 0, .edits = kVocab});
  rows.push_back({.row = 1, .first_edit = kVocab, .edits = 1});
  rows.push_back({.row = 2, .first_edit = 0, .edits = kVocab});
  rows.push_back({.row = 3, .mask = 0});
  rows.push_back({.row = 4, .first_edit = kVocab + 1, .edits = 1, .mask = 0});  // the mask hides the infinite logits
  const Result got = run(device, logits, rows, changes);
  EXPECT_EQ(got.rows[0].token, SampledRow::kNoneLeft);
  EXPECT_EQ(got.rows[1].token, SampledRow::kNoneLeft);
  EXPECT_EQ(got.rows[2].token, SampledRow::kBadLogits);
  EXPECT_EQ(got.rows[3].token, SampledRow::kBadLogits);
  EXPECT_EQ(got.rows[4].token, 1);
}

// The noise has the right distribution: frequencies match probabilities, and every part of the key matters.
TEST_P(SampleTest, FrequenciesAreProbabilities) {
  Owned logits(&kFloat32, {1, 6});
  const double probabilities[6] = {0.4, 0.05, 0.25, 0.1, 0.0, 0.2};
  for (int i = 0; i < 6; ++i) logits.row(0)[i] = static_cast<float>(0.5 * std::log(probabilities[i]));
  constexpr int kSamples = 12000;
  for (int part = 0; part < 3; ++part) {
    std::vector<SampleRow> rows(kSamples);
    for (uint32_t i = 0; i < kSamples; ++i) {
      rows[i] = {.row = 0, .scale = 2.0f};
      (part == 0 ? rows[i].key[1] : part == 1 ? rows[i].choice : rows[i].position) = i;
    }
    int counts[6] = {};
    for (const SampledRow& row : run(device, logits, rows).rows) ++counts[row.token];
    for (int i = 0; i < 6; ++i) {
      const double sigma = std::sqrt(kSamples * probabilities[i] * (1 - probabilities[i]));
      EXPECT_NEAR(counts[i], kSamples * probabilities[i], 5 * sigma) << "token " << i << ", part " << part;
    }
  }
}

// Chi-square test of filtered samples: kept tokens have their probabilities divided by the sum of the kept ones.
TEST_P(SampleTest, CutSamplesHaveTheirProbabilities) {
  constexpr int kVocab = 300, kSamples = 8000;
  Owned logits(&kFloat32, {1, kVocab});
  for (int i = 0; i < kVocab; ++i) logits.row(0)[i] = -0.25f * static_cast<float>(i % 50) - (i < 50 ? 0.0f : 14.0f);
  // The first ids in this order are kept. The weights are exp(-i / 4) for 50 tokens; the other weights are negligible.
  const auto expect_first = [&](SampleRow row, int kept) {
    std::vector<SampleRow> rows(kSamples, row);
    for (uint32_t i = 0; i < kSamples; ++i) rows[i].position = i;
    std::vector<int> counts(kVocab);
    for (const SampledRow& one : run(device, logits, rows).rows) ++counts[static_cast<size_t>(one.token)];
    double total = 0, chi = 0;
    for (int i = 0; i < kept; ++i) total += std::exp(-0.25 * i);
    for (int i = 0; i < kept; ++i) {
      const double want = kSamples * std::exp(-0.25 * i) / total;
      chi += (counts[i] - want) * (counts[i] - want) / want;
    }
    for (int i = kept; i < kVocab; ++i) EXPECT_EQ(counts[i], 0) << i;
    EXPECT_LT(chi, kept + 5 * std::sqrt(2.0 * kept));
  };
  expect_first({.scale = 1.0f, .count = 10}, 10);
  expect_first({.scale = 1.0f, .mass = 1 - 1.001 * std::exp(-0.25 * 9)}, 9);
  expect_first({.scale = 1.0f, .least = 0.2f}, 7);  // exp(-6 / 4) = 0.22
  expect_first({.scale = 1.0f, .count = 12, .least = 0.2f}, 7);
}

TEST_P(SampleTest, SampledTokensAreTakenWhereTheyAreAskedFor) {
  std::uniform_int_distribution<int32_t> token(-1, 100000);
  for (const int rows : {1, 3, 256, 700}) {
    const int samples = rows / 2 + 1;
    Owned sampled(&kUInt8, {samples * static_cast<int64_t>(sizeof(SampledRow))}), tokens(&kInt32, {rows});
    std::vector<int32_t, TestAllocator<int32_t>> from(rows);
    std::vector<int32_t> expected(rows);
    for (int i = 0; i < samples; ++i) sampled->as<SampledRow>()[i] = {.token = token(random)};
    for (int i = 0; i < rows; ++i) {
      from[i] = std::uniform_int_distribution(-1, samples - 1)(random);
      const int32_t before = tokens->as<int32_t>()[i] = token(random);
      expected[i] = from[i] < 0 ? before : std::max(sampled->as<SampledRow>()[from[i]].token, 0);
    }
    feed_sampled(device.ctx, {.tokens = tokens, .sampled = sampled, .from = std::span<const int32_t>(from)});
    EXPECT_THAT(std::span(tokens->as<int32_t>(), rows), testing::ElementsAreArray(expected));
  }
}

SLUICE_FOR_EVERY_KERNEL(SampleTest, &OpTable::sample, &OpTable::feed_sampled);

}  // namespace
}  // namespace sluice::ops::sample_test
