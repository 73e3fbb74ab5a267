// /score, in the form of vLLM.
#include <fmt/core.h>

#include <array>
#include <ctime>

#include "server/openai/pooling_fields.h"

namespace sluice::server::openai::score {
namespace {

struct ScoreFields {
  Json text_1, text_2;  // strings or arrays of strings
};

constexpr Parameter texts_parameter(std::string_view name, std::string_view help,
                                    void (*set)(Fields& fields, const Json& value)) {
  return {.name = name,
          .type = Parameter::Type::kStrings,
          .min_items = 1,
          .max_items = kMostTexts,
          .max_bytes = kTextsBytes,
          .required = true,
          .fallback = "required",
          .help = help,
          .set = set};
}

constexpr auto kParameters = std::to_array<Parameter>({
    texts_parameter("text_1", "the first text of each pair; a single one is paired with every second text",
                    assign<&ScoreFields::text_1>),
    texts_parameter("text_2", "the second text of each pair", assign<&ScoreFields::text_2>),
});

std::vector<std::string> as_strings(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

void run(Call& call) {
  expect_scores(call);
  const auto& fields = call.fields.of<ScoreFields>();
  const std::vector<std::string> first = as_strings(fields.text_1), second = as_strings(fields.text_2);
  if (first.size() != 1 && first.size() != second.size()) {
    throw invalid_value(
        "text_2", fmt::format("Invalid 'text_2': it has {} texts where 'text_1' has {}.", second.size(), first.size()));
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < second.size(); ++i) pairs.emplace_back(first[first.size() == 1 ? 0 : i], second[i]);
  PoolingJob job = pairs_job(call, pairs, "text_1", "text_2", /*one_to_all=*/false);
  job.body = [name = call.model.name, task = call.info().task,
              created = std::time(nullptr)](const PoolingResult& result) {
    const std::vector<float> scores = scores_of(result, task, false);
    Json data = Json::array();
    for (size_t i = 0; i < scores.size(); ++i) {
      data.push_back({{"index", i}, {"object", "score"}, {"score", scores[i]}});
    }
    return dump_json({{"id", next_id("score")},
                      {"object", "list"},
                      {"created", created},
                      {"model", name},
                      {"data", std::move(data)},
                      {"usage", usage_of(result)}});
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{
    .name = "score",
    .dialect = &kOpenAi,
    .paths = {"/v1/score", "/score"},
    .flags = Route::kGenerates,
    .help = "scores of pairs of texts",
    .parameters = {model_parameter(), kParameters, truncation_parameter(), activation_parameter(), label_parameter()},
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::score
