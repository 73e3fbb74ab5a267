// Drafts of an engine's steps: the drafter, and its model or its layers that continue the model, if it has any.
#pragma once

#include <memory>
#include <vector>

#include "engine/load.h"
#include "engine/runner.h"
#include "scheduler/scheduler.h"
#include "speculative/drafter.h"

namespace sluice {

class Drafting {
 public:
  // The model's plan has drafts. `runner` runs the model.
  Drafting(LoadedModel& loaded, Runner& runner);

  // Capture graphs of decode steps; see Runner.
  void prepare();
  bool prepare_more();
  // For SchedulerOptions::draft.
  DraftSource source();
  // Completes the drafts of a step that the scheduler made, before the model runs it. `sampled`: see Runner::run.
  void complete(Scheduler& scheduler, ScheduledBatch& step, const Tensor& sampled);
  // Tells the drafter that the model has run a step that has tokens. `sampled` is what the model's run had.
  void observe(const Batch& step, const Tensor& sampled);

 private:
  Runner& runner_;
  std::unique_ptr<Runner> draft_runner_;  // null: the drafter has no model
  std::unique_ptr<Drafter> drafter_;
  std::vector<DraftPart> parts_;  // of the step
  std::vector<int> lengths_;      // of its drafts
};

}  // namespace sluice
