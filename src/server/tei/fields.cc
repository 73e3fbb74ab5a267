// Rows of TEI's shared fields.
#include "server/tei/fields.h"

#include <fmt/core.h>

#include <array>

namespace sluice::server {
namespace {

using Type = Parameter::Type;

void set_direction(Fields& f, const Json& v) {
  const auto& direction = v.get_ref<const std::string&>();
  const bool left = direction == "Left" || direction == "left";
  if (!left && direction != "Right" && direction != "right") {
    throw invalid_value(
        "truncation_direction",
        fmt::format("Invalid value: '{}'. Supported values are: 'Left', 'Right'.", quotable(direction)));
  }
  f.of<PoolingFields>().keep_end = left;
}

constexpr auto kTeiTruncation = std::to_array<Parameter>({
    {.name = "truncate",
     .type = Type::kBoolean,
     .fallback = "false: longer texts are errors",
     .help = "cut longer texts to the model's limit",
     .set = [](Fields& f, const Json& v) { f.of<PoolingFields>().truncate = v.get<bool>() ? -1 : 0; }},
    {.name = "truncation_direction",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "Right",
     .help = "which end of a longer text is cut off: Left or Right; pairs of texts are cut at the right",
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
