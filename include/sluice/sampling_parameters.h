// The numbers among SamplingParams: one row each. The engine's checks, HTTP fields, command-line flags and their
// documentation are made from the rows.
#pragma once

#include <array>
#include <string_view>
#include <variant>

#include "sluice/request.h"

namespace sluice {

struct SamplingParameter {
  // What a value other than the default changes: single logits, all logits, or which tokens may be sampled.
  enum class Effect { kPenalty, kScale, kFilter };
  using Field = std::variant<double SamplingParams::*, int SamplingParams::*>;

  std::string_view name;  // of the request's field; the command's flag has '-' for '_'
  Field field;
  double min = 0, max = 0;  // inclusive
  bool above_min = false;   // the range excludes min itself
  Effect effect = Effect::kFilter;
  std::string_view fallback = {};  // the default, for readers
  std::string_view help = {};

  constexpr bool is_integer() const { return std::holds_alternative<int SamplingParams::*>(field); }
  constexpr double of(const SamplingParams& params) const {
    return std::visit([&](auto member) { return static_cast<double>(params.*member); }, field);
  }
  // `value` must be in range, and an integer if is_integer().
  constexpr void set(SamplingParams& params, double value) const {
    std::visit([&](auto member) { params.*member = static_cast<decltype(params.*member + 0)>(value); }, field);
  }
};

inline constexpr auto kSamplingParameters = std::to_array<SamplingParameter>({
    {.name = "temperature",
     .field = &SamplingParams::temperature,
     .min = 0,
     .max = 2,
     .effect = SamplingParameter::Effect::kScale,
     .fallback = "the model's, else 1",
     .help = "divides the logits; 0 always takes the most likely token"},
    {.name = "top_p",
     .field = &SamplingParams::top_p,
     .min = 0,
     .max = 1,
     .above_min = true,
     .fallback = "the model's, else 1",
     .help = "sample from the smallest set of tokens with this much probability"},
    {.name = "top_k",
     .field = &SamplingParams::top_k,
     .min = -1,
     .max = 2147483647,
     .fallback = "the model's, else 0",
     .help = "sample from this many most likely tokens (0 or -1: all)"},
    {.name = "min_p",
     .field = &SamplingParams::min_p,
     .min = 0,
     .max = 1,
     .fallback = "the model's, else 0",
     .help = "least probability, relative to the most likely token"},
    {.name = "top_n_sigma",
     .field = &SamplingParams::top_n_sigma,
     .min = -1,
     .max = 1000,
     .fallback = "0",
     .help = "sample from logits within this many standard deviations of the largest one (0 or less: all)"},
    {.name = "presence_penalty",
     .field = &SamplingParams::presence_penalty,
     .min = -2,
     .max = 2,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "0",
     .help = "subtracted from the logits of tokens that are in the output"},
    {.name = "frequency_penalty",
     .field = &SamplingParams::frequency_penalty,
     .min = -2,
     .max = 2,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "0",
     .help = "subtracted once for each time that a token is in the output"},
    {.name = "repetition_penalty",
     .field = &SamplingParams::repetition_penalty,
     .min = 0.000001,
     .max = 1000000,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "the model's, else 1",
     .help = "factor for tokens of prompt and output"},
});

}  // namespace sluice
