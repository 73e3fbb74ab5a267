#include "engine/model_step.h"

#include "nn/hidden_input.h"

namespace sluice {
namespace {

const LoadedModel& layers_of(const LoadedModel& loaded) { return loaded.draft != nullptr ? *loaded.draft : loaded; }

}  // namespace

bool keeps_hidden(const LoadedModel& loaded) { return layers_of(loaded).plan.shape.kept_hidden >= 0; }

StepOutput run_model(LoadedModel& loaded, ops::Ctx& context, const BatchView& batch) {
  const StepOutput output = loaded.model->forward(context, batch, *loaded.kv, *loaded.states);
  if (!batch.wants_hidden || !keeps_hidden(loaded)) return output;
  const LoadedModel& layers = layers_of(loaded);
  const KvCache::Layer& kept = layers.kv->layer(layers.plan.shape.kept_hidden);
  keep_hidden(context, kept, batch.slots_of(kept.group), output.hidden);
  return output;
}

}  // namespace sluice
