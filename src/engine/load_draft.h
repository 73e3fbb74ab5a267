// Plans and loads the model that drafts, or layers of the model's checkpoint that do (docs/speculative.md).
#pragma once

#include <memory>
#include <string>

#include "engine/load.h"
#include "sluice/error.h"

namespace sluice {

// The error of a draft model that cannot be used.
Error draft_model_error(const Error& cause);

// Leaves room for the logits of drafts, with which some sequences have several rows in a step. Throws Error if `model`
// cannot have drafts.
void plan_drafts(const std::string& model, LoadPlan& plan);

// Adds the draft model to the plan, if there is one. `model` is the dry build of the plan's model. Returns the
// workspace of the draft model's steps. Throws Error.
size_t plan_draft(const EngineOptions& options, LoadPlan& plan, const Model& model);

// Gives the draft model the plan's blocks, whose number is final. Throws Error if its context is too short.
void share_blocks(LoadPlan& plan);

// Loads the draft model; null: this rank has none. Its keys and values are in blocks of `whole`. `model` is the plan's.
std::unique_ptr<LoadedModel> load_draft(const EngineOptions& options, const LoadPlan& plan, const Model& model,
                                        const KvCache& whole);

}  // namespace sluice
