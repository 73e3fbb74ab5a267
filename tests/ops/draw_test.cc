// Drawing tokens where logits lie: the draw and its noise against the reference, candidates against their definition.
#include <gtest/gtest.h>

#include <set>

#include "ops/draw.h"
#include "ops/testing.h"

namespace sluice::ops {
namespace {

class DrawTest : public OpsTest {
 protected:
  struct Result {
    std::vector<DrawnRow> rows;
    std::vector<std::set<int>> candidates;
    std::vector<std::vector<DrawCandidate>> top;  // by id
  };
  struct Changes {
    std::vector<DrawEdit> edits;
    std::vector<uint32_t> masks;
  };

  template <class T>
  static Owned copied(const std::vector<T>& values) {
    Owned bytes(&kUInt8, {static_cast<int64_t>(values.size() * sizeof(T))});
    if (!values.empty()) std::memcpy(bytes->data, values.data(), values.size() * sizeof(T));
    return bytes;
  }

  // `logits` are as before when it returns.
  Result run(Device& on, const Tensor& logits, const std::vector<DrawRow>& rows, const Changes& changes = {}) {
    const auto n = static_cast<int64_t>(rows.size());
    const Owned in = copied(rows), edits = copied(changes.edits), masks = copied(changes.masks);
    Owned out(&kUInt8, {n * static_cast<int64_t>(sizeof(DrawnRow))});
    Owned listed(&kUInt8, {n * kMostCandidates * static_cast<int64_t>(sizeof(DrawCandidate))}), top = listed;
    draw(
        on.ctx,
        {.logits = logits, .rows = in, .drawn = out, .candidates = listed, .edits = edits, .masks = masks, .top = top});
    Result result;
    for (int64_t i = 0; i < n; ++i) {
      const DrawnRow& row = out->as<DrawnRow>()[i];
      result.rows.push_back(row);
      result.candidates.emplace_back();
      for (int j = 0; j < row.candidates; ++j) {
        const DrawCandidate& c = listed->as<DrawCandidate>()[i * kMostCandidates + j];
        if (changes.edits.empty()) {
          EXPECT_EQ(c.logit, logits.f32()[rows[i].row * logits.row_stride + c.id]);
        }
        EXPECT_TRUE(result.candidates.back().insert(c.id).second) << "listed twice: " << c.id;
      }
      const DrawCandidate* begin = top->as<DrawCandidate>() + i * kMostCandidates;
      result.top.emplace_back(begin, begin + std::max(row.top, 0));
      std::ranges::sort(result.top.back(), {}, &DrawCandidate::id);
    }
    return result;
  }
};

TEST_P(DrawTest, MatchesTheReference) {
  for (const int vocab : {1, 3, 64, 1001, 5000}) {
    Owned logits(&kFloat32, {6, vocab}, 3);
    logits.fill(random, 4.0f);
    for (int i = 0; i < vocab; i += 7) logits.row(2)[i] = -INFINITY;
    logits.row(2)[0] = 1.0f;
    std::vector<DrawRow> rows;
    for (int row = 0; row < 6; ++row) {
      for (const float scale : {0.0f, 1.0f, 3.0f}) {
        rows.push_back(
            {.row = row, .scale = scale, .key = {7u, static_cast<uint32_t>(row)}, .choice = 1, .position = 9});
      }
    }
    const Result got = run(device, logits, rows), want = run(reference, logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(got.rows[i].token, want.rows[i].token) << "row " << rows[i].row << ", scale " << rows[i].scale;
      EXPECT_EQ(got.rows[i].max, want.rows[i].max);
      EXPECT_EQ(got.rows[i].candidates, 0);
    }
  }
}

TEST_P(DrawTest, CandidatesHoldWhatIsKept) {
  constexpr int kVocab = 3001;
  Owned logits(&kFloat32, {3, kVocab}, 1);
  logits.fill(random, 3.0f);
  for (int i = 1; i < kVocab; i += 5) logits.row(1)[i] = -INFINITY;
  std::vector<DrawRow> rows;
  for (int row = 0; row < 3; ++row) {
    rows.push_back({.row = row, .scale = 2.0f, .count = 40});
    rows.push_back({.row = row, .scale = 2.0f, .mass = 0.8f});
    rows.push_back({.row = row, .scale = 1.0f, .below = 2.5f});
  }
  const Result got = run(device, logits, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const DrawRow& row = rows[i];
    const float* from = logits.row(row.row);
    std::vector<int> order(kVocab);
    for (int id = 0; id < kVocab; ++id) order[id] = id;
    std::ranges::sort(order, [&](int a, int b) { return from[a] != from[b] ? from[a] > from[b] : a < b; });
    const float max = from[order[0]];
    double total = 0, held = 0;
    for (int id = 0; id < kVocab; ++id) total += std::exp(row.scale * (from[id] - max));
    EXPECT_EQ(got.rows[i].listed, 1);
    EXPECT_NEAR(got.rows[i].total, row.count > 0 || row.mass > 0 || row.below > 0 ? total : 0, total * 1e-5);
    const std::set<int>& listed = got.candidates[i];
    size_t must = 0;
    for (; must < order.size(); ++must) {
      const float logit = from[order[must]];
      if (row.count > 0 && must == static_cast<size_t>(row.count)) break;
      if (row.mass > 0 && held >= row.mass * (1 - 1e-5) * total) break;
      if (row.below > 0 && logit < max - row.below) break;
      EXPECT_TRUE(listed.contains(order[must])) << "draw " << i << " lacks number " << must;
      held += std::exp(row.scale * (logit - max));
    }
    EXPECT_LE(listed.size(), must + 64) << "draw " << i;
  }
}

TEST_P(DrawTest, RowsWithoutAnAnswer) {
  Owned logits(&kFloat32, {5, 999});
  logits.fill(random);
  logits.row(0)[500] = NAN;
  logits.row(1)[998] = INFINITY;
  for (int i = 0; i < 999; ++i) logits.row(2)[i] = -INFINITY, logits.row(3)[i] = 0.25f;
  std::vector<DrawRow> rows;
  for (int row = 0; row < 5; ++row) rows.push_back({.row = row, .scale = 1.0f, .count = 5});
  const Result got = run(device, logits, rows);
  for (int row = 0; row < 3; ++row) EXPECT_EQ(got.rows[row].token, -1) << row;
  EXPECT_EQ(got.rows[3].listed, 0) << "999 equal logits";
  EXPECT_EQ(got.rows[4].listed, 1);
}

// Random edits, masks and reports: tokens, lists and what log-probabilities are made of, and the logits stay.
TEST_P(DrawTest, EditedRowsMatchTheReference) {
  for (const int vocab : {1, 5, 63, 1000, 4097}) {
    constexpr int kRows = 8;
    Owned logits(&kFloat32, {kRows, vocab}, 3);
    logits.fill(random, 4.0f);
    for (int i = 0; i < vocab; i += 3) logits.row(1)[i] = -INFINITY;
    logits.row(1)[0] = 1.0f;
    const auto words = static_cast<size_t>(mask_words(vocab));
    Changes changes;
    std::vector<DrawRow> rows;
    for (int row = 0; row < kRows; ++row) {
      DrawRow asked{.row = row, .scale = row % 2 == 0 ? 0.0f : 1.5f, .key = {3u, static_cast<uint32_t>(row)}};
      if (row % 4 == 3) asked.count = 7;
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
      const DrawnRow &g = got.rows[row], &w = want.rows[row];
      EXPECT_EQ(g.token, w.token);
      if (w.token >= 0 && rows[row].target < 0) {
        EXPECT_EQ(g.max, w.max);
      }
      EXPECT_EQ(got.candidates[row], want.candidates[row]);
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

TEST_P(DrawTest, EditsAndMasksMayLeaveNothing) {
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
  std::vector<DrawRow> rows;
  rows.push_back({.row = 0, .first_edit = 0, .edits = kVocab});
  rows.push_back({.row = 1, .first_edit = kVocab, .edits = 1});
  rows.push_back({.row = 2, .first_edit = 0, .edits = kVocab});
  rows.push_back({.row = 3, .mask = 0});
  rows.push_back({.row = 4, .first_edit = kVocab + 1, .edits = 1, .mask = 0});  // the mask hides what is infinite
  const Result got = run(device, logits, rows, changes);
  EXPECT_EQ(got.rows[0].token, DrawnRow::kNoneLeft);
  EXPECT_EQ(got.rows[1].token, DrawnRow::kNoneLeft);
  EXPECT_EQ(got.rows[2].token, DrawnRow::kBadLogits);
  EXPECT_EQ(got.rows[3].token, DrawnRow::kBadLogits);
  EXPECT_EQ(got.rows[4].token, 1);
}

// The noise is that of a draw: frequencies are probabilities, and every part of the key matters.
TEST_P(DrawTest, FrequenciesAreProbabilities) {
  Owned logits(&kFloat32, {1, 6});
  const double probabilities[6] = {0.4, 0.05, 0.25, 0.1, 0.0, 0.2};
  for (int i = 0; i < 6; ++i) logits.row(0)[i] = static_cast<float>(0.5 * std::log(probabilities[i]));
  constexpr int kDraws = 12000;
  for (int part = 0; part < 3; ++part) {
    std::vector<DrawRow> rows(kDraws);
    for (uint32_t i = 0; i < kDraws; ++i) {
      rows[i] = {.row = 0, .scale = 2.0f};
      (part == 0 ? rows[i].key[1] : part == 1 ? rows[i].choice : rows[i].position) = i;
    }
    int counts[6] = {};
    for (const DrawnRow& row : run(device, logits, rows).rows) ++counts[row.token];
    for (int i = 0; i < 6; ++i) {
      const double sigma = std::sqrt(kDraws * probabilities[i] * (1 - probabilities[i]));
      EXPECT_NEAR(counts[i], kDraws * probabilities[i], 5 * sigma) << "token " << i << ", part " << part;
    }
  }
}

TEST_P(DrawTest, DrawnTokensAreTakenWhereTheyAreAskedFor) {
  std::uniform_int_distribution<int32_t> token(-1, 100000);
  for (const int rows : {1, 3, 256, 700}) {
    const int draws = rows / 2 + 1;
    Owned drawn(&kUInt8, {draws * static_cast<int64_t>(sizeof(DrawnRow))}), tokens(&kInt32, {rows});
    std::vector<int32_t, TestAllocator<int32_t>> from(rows);
    std::vector<int32_t> expected(rows);
    for (int i = 0; i < draws; ++i) drawn->as<DrawnRow>()[i] = {.token = token(random)};
    for (int i = 0; i < rows; ++i) {
      from[i] = std::uniform_int_distribution(-1, draws - 1)(random);
      const int32_t before = tokens->as<int32_t>()[i] = token(random);
      expected[i] = from[i] < 0 ? before : std::max(drawn->as<DrawnRow>()[from[i]].token, 0);
    }
    take_drawn(device.ctx, {.tokens = tokens, .drawn = drawn, .from = std::span<const int32_t>(from)});
    EXPECT_THAT(std::span(tokens->as<int32_t>(), rows), testing::ElementsAreArray(expected));
  }
}

SLUICE_FOR_EVERY_BACKEND(DrawTest);

}  // namespace
}  // namespace sluice::ops
