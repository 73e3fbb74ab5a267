// The engine of models that give vectors: texts come whole, several to a step, first come first served.
#pragma once

#include <memory>

#include "engine/load.h"
#include "engine/text.h"
#include "sluice/engine.h"

namespace sluice {

// `loaded` is of a task other than kGenerate, on `pool`'s threads.
std::unique_ptr<Engine> pooling_engine(const EngineOptions& options, std::unique_ptr<ThreadPool> pool,
                                       LoadedModel loaded, TextEnds text);

}  // namespace sluice
