// Which values of the engine's options are refused before anything is loaded.
#pragma once

#include "ops/ops.h"
#include "sluice/options.h"

namespace sluice {

// Throws Error(kInvalidRequest), which names the option, for a value out of its range and for options that exclude each
// other.
void check_options(const EngineOptions& options);
// Throws Error(kUnsupportedModel), which names the option, for what several ranks cannot do together.
void refuse_with_ranks(const EngineOptions& options, const ops::Backend& backend);

}  // namespace sluice
