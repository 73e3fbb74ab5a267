// Steps of a load that the model and the model that drafts have in common.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/load.h"

namespace sluice {

// Returns the type that an option names. Throws Error, which also lists `others` as expected values.
DType parse_dtype(std::string_view option, const std::string& name, DType automatic, std::string_view others = "");
// Returns the checkpoint's own type: the one in config.json, or else the type of the first stored matrix.
DType checkpoint_dtype(const Checkpoint& checkpoint);

// What the model of a plan is built with. `sites` may be null. Weights go to `memory`; null: to that of the device.
LoadContext context_for(const EngineOptions& options, const LoadPlan& plan, LoraSites* sites, bool dry,
                        Memory* memory = nullptr);
// Builds the model for texts of up to max_len tokens; 0: its own limit. Throws Error.
std::unique_ptr<Model> build_model(const LoadPlan& plan, LoadContext& context, int max_len);
// Builds the layers of the plan's checkpoint that continue `model`, as the plan of a model that drafts. Throws Error.
std::unique_ptr<Model> build_predictor(const LoadPlan& plan, LoadContext& context, const Model& model, int max_len);
// Takes over what a dry build says.
void note_model(LoadPlan& plan, const Model& model, LoadContext& context);

// Arena bytes of a step: the model's, what its layers take to exchange with other ranks, and the results of the last
// stage of a pipeline.
size_t step_bytes(const Model& model, const LoadContext& context, int tokens, int rows);
// Returns the bytes that the backend's ops need besides their tensors.
size_t workspace_bytes(const LoadPlan& plan, const LoadContext& context, int longest);

}  // namespace sluice
