// What every step of a model does, whether it is captured as a graph or not.
#pragma once

#include "engine/load.h"

namespace sluice {

// Whether layers continue the model: they read its hidden states, and those of their own.
bool keeps_hidden(const LoadedModel& loaded);
// Runs the model on a batch. If it keeps hidden states and the batch wants them, they are kept in the batch's blocks.
StepOutput run_model(LoadedModel& loaded, ops::Ctx& context, const BatchView& batch);

}  // namespace sluice
