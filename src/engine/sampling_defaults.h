// Sampling defaults: what a request gets for fields that it leaves out.
#pragma once

#include "formats/checkpoint.h"
#include "sluice/options.h"
#include "sluice/request.h"

namespace sluice {

// The checkpoint's defaults unless --generation-config is none, changed by --override-generation-config. Throws
// Error(kInvalidRequest) that names the key.
SamplingParams sampling_defaults(const EngineOptions& options, const GenerationConfig& generation);

}  // namespace sluice
