// A scheduler of short steps and small blocks.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "scheduler/requests.h"
#include "scheduler/scheduler.h"

namespace sluice {

// Steps of up to six tokens, and blocks of four. Every sampled token is 7.
class SmallSteps : public ::testing::Test {
 protected:
  SmallSteps() {
    options_.max_num_seqs = 4;
    options_.max_num_batched_tokens = 6;
    options_.max_logit_rows = 16;
    options_.max_model_len = 64;
    options_.block_size = 4;
    options_.blocks = 64;
  }

  // Made at its first use, so that a test can change the options before.
  Scheduler& scheduler() {
    if (!scheduler_) scheduler_.emplace(options_);
    return *scheduler_;
  }
  void add(Request r, RequestAdapter adapter = {}) {
    ASSERT_TRUE(scheduler().queue_limit().try_enter(r.n, static_cast<int64_t>(r.prompt.size())));
    scheduler().add(next_id_++, std::move(r), nullptr, std::move(adapter));
  }
  Batch step() {
    ScheduledBatch next = scheduler().next();
    Batch batch = next.batch;
    if (batch.empty()) return batch;
    std::vector<SampleResult> samples(next.tasks.size());
    for (SampleResult& sample : samples) sample.token = 7;
    std::vector<StepResult> all = step_results(next, samples);
    scheduler().commit(std::move(next), all);
    return batch;
  }
  // Runs the request to its end. Returns how many tokens of its prompt were in the cache.
  int cached_tokens(Request r, RequestAdapter adapter = {}) {
    add(std::move(r), std::move(adapter));
    while (!scheduler().idle()) step();
    return scheduler().drain().back().usage.cached_tokens;
  }

  SchedulerOptions options_;
  std::optional<Scheduler> scheduler_;
  RequestId next_id_ = 1;
};

}  // namespace sluice
