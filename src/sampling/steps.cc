// One row for each sampler, in the usual order.
#include "sampling/steps.h"

#include <string_view>

#include "sluice/sampling_parameters.h"

namespace sluice {
namespace {

using ops::SamplerKind;
using ops::SamplerStep;

struct Sampler {
  std::string_view name;
  bool (*on)(const SamplingParams& params);
  SamplerStep (*step)(const SampleTask& task, int vocab);
  // For a stateful one: takes the probability of the sampled token into account.
  void (*advance)(const SamplingParams& params, float probability, SamplerState& state) = nullptr;
};

constexpr Sampler kSamplers[] = {
    {"top_n_sigma", [](const SamplingParams& p) { return p.top_n_sigma > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTopNSigma, .b = static_cast<float>(task.params->top_n_sigma)};
     }},
    {"temperature", [](const SamplingParams& p) { return p.temperature != 1; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTemperature, .a = 1.0 / task.params->temperature};
     }},
    {"top_k", [](const SamplingParams& p) { return p.top_k > 0; },
     [](const SampleTask& task, int) { return SamplerStep{.kind = SamplerKind::kTopK, .count = task.params->top_k}; }},
    {"top_p", [](const SamplingParams& p) { return p.top_p < 1; },
     [](const SampleTask& task, int) { return SamplerStep{.kind = SamplerKind::kTopP, .a = task.params->top_p}; }},
    {"min_p", [](const SamplingParams& p) { return p.min_p > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kMinP, .b = static_cast<float>(task.params->min_p)};
     }},
};

}  // namespace

bool has_chain(const SamplingParams& params) { return any_parameter(params, SamplingParameter::Effect::kChain); }

void append_steps(const SampleTask& task, int vocab, std::vector<SamplerStep>& steps) {
  for (const Sampler& sampler : kSamplers) {
    if (sampler.on(*task.params)) steps.push_back(sampler.step(task, vocab));
  }
}

SamplerState next_state(const SampleTask& task, float probability) {
  SamplerState state = *task.state;
  for (const Sampler& sampler : kSamplers) {
    if (sampler.advance != nullptr && sampler.on(*task.params)) sampler.advance(*task.params, probability, state);
  }
  return state;
}

}  // namespace sluice
