// A model for a command, with a line that says how far it is.
#pragma once

#include <memory>
#include <string>

#include "sluice/engine.h"

namespace sluice::cli {

// Engine::load. What takes longer than a moment shows a bar on a terminal, and elsewhere a line in the log every ten
// seconds. Throws Error.
std::unique_ptr<Engine> load_engine(const EngineOptions& options);

// As many # of so many places as the share says, from 0 to 1.
std::string bar(double share, int places = 30);

}  // namespace sluice::cli
