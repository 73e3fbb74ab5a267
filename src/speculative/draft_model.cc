// Makes the draft model's batches from the batch of the step.
#include "speculative/draft_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr int kUsualTokens = 4;

void clear(Batch& batch) {
  for (std::vector<int32_t>* list :
       {&batch.tokens, &batch.from_sample, &batch.positions, &batch.slots, &batch.query_start, &batch.kv_len,
        &batch.prompt_len, &batch.block_table, &batch.sample_rows}) {
    list->clear();
  }
  batch.query_start.push_back(0);
}

// Ends the rows of a sequence.
void end_sequence(Batch& batch, int kv_len, int prompt_len) {
  batch.query_start.push_back(batch.size());
  batch.kv_len.push_back(kv_len);
  batch.prompt_len.push_back(prompt_len);
}

void complete_draft_model(SpeculativeOptions& o) {
  if (o.model.empty()) refuse_speculative_config("model is missing (expected the draft model's folder, file or name)");
  if (o.tokens == 0) o.tokens = kUsualTokens;
  if (o.least_tokens <= o.tokens) return;
  refuse_speculative_config(fmt::format("draft_n_min {} is above num_speculative_tokens {}", o.least_tokens, o.tokens));
}

const DraftMethod draft_model{.name = "draft_model",
                              .keys = {"model", "draft_p_min", "draft_n_min", "draft_tensor_parallel_size"},
                              .complete = complete_draft_model,
                              .make = [](const SpeculativeOptions& options, const DraftModelRunner& model) {
                                return std::unique_ptr<Drafter>(std::make_unique<DraftModel>(options, model));
                              }};
const Registry<DraftMethod> draft_model_registered{draft_model};

}  // namespace

DraftModel::DraftModel(const SpeculativeOptions& options, DraftModelRunner model)
    : options_(options), model_(std::move(model)), sampler_(model_.context->queue, model_.most_rows, model_.vocab) {}

void DraftModel::begin(std::span<const TokenId> /*text*/, int most, std::vector<TokenId>& draft) {
  draft.assign(static_cast<size_t>(std::min(most, options_.tokens)), kTokenToCome);
}

void DraftModel::complete(DraftStep& step) {
  take_known(step);
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
bool DraftModel::place(const DraftStep& step, Open& draft, const SampleResult& result) {
  if (!result.error.empty()) return false;
  if (options_.least_probability > 0 && std::exp(result.logprobs.token.logprob) < options_.least_probability)
    return false;
  step.batch.tokens[draft.next++] = result.token;
  ++draft.done;
  const std::span<const TokenId> ends = step.tasks[step.parts[draft.part].first_task].end_tokens;
  return draft.done < draft.most && std::ranges::find(ends, result.token) == ends.end();
}

// All tokens of the step that are known, and those that the draft model missed before. Adapters are left out: they
// change the model only.
void DraftModel::take_known(const DraftStep& step) {
  const Batch& from = step.batch;
  clear(batch_);
  tasks_.clear();
  open_.clear();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const DraftPart& part = step.parts[i];
    const int begin = from.query_start[i], end = from.query_start[i + 1] - part.drafted;
    const auto add = [&](int32_t token, int32_t from_sample, int32_t position) {
      batch_.tokens.push_back(token);
      batch_.from_sample.push_back(from_sample);
      batch_.positions.push_back(position);
    };
    if (part.unseen >= 0) add(part.unseen, -1, from.positions[begin] - 1);
    for (int row = begin; row < end; ++row) {
      add(from.tokens[row], from.from_sample.empty() ? -1 : from.from_sample[row], from.positions[row]);
    }
    end_sequence(batch_, from.kv_len[i] - part.drafted, from.prompt_len[i]);
    if (part.drafted == 0) continue;
    open_.push_back({.part = static_cast<int>(i),
                     .most = part.drafted,
                     .position = from.positions[end - 1],
                     .next = static_cast<size_t>(end)});
    batch_.sample_rows.push_back(batch_.size() - 1);
    add_task(step, open_.back());
  }
  if (from.from_sample.empty()) batch_.from_sample.clear();
  batch_.block_table = from.block_table;
  batch_.block_table_stride = from.block_table_stride;
  for (size_t group = 0; group < model_.groups.size(); ++group) {
    for (size_t i = 0; i < step.parts.size(); ++i) {
      for (int row = batch_.query_start[i]; row < batch_.query_start[i + 1]; ++row) {
        batch_.slots.push_back(slot(from, group, i, batch_.positions[row]));
      }
    }
  }
}

// The last token of every draft that goes on.
void DraftModel::take_last(const DraftStep& step) {
  const Batch& from = step.batch;
  clear(batch_);
  tasks_.clear();
  for (const Open& draft : open_) {
    batch_.tokens.push_back(from.tokens[draft.next - 1]);
    batch_.positions.push_back(draft.position + draft.done);
    batch_.sample_rows.push_back(batch_.size() - 1);
    end_sequence(batch_, draft.position + draft.done + 1, from.prompt_len[draft.part]);
    add_task(step, draft);
  }
  batch_.block_table_stride = from.block_table_stride;
  const auto stride = static_cast<size_t>(from.block_table_stride);
  for (size_t group = 0; group < model_.groups.size(); ++group) {
    for (const Open& draft : open_) {
      const auto sequence = static_cast<size_t>(draft.part);
      batch_.slots.push_back(slot(from, group, sequence, draft.position + draft.done));
      const int32_t* row = from.block_table.data() + (group * from.kv_len.size() + sequence) * stride;
      batch_.block_table.insert(batch_.block_table.end(), row, row + stride);
    }
  }
}

// The task samples like that of the step which the drafted token has to agree with.
void DraftModel::add_task(const DraftStep& step, const Open& draft) {
  SampleTask& task = tasks_.emplace_back(step.tasks[step.parts[draft.part].first_task + draft.done]);
  task.row = static_cast<int>(tasks_.size()) - 1;
  task.logprobs = options_.least_probability > 0 ? 0 : -1;
}

// Where the keys and values of a token go (Batch::slots).
int32_t DraftModel::slot(const Batch& step, size_t group, size_t sequence, int position) const {
  const auto at = (group * step.kv_len.size() + sequence) * static_cast<size_t>(step.block_table_stride);
  const int32_t block = step.block_table[at + static_cast<size_t>(position / model_.block_size)];
  return block * model_.block_size + position % model_.block_size;
}

}  // namespace sluice
