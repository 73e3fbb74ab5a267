// The rows of fields that several dialects share, and what several rows set.
#include "server/rows.h"

#include <fmt/core.h>

#include "server/errors.h"

namespace sluice::server {
namespace {

constexpr Parameter kModel[] = {{.name = "model",
                                 .type = Parameter::Type::kString,
                                 .max_bytes = kLabelBytes,
                                 .fallback = "the served model, if there is one",
                                 .help = "name of a served model; required when several are served"}};

constexpr Parameter kLogprobs[] = {{.name = "logprobs",
                                    .type = Parameter::Type::kBoolean,
                                    .fallback = "false",
                                    .help = "report the log probability of each token",
                                    .set = assign<&LogprobFields::wanted>},
                                   {.name = "top_logprobs",
                                    .type = Parameter::Type::kInteger,
                                    .min = 0,
                                    .max = 20,
                                    .fallback = "0",
                                    .help = "alternatives to report for each token; needs logprobs",
                                    .set = assign<&LogprobFields::top>}};

}  // namespace

std::span<const Parameter> model_parameter() { return kModel; }
std::span<const Parameter> logprob_parameters() { return kLogprobs; }

void apply_logprobs(Fields& fields) {
  const auto& [wanted, top] = fields.of<LogprobFields>();
  if (top > 0 && !wanted) {
    throw invalid_value("top_logprobs", "Invalid 'top_logprobs': it needs 'logprobs' to be true.");
  }
  if (wanted) fields.of<SamplingParams>().logprobs = top;
}

std::vector<std::string> text_list(const Json& value, const FieldPath& path) {
  std::vector<std::string> texts;
  const auto add = [&](const Json& text, const FieldPath& where) {
    texts.push_back(expect_string(text, where));
    if (!texts.back().empty()) return;
    throw ApiError{
        .message = fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1.", where.str()),
        .param = where,
        .code = "empty_string"};
  };
  if (value.is_string()) add(value, path);
  for (size_t i = 0; value.is_array() && i < value.size(); ++i) add(value[i], path[i]);
  return texts;
}

void set_stop_strings(Fields& fields, const Json& value, const FieldPath& path) {
  fields.of<SamplingParams>().stop = text_list(value, path);
}

}  // namespace sluice::server
