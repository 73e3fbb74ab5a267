// The engine for models that return vectors or scores. A step holds several whole texts, first come first served.
#pragma once

#include <memory>

#include "engine/load.h"
#include "engine/text.h"
#include "sluice/engine.h"

namespace sluice {

// `loaded` must have a task other than kGenerate. Steps run on the threads of `pool`.
std::unique_ptr<Engine> pooling_engine(const EngineOptions& options, std::unique_ptr<ThreadPool> pool,
                                       LoadedModel loaded, TextEnds text);

}  // namespace sluice
