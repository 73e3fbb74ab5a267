// Whether an engine works, for engines of every task.
#pragma once

#include "engine/load.h"
#include "sluice/engine.h"

namespace sluice {

// Completes `health`, which has the numbers and the time since the last step. `dead`: a fault ended the engine's loop.
Health judged(Health health, const LoadedModel& loaded, bool dead);

}  // namespace sluice
