// Tests models whose layers have different windows, blocks beside states, or an indexer, run as in the engine:
// scheduler, block pool and kernels together. Blocks that slide out of a window are reused by others, and preempted
// sequences continue from cached prefixes. Every token must be the one that the model gives for the whole text at once.
// The same for models whose ranks divide the keys of a sequence: their tokens must be those of one process.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "sampling/sampler.h"
#include "scheduler/scheduler.h"
#include "support/hashed_weights.h"
#include "support/temp_folder.h"

namespace sluice::windows_test {
namespace {

struct Case {
  std::string name;
  int ranks = 1, keys = 1, run = 1;  // `keys` of the ranks divide the keys of a sequence, in runs of so many tokens
  std::string cache = "auto";
};

class Windows : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    if (c.ranks > most_ranks()) GTEST_SKIP() << c.ranks << " ranks";
    testing::write_hashed_checkpoint((arch_goldens() / c.name).string(), folder_.path());
    options_.model = folder_.path();
    options_.dtype = "float32";
    options_.kv_cache_memory_bytes = 64 << 20;
    options_.block_size = 8;
    options_.max_num_seqs = 8;
    options_.max_num_batched_tokens = 24;
    options_.kv_cache_dtype = c.cache;
    options_.tensor_parallel_size = c.ranks;
    options_.decode_context_parallel_size = c.keys;
    options_.cp_kv_cache_interleave_size = c.run;
    // The tensor cores read caches of fewer bits with a rounding that depends on the batch.
    if (c.cache != "auto") options_.backend = ops::select_backend("", /*deterministic=*/true).name;
    group_ = std::make_unique<RankGroup>(options_);
    loaded_ = &group_->model(), runner_ = &group_->runner();
  }

  SchedulerOptions scheduler_options() const {
    const LoadPlan& plan = loaded_->plan;
    SchedulerOptions o;
    o.max_num_seqs = plan.max_num_seqs;
    o.max_num_batched_tokens = plan.step_tokens;
    o.max_logit_rows = plan.logit_rows;
    o.max_model_len = kLongest;
    o.block_size = plan.block_size;
    o.groups = plan.kv.groups;
    o.state_slots = plan.state_slots;
    o.blocks = peak_blocks(kLongest, o.block_size, o.groups, o.max_num_batched_tokens);  // for one sequence
    return o;
  }

  // Returns greedy answers; some requests arrive while others run.
  std::vector<std::vector<TokenId>> answers(Scheduler& scheduler, const std::vector<Request>& requests) {
    std::vector<std::vector<TokenId>> texts;
    Sampler sampler(*loaded_->plan.queue, loaded_->plan.logit_rows, loaded_->plan.shape.vocab);
    size_t arrived = 0;
    for (int step = 0; arrived < requests.size() || !scheduler.idle(); ++step) {
      if (arrived < requests.size() && (step % 3 == 0 || scheduler.idle())) {
        EXPECT_TRUE(scheduler.queue_limit().try_enter(requests[arrived].n,
                                                      static_cast<int64_t>(requests[arrived].prompt.size())));
        texts.push_back(requests[arrived].prompt);
        scheduler.add(arrived, requests[arrived]);
        ++arrived;
      }
      ScheduledBatch scheduled = scheduler.next();
      if (scheduled.batch.empty()) continue;
      sampler.begin(runner_->context(), runner_->run(scheduled.batch).logits, scheduled.tasks);
      std::vector<SampleResult> samples = sampler.finish(runner_->context(), scheduled.tasks);
      std::vector<StepResult> results = step_results(scheduled, samples);
      scheduler.commit(std::move(scheduled), results);
      for (const SequenceEvent& event : scheduler.drain()) {
        for (const TokenId token : event.tokens) texts[event.request].push_back(token);
      }
    }
    return texts;
  }

  std::vector<Request> requests() const {
    std::mt19937 random(7);
    const auto word = [&] { return static_cast<TokenId>(random() % loaded_->plan.shape.vocab); };
    std::vector<TokenId> common;
    for (int i = 0; i < 90; ++i) common.push_back(word());
    std::vector<Request> all;
    for (int i = 0; i < 10; ++i) {
      Request r;
      r.prompt.assign(common.begin(), common.begin() + (i % 3 == 0 ? 1 : 20 + 7 * i));
      for (int own = 3 + i * 5 % 13; own > 0; --own) r.prompt.push_back(word());
      r.sampling.temperature = 0;
      r.sampling.max_tokens = std::min(kLongest - static_cast<int>(r.prompt.size()), 24 + i * 11 % 40);
      all.push_back(std::move(r));
    }
    return all;
  }

  static constexpr int kLongest = 160;
  testing::TempFolder folder_;
  EngineOptions options_;
  std::unique_ptr<RankGroup> group_;
  LoadedModel* loaded_ = nullptr;
  Runner* runner_ = nullptr;
};

TEST_P(Windows, EveryTokenIsThatOfTheWholeTextAtOnce) {
  const LoadPlan& plan = loaded_->plan;
  ASSERT_TRUE(plan.kv.groups.size() > 1 || plan.state_slots > 0 || plan.shape.selected > 0 || GetParam().keys > 1);
  const std::vector<Request> asked = requests();
  Scheduler scheduler(scheduler_options());
  const auto texts = answers(scheduler, asked);
  EXPECT_GT(scheduler.stats().preemptions, 0u);
  EXPECT_GT(scheduler.block_pool().stats().hit_tokens, 0u);
  // Caches of fewer bits are read by kernels whose rounding depends on where their tiles begin.
  const bool alone = GetParam().keys > 1 && GetParam().cache == "auto";
  if (alone) {
    options_.tensor_parallel_size = options_.decode_context_parallel_size = 1;
    group_.reset();
    group_ = std::make_unique<RankGroup>(options_);
    loaded_ = &group_->model(), runner_ = &group_->runner();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const int prompt = static_cast<int>(asked[i].prompt.size());
    ASSERT_EQ(static_cast<int>(texts[i].size()), prompt + *asked[i].sampling.max_tokens);
    for_each_logits(*runner_, loaded_->plan, loaded_->plan.block_size, texts[i], options_.max_num_seqs,
                    [&](int position, std::span<const float> row) {
                      if (position + 1 < prompt || position + 1 == static_cast<int>(texts[i].size())) return;
                      const auto best = std::ranges::max_element(row) - row.begin();
                      ASSERT_EQ(texts[i][position + 1], best) << "text " << i << ", position " << position + 1;
                    });
  }
}

// Whatever the memory: a plan has enough blocks for its longest sequence, or there is no plan.
TEST(WindowsPlan, OneSequenceAlwaysFits) {
  for (const char* name : {"mistral", "gemma3_text", "gpt_oss", "gemma4_text-shared"}) {
    const testing::TempFolder folder;
    testing::write_hashed_checkpoint((arch_goldens() / name).string(), folder.path());
    ThreadPool pool(1);
    EngineOptions options;
    options.model = folder.path();
    options.max_num_seqs = 1;
    const auto check = [&] {
      const LoadPlan plan = plan_load(options, pool);
      EXPECT_GE(plan.blocks, peak_blocks(plan.max_model_len, plan.block_size, plan.kv.groups, plan.step_tokens))
          << name;
      return plan;
    };
    const LoadPlan most = check();
    EXPECT_EQ(most.max_model_len, most.shape.max_positions);
    int shorter = 0;
    for (int blocks = 1; blocks <= most.blocks; ++blocks) {
      options.kv_cache_memory_bytes = static_cast<int64_t>(most.kv.block_bytes()) * blocks;
      try {
        const LoadPlan plan = check();
        EXPECT_LE(plan.blocks, blocks);
        EXPECT_GE(plan.max_model_len, plan.block_size);
        shorter += plan.max_model_len < most.max_model_len ? 1 : 0;
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ErrorCode::kOutOfMemory);
        EXPECT_LT(blocks, static_cast<int>(most.kv.groups.size()));
      }
    }
    EXPECT_GT(shorter, 0) << name;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"cohere2", "deepseek_v4-1", "deepseek_v4-2", "exaone4", "gemma2", "gemma3_text",
                           "gemma3n_text-1", "gemma4_text-experts", "gemma4_text-shared", "gpt_neo", "gpt_oss",
                           "llama4_text-1", "olmo3", "qwen2-window", "vaultgemma-1"}) {
    all.push_back({.name = name});
  }
  for (const char* name : {"deepseek_v32-selected", "glm_moe_dsa-selected"}) {
    all.push_back({.name = name}), all.push_back({.name = name, .ranks = 2});
    for (const char* cache : {"int8", "bfloat16", "fp8"}) all.push_back({.name = name, .cache = cache});
  }
  const Case divided[] = {
      {.name = "deepseek_v2", .ranks = 2, .keys = 2},
      {.name = "deepseek_v2", .ranks = 4, .keys = 4, .run = 8},
      {.name = "deepseek_v2", .ranks = 4, .keys = 2, .run = 2, .cache = "int8"},
      {.name = "deepseek_v3", .ranks = 2, .keys = 2, .run = 8, .cache = "bfloat16"},
      {.name = "kimi_linear-1", .ranks = 4, .keys = 4, .run = 4},
      {.name = "gemma3_text", .ranks = 4, .keys = 2},
      {.name = "gemma4_text-shared", .ranks = 4, .keys = 2, .run = 8},
      {.name = "gpt_oss", .ranks = 4, .keys = 2, .run = 8},
      {.name = "gpt_oss", .ranks = 4, .keys = 2, .cache = "bfloat16"},
      {.name = "mistral", .ranks = 4, .keys = 2, .run = 4},
      {.name = "mistral", .ranks = 4, .keys = 2, .cache = "int8"},
      {.name = "qwen3_next", .ranks = 4, .keys = 2},
  };
  all.insert(all.end(), std::begin(divided), std::end(divided));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, Windows, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  const std::string division = c.ranks == 1 ? "" : fmt::format("_{}x{}_{}", c.ranks, c.keys, c.run);
  return test_name(c.name + division + (c.ranks > 1 || c.cache != "auto" ? "_" + c.cache : ""), "best");
});

}  // namespace
}  // namespace sluice::windows_test
