// A row's chain of samplers on CPUs (ops/sample_chain.h).
#pragma once

#include <vector>

#include "kernels/cpu/dispatch/sample.h"
#include "ops/sample_chain.h"

namespace sluice::kernels {

// Samples a token after the chain. `tokens` is scratch.
ops::SampledRow sample_chain(const SampleInput& in, const ops::SamplerStep* steps, const SampleLoops& loops,
                             std::vector<ops::SampleToken>& tokens);

}  // namespace sluice::kernels
