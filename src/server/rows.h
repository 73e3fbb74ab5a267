// Rows of fields that all dialects share, and what helps to write rows.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "server/parameters.h"
#include "sluice/sampling_parameters.h"

namespace sluice::server {

// Bounds of text fields, in bytes.
inline constexpr size_t kLabelBytes = 1 << 10;   // names, salts, small options
inline constexpr size_t kTextBytes = 8 << 20;    // one text: about two million tokens
inline constexpr size_t kTextsBytes = 16 << 20;  // several texts, or their token ids
inline constexpr size_t kGrammarBytes = 1 << 20;
inline constexpr double kIntMax = 2147483647;

// "model", which may be left out while one model is served. Api::serve reads it.
std::span<const Parameter> model_parameter();

// For the field of stop strings, of type kStrings, whatever its name. Throws ApiError for an empty one.
void set_stop_strings(Fields& fields, const Json& value, const FieldPath& path);

// A field that is refused unless its value is null or one of `neutral`, a JSON array. `instead` is a hint like "Use
// 'seed'".
constexpr Parameter refused(std::string_view name, std::string_view neutral = {}, std::string_view instead = {}) {
  return {.name = name, .type = Parameter::Type::kUnsupported, .neutral = neutral, .help = instead};
}

// The row of a number among SamplingParams (sluice/sampling_parameters.h).
template <size_t I>
constexpr Parameter sampling_row() {
  constexpr const SamplingParameter& kRow = kSamplingParameters[I];
  return {.name = kRow.name,
          .type = kRow.is_integer() ? Parameter::Type::kInteger : Parameter::Type::kNumber,
          .min = kRow.min,
          .max = kRow.max,
          .above_min = kRow.above_min,
          .fallback = kRow.fallback,
          .help = kRow.help,
          .set = [](Fields& f, const Json& v) { kRow.set(f.of<SamplingParams>(), v.get<double>()); }};
}

// For sampling_row: `sampling_row<sampling_index("top_p")>()`. An unknown name does not compile.
constexpr size_t sampling_index(std::string_view name) {
  const auto found = std::ranges::find(kSamplingParameters, name, &SamplingParameter::name);
  return static_cast<size_t>(found - kSamplingParameters.begin());
}

// The same row under the name that another dialect gives to it.
constexpr Parameter renamed(Parameter row, std::string_view name) {
  row.name = name;
  return row;
}

}  // namespace sluice::server
