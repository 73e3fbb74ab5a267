// One row for each sampler, in the usual order.
#include "sampling/steps.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "sluice/sampling_parameters.h"

namespace sluice {
namespace {

using ops::SamplerKind;
using ops::SamplerStep;

struct NamedSampler {
  std::string_view name;
  bool (*on)(const SamplingParams& params);
  SamplerStep (*step)(const SampleTask& task, int vocab);
  // For a stateful one: takes the probability of the sampled token into account.
  void (*advance)(const SamplingParams& params, float probability, SamplerState& state) = nullptr;
};

constexpr NamedSampler kSamplers[] = {
    {"top_n_sigma", [](const SamplingParams& p) { return p.top_n_sigma > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTopNSigma, .b = static_cast<float>(task.params->top_n_sigma)};
     }},
    {"temperature", [](const SamplingParams& p) { return p.temperature != 1 || p.dynatemp_range > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTemperature,
                          .a = 1.0 / task.params->temperature,
                          .b = static_cast<float>(task.params->dynatemp_range),
                          .c = static_cast<float>(task.params->dynatemp_exponent)};
     }},
    {"smoothing", [](const SamplingParams& p) { return p.smoothing_factor > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kSmoothing,
                          .b = static_cast<float>(task.params->smoothing_factor),
                          .c = static_cast<float>(task.params->smoothing_curve)};
     }},
    {"top_k", [](const SamplingParams& p) { return p.top_k > 0; },
     [](const SampleTask& task, int) { return SamplerStep{.kind = SamplerKind::kTopK, .count = task.params->top_k}; }},
    {"typ_p", [](const SamplingParams& p) { return p.typical_p < 1; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTypicalP, .a = task.params->typical_p};
     }},
    {"top_p", [](const SamplingParams& p) { return p.top_p < 1; },
     [](const SampleTask& task, int) { return SamplerStep{.kind = SamplerKind::kTopP, .a = task.params->top_p}; }},
    {"min_p", [](const SamplingParams& p) { return p.min_p > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kMinP, .b = static_cast<float>(task.params->min_p)};
     }},
    {"top_a", [](const SamplingParams& p) { return p.top_a > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kTopA, .b = static_cast<float>(task.params->top_a)};
     }},
    {"epsilon_cutoff", [](const SamplingParams& p) { return p.epsilon_cutoff > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kEpsilon, .b = static_cast<float>(task.params->epsilon_cutoff)};
     }},
    {"eta_cutoff", [](const SamplingParams& p) { return p.eta_cutoff > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kEta, .b = static_cast<float>(task.params->eta_cutoff)};
     }},
    {"xtc", [](const SamplingParams& p) { return p.xtc_probability > 0; },
     [](const SampleTask& task, int) {
       return SamplerStep{.kind = SamplerKind::kXtc,
                          .b = static_cast<float>(task.params->xtc_probability),
                          .c = static_cast<float>(task.params->xtc_threshold)};
     }},
    {"mirostat", [](const SamplingParams& p) { return p.mirostat > 0; },
     [](const SampleTask& task, int vocab) {
       const float most = task.state->begun ? task.state->values[0] : static_cast<float>(2 * task.params->mirostat_tau);
       return SamplerStep{.kind = task.params->mirostat == 1 ? SamplerKind::kMirostat1 : SamplerKind::kMirostat2,
                          .count = vocab,
                          .b = most};
     },
     [](const SamplingParams& p, float probability, SamplerState& state) {
       if (!state.begun) state = {.begun = true, .values = {static_cast<float>(2 * p.mirostat_tau)}};
       const double error = -std::log2(static_cast<double>(probability)) - p.mirostat_tau;
       state.values[0] -= static_cast<float>(p.mirostat_eta * error);
     }},
    {"adaptive_p", [](const SamplingParams& p) { return p.adaptive_target >= 0; },
     [](const SampleTask& task, int) {
       const SamplerState& state = *task.state;
       const double target = task.params->adaptive_target;
       const double aim = state.begun ? 2 * target - static_cast<double>(state.values[0] / state.values[1]) : target;
       return SamplerStep{.kind = SamplerKind::kAdaptiveP, .b = static_cast<float>(std::clamp(aim, 0.0, 1.0))};
     },
     [](const SamplingParams& p, float probability, SamplerState& state) {
       const auto decay = static_cast<float>(p.adaptive_decay);
       const float weight = state.begun ? state.values[1] : 1 / (1 - decay);
       const float sum = state.begun ? state.values[0] : static_cast<float>(p.adaptive_target) * weight;
       state = {.begun = true, .values = {probability + decay * sum, 1 + decay * weight}};
     }},
};

// As in llama.cpp, mirostat takes the place of all other samplers but temperature, whatever their order.
bool runs(const NamedSampler& sampler, const SamplingParams& p) {
  const bool beside_mirostat = sampler.name == "temperature" || sampler.name == "mirostat";
  return (p.mirostat == 0 || beside_mirostat) && sampler.on(p);
}

}  // namespace

bool has_chain(const SamplingParams& params) {
  return !params.samplers.empty() || any_parameter(params, SamplingParameter::Effect::kChain);
}

std::string error_of_order(std::span<const std::string> samplers) {
  constexpr std::string_view kFirst[] = {"penalties", "dry"};  // those that change single logits
  std::string known = fmt::format("{}", fmt::join(kFirst, ", "));
  for (const NamedSampler& sampler : kSamplers) known += fmt::format(", {}", sampler.name);
  size_t first = 0;  // of kFirst that may still come
  for (size_t i = 0; i < samplers.size(); ++i) {
    const std::string& name = samplers[i];
    const auto early = static_cast<size_t>(std::ranges::find(kFirst, name) - kFirst);
    const bool is_early = early < std::size(kFirst);
    if (!is_early && std::ranges::find(kSamplers, name, &NamedSampler::name) == std::end(kSamplers)) {
      return fmt::format("'{}' is not a sampler. Accepted: {}.", name, known);
    }
    if (std::ranges::count(samplers, name) > 1) return fmt::format("'{}' is there more than once.", name);
    if (is_early && early < first) return fmt::format("'{}' comes too late: 'penalties' and 'dry' come first.", name);
    first = is_early ? early + 1 : std::size(kFirst);
  }
  return {};
}

void append_steps(const SampleTask& task, int vocab, std::vector<SamplerStep>& steps) {
  const auto append = [&](const NamedSampler& sampler) {
    if (runs(sampler, *task.params)) steps.push_back(sampler.step(task, vocab));
  };
  if (task.params->samplers.empty() || task.params->mirostat > 0)
    return std::ranges::for_each(kSamplers, append), void();
  for (const std::string& name : task.params->samplers) {
    const auto* found = std::ranges::find(kSamplers, name, &NamedSampler::name);
    if (found != std::end(kSamplers)) append(*found);
  }
  // It samples, so that it comes last wherever it is named.
  const auto adaptive = std::ranges::find(steps, SamplerKind::kAdaptiveP, &SamplerStep::kind);
  if (adaptive != steps.end()) std::rotate(adaptive, adaptive + 1, steps.end());
}

SamplerState next_state(const SampleTask& task, float probability) {
  SamplerState state = *task.state;
  for (const NamedSampler& sampler : kSamplers) {
    if (sampler.advance != nullptr && runs(sampler, *task.params)) sampler.advance(*task.params, probability, state);
  }
  return state;
}

}  // namespace sluice
