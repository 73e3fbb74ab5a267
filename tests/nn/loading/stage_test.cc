// The division of layers between the stages of a pipeline, compared with all divisions.
#include "nn/loading/stage.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

namespace sluice::stage_test {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The cost of the most expensive stage in the best division of the layers from `begin` on.
int64_t best(std::span<const int64_t> costs, int64_t last, const std::vector<bool>& cuts, size_t begin, int stages) {
  int64_t sum = 0, least = kNever;
  for (size_t end = begin + 1; end <= costs.size(); ++end) {
    sum += costs[end - 1];
    if (stages == 1) {
      if (end == costs.size()) least = sum + last;
    } else if (end < costs.size() && cuts[end]) {
      const int64_t rest = best(costs, last, cuts, end, stages - 1);
      if (rest != kNever) least = std::min(least, std::max(sum, rest));
    }
  }
  return least;
}

TEST(DivideLayers, IsTheBestDivision) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> costs(1 + random() % 9);
    std::vector<bool> cuts(costs.size());
    for (size_t i = 0; i < costs.size(); ++i)
      costs[i] = static_cast<int64_t>(random() % 10), cuts[i] = random() % 4 > 0;
    const auto last = static_cast<int64_t>(random() % 20);
    const int stages = static_cast<int>(1 + random() % 5);
    const int64_t want = best(costs, last, cuts, 0, stages);
    const std::vector<int> bounds = divide_layers(costs, last, cuts, stages);
    if (want == kNever) {
      EXPECT_TRUE(bounds.empty());
      continue;
    }
    ASSERT_EQ(bounds.size(), static_cast<size_t>(stages) + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), static_cast<int>(costs.size()));
    int64_t most = 0;
    for (int s = 0; s < stages; ++s) {
      ASSERT_LT(bounds[s], bounds[s + 1]);
      EXPECT_TRUE(s == 0 || cuts[bounds[s]]);
      int64_t sum = s == stages - 1 ? last : 0;
      for (int i = bounds[s]; i < bounds[s + 1]; ++i) sum += costs[i];
      most = std::max(most, sum);
    }
    EXPECT_EQ(most, want);
  }
}

const Checkpoint kNoFile;

// Layers of one size that divide_layers may cut anywhere, and whose weights each of them uses.
std::vector<PipelineStage> stages_of(const std::vector<int>& weights_of, int stages) {
  ThreadPool pool(1);
  ops::Queue queue(ops::select_backend("reference").open(0), pool);
  LoadContext context{.checkpoint = kNoFile, .queue = queue};
  std::vector<PipelineStage> all;
  for (int rank = 0; rank < stages; ++rank) {
    context.stage = {rank, stages};
    all.emplace_back(context, StagedLayers{.costs = std::vector<int64_t>(weights_of.size(), 1),
                                           .cuts = std::vector<bool>(weights_of.size(), true),
                                           .weights_of = weights_of});
  }
  return all;
}

// Hands a step from stage to stage. Returns the layers in the order in which they run.
std::vector<int> run(const std::vector<PipelineStage>& stages) {
  std::vector<size_t> next_pass(stages.size(), 0);
  std::vector<int> layers;
  for (size_t stage = 0;; stage = (stage + 1) % stages.size()) {
    const PipelineStage::Pass& pass = stages[stage].passes().at(next_pass[stage]++);
    EXPECT_EQ(pass.first, layers.empty());
    for (int i = pass.begin; i < pass.end; ++i) {
      EXPECT_TRUE(stages[stage].holds(i)) << "layer " << i << " in stage " << stage;
      layers.push_back(i);
    }
    if (pass.last) break;
  }
  for (size_t stage = 0; stage < stages.size(); ++stage) EXPECT_EQ(next_pass[stage], stages[stage].passes().size());
  return layers;
}

TEST(PipelineStage, PassesRunAllLayersInOrder) {
  const std::vector<int> plain{0, 1, 2, 3, 4, 5}, loops{0, 1, 2, 0, 1, 2, 0, 1, 2};
  const std::vector<int> two_stacks{0, 1, 0, 1, 4, 5, 0, 1, 0, 1, 4, 5};  // a stack runs twice, then the other one
  for (const std::vector<int>& weights_of : {plain, loops, two_stacks}) {
    std::vector<int> all(weights_of.size());
    std::iota(all.begin(), all.end(), 0);
    for (int count = 1; count <= 3; ++count) {
      const std::vector<PipelineStage> stages = stages_of(weights_of, count);
      EXPECT_EQ(run(stages), all) << count << " stages";
      EXPECT_TRUE(stages.front().first() && stages.back().last());
      for (const PipelineStage& stage : stages) {
        for (const int i : all) EXPECT_EQ(stage.holds(i), stage.holds(weights_of[i])) << "layer " << i;
      }
    }
  }
}

TEST(PipelineStage, LoopsMakePassesAndOtherModelsOne) {
  for (const PipelineStage& stage : stages_of({0, 1, 2, 3, 4, 5}, 3)) EXPECT_EQ(stage.passes().size(), 1u);
  for (const PipelineStage& stage : stages_of({0, 1, 2, 0, 1, 2, 0, 1, 2}, 3)) EXPECT_EQ(stage.passes().size(), 3u);
  // In two stacks, layer 1 is followed by layer 0 two stages away, so the stage between them hands the stream on.
  const std::vector<PipelineStage> stacks = stages_of({0, 1, 0, 1, 4, 5, 0, 1, 0, 1, 4, 5}, 3);
  EXPECT_EQ(std::ranges::count_if(stacks[2].passes(), [](const auto& pass) { return pass.begin == pass.end; }), 2);
}

TEST(PipelineStage, RefusesMoreStagesThanWeights) {
  try {
    stages_of({0, 1, 0, 1}, 3);
    FAIL() << "three stages";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "--pipeline-parallel-size 3: the 2 layers of this model can be divided into at most 2 stages");
  }
}

}  // namespace
}  // namespace sluice::stage_test
