// Memory of a step, and which sampled tokens count.
#include "scheduler/scheduled_batch.h"

#include "base/check.h"

namespace sluice {
namespace {

// How many of the tokens sampled in a verification are accepted. `draft` are the tokens that were guessed.
size_t accepted_tokens(std::span<const TokenId> draft, std::span<const SampleResult> sampled) {
  size_t accepted = 1;
  while (accepted <= draft.size() && sampled[accepted - 1].error.empty() &&
         sampled[accepted - 1].token == draft[accepted - 1]) {
    ++accepted;
  }
  return accepted;
}

}  // namespace

void ScheduledBatch::clear() {
  for (std::vector<int32_t>* list : {&batch.tokens, &batch.from_sample, &batch.positions, &batch.types, &batch.slots,
                                     &batch.query_start, &batch.kv_len, &batch.prompt_len, &batch.block_table,
                                     &batch.sample_rows, &batch.state_slots, &batch.adapters, &batch.sample_adapters}) {
    list->clear();
  }
  batch.copies.clear();
  batch.state_copies.clear();
  tasks.clear();
  parts.clear();
  number = set = 0;
}

std::vector<StepResult> step_results(const ScheduledBatch& step, std::span<SampleResult> results) {
  CHECK(results.size() == step.tasks.size(), "{} results for {} tasks", results.size(), step.tasks.size());
  std::vector<StepResult> all;
  all.reserve(step.parts.size());
  for (const ScheduledBatch::Part& part : step.parts) {
    const auto samples = results.subspan(part.first_task + part.scores, part.samples);
    size_t accepted = samples.size();
    if (part.outputs == Outputs::kVerify) {
      const int first_drafted = step.batch.query_start[all.size()] + 1;
      accepted = accepted_tokens(std::span(step.batch.tokens).subspan(first_drafted, part.samples - 1), samples);
    }
    all.push_back({.scores = results.subspan(part.first_task, part.scores), .accepted = samples.first(accepted)});
  }
  return all;
}

}  // namespace sluice
