// Rows of fields that all dialects share, and what helps to write rows.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

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

// "logprobs", a switch, and "top_logprobs", as in OpenAI's chat.
struct LogprobFields {
  bool wanted = false;
  int top = 0;
};
std::span<const Parameter> logprob_parameters();
// Sets SamplingParams::logprobs. Throws ApiError for "top_logprobs" without the switch.
void apply_logprobs(Fields& fields);

// The texts of a field of type kStrings. Throws ApiError for an empty one.
std::vector<std::string> text_list(const Json& value, const FieldPath& path);
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

// The row of a list of texts among SamplingParams.
template <size_t I>
constexpr Parameter sampling_texts_row() {
  constexpr const SamplingTexts& kRow = kSamplingTexts[I];
  return {.name = kRow.name,
          .type = Parameter::Type::kStrings,
          .max_items = kRow.most,
          .max_bytes = kMaxStopBytes,
          .fallback = kRow.fallback,
          .help = kRow.help,
          .set = [](Fields& f, const Json& v) {
            f.of<SamplingParams>().*kSamplingTexts[I].field = text_list(v, kSamplingTexts[I].name);
          }};
}

// The rows of all sampling parameters, in the order of the tables.
constexpr auto sampling_rows() {
  return []<size_t... I, size_t... J>(std::index_sequence<I...>, std::index_sequence<J...>) {
    return std::to_array<Parameter>({sampling_row<I>()..., sampling_texts_row<J>()...});
  }
  (std::make_index_sequence<kSamplingParameters.size()>(), std::make_index_sequence<kSamplingTexts.size()>());
}

// A sampling field that the engine lacks.
constexpr Parameter missing_row(const MissingSampler& missing) {
  if (!missing.setting) return refused(missing.name, missing.neutral);
  return {.name = missing.name,
          .type = Parameter::Type::kAny,
          .max_bytes = kLabelBytes,
          .fallback = "none",
          .help = "a setting of a sampler that is refused; changes nothing"};
}

// The rows of a dialect: its sampling parameters, under its names, and the sampling fields that it refuses.
template <SamplingParameter::Dialect kDialect>
constexpr auto sampling_rows_of() {
  constexpr auto has = [](const auto& row) { return (row.dialects & kDialect) != 0; };
  constexpr auto count = std::ranges::count_if(kSamplingParameters, has) + std::ranges::count_if(kSamplingTexts, has) +
                         std::ranges::count_if(kMissingSamplers, has);
  std::array<Parameter, static_cast<size_t>(count)> rows{};
  auto* out = rows.data();
  const auto all = sampling_rows();
  for (size_t i = 0; i < kSamplingParameters.size(); ++i) {
    if (!has(kSamplingParameters[i])) continue;
    *out = all[i];
    out++->name = kSamplingParameters[i].name_in(kDialect);
  }
  for (size_t i = 0; i < kSamplingTexts.size(); ++i) {
    if (has(kSamplingTexts[i])) *out++ = all[kSamplingParameters.size() + i];
  }
  for (const MissingSampler& missing : kMissingSamplers) {
    if (has(missing)) *out++ = missing_row(missing);
  }
  return rows;
}

// Two lists of rows as one.
template <size_t kFirst, size_t kSecond>
constexpr std::array<Parameter, kFirst + kSecond> joined(const std::array<Parameter, kFirst>& first,
                                                         const std::array<Parameter, kSecond>& second) {
  std::array<Parameter, kFirst + kSecond> all{};
  std::ranges::copy(second, std::ranges::copy(first, all.begin()).out);
  return all;
}

}  // namespace sluice::server
