// /score, in the form of vLLM.
#include <fmt/core.h>

#include <array>
#include <ctime>

#include "server/openai/pooling_fields.h"

namespace sluice::server::openai::score {
namespace {

struct ScoreFields {
  Json text_1, text_2;                                             // strings or arrays of strings
  std::string_view first_name = "text_1", second_name = "text_2";  // the fields that they came from
};

constexpr Parameter texts_parameter(std::string_view name, std::string_view fallback, std::string_view help,
                                    void (*set)(Fields& fields, const Json& value)) {
  return {.name = name,
          .type = Parameter::Type::kStrings,
          .min_items = 1,
          .max_items = kMostTexts,
          .max_bytes = kTextsBytes,
          .fallback = fallback,
          .help = help,
          .set = set};
}

void set_side(Fields& f, const Json& value, bool first, std::string_view name) {
  auto& fields = f.of<ScoreFields>();
  Json& side = first ? fields.text_1 : fields.text_2;
  std::string_view& known = first ? fields.first_name : fields.second_name;
  if (!side.is_null()) {
    throw ApiError{.message = fmt::format("Setting '{}' and '{}' at the same time is not supported.", known, name),
                   .param = std::string(name),
                   .code = "invalid_parameter_combination"};
  }
  side = value;
  known = name;
}

constexpr auto kParameters = std::to_array<Parameter>({
    texts_parameter("text_1", "required", "the first text of each pair; a single one is paired with every second text",
                    [](Fields& f, const Json& v) { set_side(f, v, true, "text_1"); }),
    texts_parameter("text_2", "required", "the second text of each pair",
                    [](Fields& f, const Json& v) { set_side(f, v, false, "text_2"); }),
    texts_parameter("queries", "text_1", "vLLM's newer name of text_1",
                    [](Fields& f, const Json& v) { set_side(f, v, true, "queries"); }),
    texts_parameter("documents", "text_2", "vLLM's newer name of text_2",
                    [](Fields& f, const Json& v) { set_side(f, v, false, "documents"); }),
    texts_parameter("items", "text_2", "the same as documents",
                    [](Fields& f, const Json& v) { set_side(f, v, false, "items"); }),
    texts_parameter("data_1", "text_1", "the same as queries",
                    [](Fields& f, const Json& v) { set_side(f, v, true, "data_1"); }),
    texts_parameter("data_2", "text_2", "the same as documents",
                    [](Fields& f, const Json& v) { set_side(f, v, false, "data_2"); }),
});

std::vector<std::string> as_strings(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

void run(Call& call) {
  expect_scores(call);
  const auto& fields = call.fields.of<ScoreFields>();
  if (fields.text_1.is_null()) throw missing_parameter("text_1");
  if (fields.text_2.is_null()) throw missing_parameter("text_2");
  const std::string one(fields.first_name), other(fields.second_name);
  const std::vector<std::string> first = as_strings(fields.text_1), second = as_strings(fields.text_2);
  if (first.size() != 1 && first.size() != second.size()) {
    throw invalid_value(other, fmt::format("Invalid '{}': it has {} texts where '{}' has {}.", other, second.size(),
                                           one, first.size()));
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < second.size(); ++i) pairs.emplace_back(first[first.size() == 1 ? 0 : i], second[i]);
  PoolingJob job = pairs_job(call, pairs, one, other, /*one_to_all=*/false);
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

const EndpointInfo endpoint{.name = "score",
                            .dialect = &kOpenAi,
                            .paths = {"/v1/score", "/score"},
                            .flags = Route::kGenerates,
                            .help = "scores of pairs of texts",
                            .parameters = {model_parameter(), kParameters, truncation_parameters(), pair_parameters(),
                                           activation_parameter(), label_parameter()},
                            .shared = {{"/invocations",
                                        [](const Json& body, Task) {
                                          return body.contains("text_1") || body.contains("data_1") ||
                                                 body.contains("queries");
                                        }}},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::score
