// Says to the drafter what a step has of each sequence, and to the scheduler what became of the drafts.
#include "engine/drafting.h"

namespace sluice {

Drafting::Drafting(LoadedModel& loaded, Runner& runner) : runner_(runner) {
  const SpeculativeOptions& options = *loaded.plan.drafts;
  if (loaded.draft == nullptr) {
    drafter_ = make_drafter(options);
    return;
  }
  draft_runner_ = std::make_unique<Runner>(*loaded.draft, Runner::Role::kDraftModel);
  const LoadPlan& plan = loaded.draft->plan;
  const auto run = [this](const Batch& batch, const Tensor& sampled) {
    return draft_runner_->run(batch, sampled).logits;
  };
  drafter_ = make_drafter(options, {.run = run,
                                    .context = &draft_runner_->context(),
                                    .vocab = plan.shape.vocab,
                                    .most_rows = plan.logit_rows,
                                    .block_size = plan.block_size,
                                    .groups = plan.kv.groups});
}

void Drafting::observe(const Batch& step, const Tensor& sampled) {
  if (drafter_->reads_hidden()) drafter_->observe(step, sampled);
}

void Drafting::prepare() {
  if (draft_runner_ != nullptr) draft_runner_->prepare();
}

bool Drafting::prepare_more() { return draft_runner_ != nullptr && draft_runner_->prepare_more(); }

DraftSource Drafting::source() {
  return [this](const Sequence& sequence, int most, std::vector<TokenId>& draft) {
    drafter_->begin(sequence.tokens, most, draft);
  };
}

void Drafting::complete(Scheduler& scheduler, ScheduledBatch& step, const Tensor& sampled) {
  if (step.batch.empty()) return;
  step.batch.wants_hidden |= drafter_->reads_hidden();
  if (draft_runner_ != nullptr) runner_.make_copies(step.batch);  // the draft model's keys and values are among them
  parts_.clear();
  for (const ScheduledBatch::Part& part : step.parts) {
    const TokenId before = part.after_unseen ? part.sequence->tokens[static_cast<size_t>(part.first) - 1] : -1;
    parts_.push_back({.drafted = part.drafted(), .first_task = part.first_task + part.scores, .unseen = before});
  }
  DraftStep draft_step{.batch = step.batch, .tasks = step.tasks, .parts = parts_, .sampled = sampled};
  drafter_->complete(draft_step);
  lengths_.clear();
  for (const DraftPart& part : parts_) lengths_.push_back(part.drafted);
  scheduler.shorten_drafts(step, lengths_);
}

}  // namespace sluice
