// Memory of a step, and which sampled tokens count.
#include "scheduler/scheduled_batch.h"

#include <numeric>

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
  batch.token_copies.clear();
  batch.state_copies.clear();
  batch.given.clear();
  tasks.clear();
  parts.clear();
  number = set = 0;
  batch.wants_hidden = false;
}

void ScheduledBatch::drop_drafted(std::span<const int> dropped) {
  std::vector<char> keeps_token(batch.tokens.size(), 1), keeps_row(batch.sample_rows.size(), 1),
      keeps_task(tasks.size(), 1);
  const size_t groups = batch.slots.size() / batch.tokens.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const int end = batch.query_start[i + 1], end_task = part.first_task + part.scores + part.samples;
    for (int n = 1; n <= dropped[i]; ++n) {
      keeps_token[end - n] = 0;
      keeps_task[end_task - n] = 0;
      keeps_row[tasks[end_task - n].row] = 0;  // a draft's tasks have rows of their own
    }
  }
  // `keep` is as long as the list, or a part of it that the list repeats.
  const auto compact = [](auto& list, const std::vector<char>& keep) {
    size_t to = 0;
    for (size_t from = 0; from < list.size(); ++from) {
      if (keep[from % keep.size()] != 0) list[to++] = list[from];
    }
    list.resize(to);
  };
  std::vector<int32_t> moved(keeps_token.size()), moved_row(keeps_row.size());  // where each is afterwards
  std::exclusive_scan(keeps_token.begin(), keeps_token.end(), moved.begin(), 0);
  std::exclusive_scan(keeps_row.begin(), keeps_row.end(), moved_row.begin(), 0);
  CHECK(batch.slots.size() == groups * keeps_token.size());
  compact(batch.slots, keeps_token);
  for (std::vector<int32_t>* list : {&batch.tokens, &batch.from_sample, &batch.positions, &batch.adapters}) {
    compact(*list, keeps_token);
  }
  for (std::vector<int32_t>* list : {&batch.sample_rows, &batch.sample_adapters}) compact(*list, keeps_row);
  for (int32_t& row : batch.sample_rows) row = moved[row];
  for (GivenRows& given : batch.given) given.row = moved[given.row];
  compact(tasks, keeps_task);
  for (SampleTask& task : tasks) task.row = moved_row[task.row];
  int tokens_before = 0, tasks_before = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    batch.query_start[i] -= tokens_before;
    part.first_task -= tasks_before;
    part.tokens -= dropped[i];
    part.samples -= dropped[i];
    batch.kv_len[i] -= dropped[i];
    if (part.outputs == Outputs::kVerify && part.samples == 1) part.outputs = Outputs::kToken;
    tokens_before += dropped[i];
    tasks_before += dropped[i];
  }
  batch.query_start.back() -= tokens_before;
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
    all.push_back(
        {.scores = results.subspan(part.first_task, part.scores), .accepted = samples.first(accepted), .vector = {}});
  }
  return all;
}

}  // namespace sluice
