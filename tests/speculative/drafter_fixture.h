// What tests of drafters with a model share: a step with drafts to complete, and a model that continues a token with
// the next number.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "speculative/model_drafter.h"

namespace sluice {

class DrafterFixture : public ::testing::Test {
 protected:
  static constexpr int kVocab = 64, kBlock = 4, kBlocksOfSequence = 4;

  DrafterFixture()
      : pool_(1, /*pin=*/false),
        queue_(ops::select_backend("reference").open(0).make_queue(pool_)),
        arena_(1 << 20),
        context_(*queue_, arena_),
        logits_(sizeof(float) * 8 * kVocab) {
    options_.tokens = 3;
    step_.query_start = {0};
    step_.block_table_stride = kBlocksOfSequence;
  }

  DraftModelRunner runner() {
    return {.run = [this](const Batch& batch, const Tensor&) { return forward(batch); },
            .context = &context_,
            .vocab = kVocab,
            .most_rows = 8,
            .block_size = kBlock,
            .groups = groups_};
  }

  // Adds a sequence of `length` tokens to the step: the last ones before `drafted` drafted tokens, with all its blocks.
  void add(const std::vector<TokenId>& tokens, int length, int drafted, std::vector<int32_t> blocks,
           TokenId unseen = -1) {
    parts_.push_back({.drafted = drafted, .first_task = static_cast<int>(tasks_.size()), .unseen = unseen});
    for (int i = 0; drafted > 0 && i <= drafted; ++i) {
      tasks_.push_back(
          {.row = static_cast<int>(tasks_.size()), .params = &params_, .end_tokens = ends_, .position = i});
    }
    step_.tokens.insert(step_.tokens.end(), tokens.begin(), tokens.end());
    step_.tokens.insert(step_.tokens.end(), static_cast<size_t>(drafted), kTokenToCome);
    const int rows = static_cast<int>(tokens.size()) + drafted;
    for (int i = length - rows; i < length; ++i) step_.positions.push_back(i);
    step_.query_start.push_back(step_.size());
    step_.kv_len.push_back(length);
    step_.prompt_len.push_back(1);
    blocks.resize(kBlocksOfSequence, -1);
    step_.block_table.insert(step_.block_table.end(), blocks.begin(), blocks.end());
  }

  void complete(Drafter& drafter) {
    DraftStep step{.batch = step_, .tasks = tasks_, .parts = parts_, .sampled = {}};
    drafter.complete(step);
  }

  SpeculativeOptions options_;
  std::vector<BlockGroup> groups_{{}};
  float margin_ = 20;  // of the next number's logit over the others
  SamplingParams params_{.temperature = 0};
  std::vector<TokenId> ends_;
  Batch step_;
  std::vector<SampleTask> tasks_;
  std::vector<DraftPart> parts_;
  std::vector<Batch> batches_;  // those that the drafter's model computed

 private:
  Tensor forward(const Batch& batch) {
    batches_.push_back(batch);
    Tensor logits(logits_.data(), &kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), kVocab});
    for (size_t row = 0; row < batch.sample_rows.size(); ++row) {
      float* own = logits.f32() + row * kVocab;
      std::fill_n(own, kVocab, 0.0f);
      own[(batch.tokens[static_cast<size_t>(batch.sample_rows[row])] + 1) % kVocab] = margin_;
    }
    return logits;
  }

  ThreadPool pool_;
  std::unique_ptr<ops::Queue> queue_;
  Arena arena_;
  ops::Ctx context_;
  Buffer logits_;
};

}  // namespace sluice
