// Sampling defaults of a checkpoint and of options; see sampling_defaults.h.
#include "engine/sampling_defaults.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "sluice/error.h"
#include "sluice/sampling_parameters.h"

namespace sluice {
namespace {

constexpr const char* kOption = "override-generation-config";

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--{}: {}", kOption, message), kOption, "");
}

// Hugging Face's max_new_tokens is the API's max_tokens.
void override_one(const std::string& key, const Json& value, SamplingParams& out) {
  if (key == "max_new_tokens" || key == "max_tokens") {
    if (!value.is_number_integer() || value < 1 || value > INT32_MAX) fail(key + ": expected an integer above 0");
    out.max_tokens = value.get<int>();
    return;
  }
  const auto row = std::ranges::find(kSamplingParameters, key, &SamplingParameter::name);
  if (row == kSamplingParameters.end()) {
    std::string known = "max_new_tokens";
    for (const SamplingParameter& other : kSamplingParameters) known += fmt::format(", {}", other.name);
    fail(fmt::format("unknown key '{}' (expected one of: {})", key, known));
  }
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  const bool whole = !row->is_integer() || number == std::floor(number);
  if (!(number >= row->min && number <= row->max) || (row->above_min && number == row->min) || !whole) {
    fail(fmt::format("{}: expected {} {} {} and at most {}", key, row->is_integer() ? "an integer" : "a number",
                     row->above_min ? "above" : "of at least", row->min, row->max));
  }
  row->set(out, number);
}

}  // namespace

SamplingParams sampling_defaults(const EngineOptions& options, const GenerationConfig& generation) {
  SamplingParams out;
  if (options.generation_config != "none") {
    const GenerationConfig& g = generation;
    out.temperature = g.temperature.value_or(out.temperature);
    out.top_p = g.top_p.value_or(out.top_p);
    out.top_k = g.top_k.value_or(out.top_k);
    out.min_p = g.min_p.value_or(out.min_p);
    out.repetition_penalty = g.repetition_penalty.value_or(out.repetition_penalty);
    out.max_tokens = g.max_new_tokens;
  }
  if (options.override_generation_config.empty()) return out;
  const Json values = parse_json(options.override_generation_config);
  if (!values.is_object()) fail("expected a JSON object");
  for (const auto& [key, value] : values.items()) override_one(key, value, out);
  return out;
}

}  // namespace sluice
