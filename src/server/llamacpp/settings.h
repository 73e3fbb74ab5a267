// Sampling parameters as llama.cpp prints them: with ignore_eos, the biases have the model's end tokens.
#pragma once

#include "base/json.h"
#include "sluice/engine.h"
#include "sluice/request.h"

namespace sluice::server {

Json llama_settings(const SamplingParams& sampling, const ModelInfo& model);

}  // namespace sluice::server
