// Makes batches from the batch of the step.
#include "speculative/model_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace sluice {

ModelDrafter::ModelDrafter(const SpeculativeOptions& options, DraftModelRunner model)
    : options_(options), model_(std::move(model)), sampler_(model_.context->queue, model_.most_rows, model_.vocab) {}

void ModelDrafter::begin(std::span<const TokenId> /*text*/, int most, std::vector<TokenId>& draft) {
  draft.assign(static_cast<size_t>(std::min(most, options_.tokens)), kTokenToCome);
}

void ModelDrafter::complete(DraftStep& step) {
  clear_batch();
  open_.clear();
  take_known(step);
  if (batch_.empty()) return;
  for (Tensor sampled = step.sampled;; sampled = {}) {
    const Tensor logits = model_.run(batch_, sampled);
    if (open_.empty()) break;
    sampler_.begin(*model_.context, logits, tasks_);
    const std::vector<SampleResult> results = sampler_.finish(*model_.context, tasks_);
    size_t kept = 0;
    for (size_t i = 0; i < open_.size(); ++i) {
      Open draft = open_[i];
      const bool goes_on = place(step, draft, results[i]);
      step.parts[static_cast<size_t>(draft.part)].drafted = draft.done >= options_.least_tokens ? draft.done : 0;
      if (goes_on) open_[kept++] = draft;
    }
    open_.resize(kept);
    if (open_.empty()) break;
    take_last(step);
  }
}

// Puts a sampled token into the draft. Returns whether another one is to follow.
bool ModelDrafter::place(const DraftStep& step, Open& draft, const SampleResult& result) {
  if (!result.error.empty()) return false;
  if (options_.least_probability > 0 && std::exp(result.logprobs.token.logprob) < options_.least_probability)
    return false;
  step.batch.tokens[draft.next++] = result.token;
  ++draft.done;
  const std::span<const TokenId> ends = step.tasks[step.parts[draft.part].first_task].end_tokens;
  return draft.done < draft.most && std::ranges::find(ends, result.token) == ends.end();
}

void ModelDrafter::clear_batch() {
  for (std::vector<int32_t>* list :
       {&batch_.tokens, &batch_.from_sample, &batch_.positions, &batch_.slots, &batch_.query_start, &batch_.kv_len,
        &batch_.prompt_len, &batch_.block_table, &batch_.sample_rows}) {
    list->clear();
  }
  batch_.query_start.push_back(0);
  sequences_.clear();
  tasks_.clear();
}

void ModelDrafter::add_row(int32_t token, int32_t from_sample, int32_t position) {
  batch_.tokens.push_back(token);
  batch_.from_sample.push_back(from_sample);
  batch_.positions.push_back(position);
}

void ModelDrafter::end_sequence(int index, int kv_len, int prompt_len) {
  sequences_.push_back(index);
  batch_.query_start.push_back(batch_.size());
  batch_.kv_len.push_back(kv_len);
  batch_.prompt_len.push_back(prompt_len);
}

void ModelDrafter::open(const DraftStep& step, size_t part) {
  const int end = step.batch.query_start[part + 1] - step.parts[part].drafted;
  open_.push_back({.part = static_cast<int>(part),
                   .most = step.parts[part].drafted,
                   .position = batch_.positions.back(),
                   .next = static_cast<size_t>(end)});
  batch_.sample_rows.push_back(batch_.size() - 1);
  add_task(step, open_.back());
}

void ModelDrafter::place_rows(const Batch& step) {
  const bool known = std::ranges::all_of(batch_.from_sample, [](int32_t index) { return index < 0; });
  if (known) batch_.from_sample.clear();
  batch_.block_table_stride = step.block_table_stride;
  const auto stride = static_cast<size_t>(step.block_table_stride);
  for (size_t group = 0; group < model_.groups.size(); ++group) {
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const auto sequence = static_cast<size_t>(sequences_[s]);
      for (int row = batch_.query_start[s]; row < batch_.query_start[s + 1]; ++row) {
        batch_.slots.push_back(slot(step, group, sequence, batch_.positions[row]));
      }
      const int32_t* blocks = step.block_table.data() + (group * step.kv_len.size() + sequence) * stride;
      batch_.block_table.insert(batch_.block_table.end(), blocks, blocks + stride);
    }
  }
}

// The last token of every draft that goes on.
void ModelDrafter::take_last(const DraftStep& step) {
  const Batch& from = step.batch;
  clear_batch();
  for (const Open& draft : open_) {
    add_row(from.tokens[draft.next - 1], -1, draft.position + draft.done);
    batch_.sample_rows.push_back(batch_.size() - 1);
    end_sequence(draft.part, draft.position + draft.done + 1, from.prompt_len[draft.part]);
    add_task(step, draft);
  }
  place_rows(from);
}

// The task samples like that of the step which the drafted token has to agree with.
void ModelDrafter::add_task(const DraftStep& step, const Open& draft) {
  SampleTask& task = tasks_.emplace_back(step.tasks[step.parts[draft.part].first_task + draft.done]);
  task.row = static_cast<int>(tasks_.size()) - 1;
  task.logprobs = options_.least_probability > 0 ? 0 : -1;
}

// Where the keys and values of a token go (Batch::slots).
int32_t ModelDrafter::slot(const Batch& step, size_t group, size_t sequence, int position) const {
  const auto at = (group * step.kv_len.size() + sequence) * static_cast<size_t>(step.block_table_stride);
  const int32_t block = step.block_table[at + static_cast<size_t>(position / model_.block_size)];
  return block * model_.block_size + position % model_.block_size;
}

}  // namespace sluice
