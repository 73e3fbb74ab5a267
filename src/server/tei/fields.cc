// Rows of TEI's shared fields.
#include "server/tei/fields.h"

#include <fmt/core.h>

#include <array>

namespace sluice::server {
namespace {

using Type = Parameter::Type;

void set_direction(Fields&, const Json& v) {
  const auto& direction = v.get_ref<const std::string&>();
  if (direction == "Right" || direction == "right") return;
  throw unsupported_parameter(
      "truncation_direction",
      fmt::format("'{}' is not supported: texts are cut off at the end. Accepted: 'Right'", quotable(direction)));
}

constexpr auto kTeiTruncation = std::to_array<Parameter>({
    {.name = "truncate",
     .type = Type::kBoolean,
     .fallback = "false: longer texts are errors",
     .help = "cut texts off at the end to the model's limit",
     .set = [](Fields& f, const Json& v) { f.of<PoolingFields>().truncate = v.get<bool>() ? -1 : 0; }},
    {.name = "truncation_direction",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "Right",
     .help = "Right: the end is cut off",
     .set = set_direction},
});

constexpr Parameter kTeiPrompt[] = {{.name = "prompt_name",
                                     .type = Type::kString,
                                     .max_bytes = kLabelBytes,
                                     .fallback = "the model's",
                                     .help = "which of the model's prompts to put before texts",
                                     .set = assign<&TeiFields::prompt_name>}};

constexpr Parameter kTeiScores[] = {{.name = "raw_scores",
                                     .type = Type::kBoolean,
                                     .fallback = "false",
                                     .help = "scores are logits",
                                     .set = assign<&TeiFields::raw_scores>}};

}  // namespace

std::span<const Parameter> tei_truncation_parameters() { return kTeiTruncation; }
std::span<const Parameter> tei_prompt_parameter() { return kTeiPrompt; }
std::span<const Parameter> tei_scores_parameter() { return kTeiScores; }

}  // namespace sluice::server
