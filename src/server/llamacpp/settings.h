// Sampling parameters as llama.cpp prints them.
#pragma once

#include "base/json.h"
#include "sluice/request.h"

namespace sluice::server {

Json llama_settings(const SamplingParams& sampling);

}  // namespace sluice::server
