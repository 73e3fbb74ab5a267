// Loads a model for a command and shows the progress.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sluice/engine.h"

namespace sluice::cli {

// Calls Engine::load. If it takes longer than a moment, shows a bar on a terminal, or otherwise logs a line every ten
// seconds. Passes the progress on to `progress`, if that is not null. Throws Error.
std::unique_ptr<Engine> load_engine(const EngineOptions& options, const std::function<void(double)>& progress = {});

// A bar of `places` characters, filled with # up to `share` (0 to 1).
std::string bar(double share, int places = 30);

}  // namespace sluice::cli
