// Which samplers a request's tokens go through, in which order: its parameters as a chain for the sample op.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "batch/sample_task.h"
#include "ops/sample_chain.h"

namespace sluice {

// Whether tokens are sampled by a chain. The sample op has a quicker way for temperature, top_k, top_p, min_p and
// top_n_sigma in their usual order.
bool has_chain(const SamplingParams& params);

// Returns what is wrong with a list of samplers, or nothing.
std::string error_of_order(std::span<const std::string> samplers);

// What a task's stateful sampler remembers after a token of this probability.
SamplerState next_state(const SampleTask& task, float probability);

// Adds the chain of a task that has one, for a vocabulary of `vocab` tokens.
void append_steps(const SampleTask& task, int vocab, std::vector<ops::SamplerStep>& steps);

}  // namespace sluice
