// TEI's /predict and /rerank: the scores of labels, and documents ranked by a query.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "server/tei/fields.h"

namespace sluice::server::tei::predict {
namespace {

using Type = Parameter::Type;

struct PredictFields {
  Json inputs;
};
struct RankFields {
  std::string query;
  Json texts;
  bool return_text = false;
  int top_n = 0;  // 0: all
};

constexpr Parameter kPredict[] = {
    {.name = "inputs",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a string, a list of one text or of a pair of texts, or a list of such lists; at most 2048",
     .set = assign<&PredictFields::inputs>}};

constexpr auto kRank = std::to_array<Parameter>({
    {.name = "query",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "the text that documents are ranked by",
     .set = assign<&RankFields::query>},
    {.name = "texts",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "strings to rank",
     .set = assign<&RankFields::texts>},
    {.name = "return_text",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "put texts into the results",
     .set = assign<&RankFields::return_text>},
    {.name = "top_n",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "all",
     .help = "how many of the texts to return, those that rank highest; llama.cpp's field",
     .set = assign<&RankFields::top_n>},
});

// One text, or a pair of them.
PooledText sequence_of(Call& call, const Json& value, const FieldPath& path) {
  if (value.is_string()) return encode_text(call, value.get_ref<const std::string&>(), {}, path);
  expect_array(value, path, 1, 2);
  const std::string& first = expect_string(value[0], path[0]);
  if (value.size() == 1) return encode_text(call, first, {}, path);
  return encode_text(call, first, expect_string(value[1], path[1]), path);
}

std::vector<size_t> by_score(const std::vector<float>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

Json labels_json(const std::vector<float>& scores, const std::vector<std::string>& labels) {
  Json list = Json::array();
  for (const size_t i : by_score(scores)) {
    list.push_back({{"score", scores[i]}, {"label", i < labels.size() ? labels[i] : fmt::format("LABEL_{}", i)}});
  }
  return list;
}

void run_predict(Call& call) {
  const ModelInfo& model = call.info();
  if (model.task != Task::kScore) refuse_task(call, "label texts");
  const Json& inputs = call.fields.of<PredictFields>().inputs;
  const FieldPath path = "inputs";
  const bool is_batch = inputs.is_array() && !inputs.empty() && inputs[0].is_array();
  std::vector<PooledText> texts;
  if (is_batch) {
    expect_array(inputs, path, 1, kMostTexts);
    for (size_t i = 0; i < inputs.size(); ++i) texts.push_back(sequence_of(call, inputs[i], path[i]));
  } else {
    texts.push_back(sequence_of(call, inputs, path));
  }
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = std::move(texts),
                             .param = "inputs",
                             .dimensions = 0,
                             .activate = call.fields.of<PoolingFields>().use_activation,
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  if (call.fields.of<TeiFields>().raw_scores) job.request.activate = false;
  job.body = [labels = model.labels, is_batch](const PoolingResult& result) {
    if (!is_batch) return dump_json(labels_json(result.vectors.front(), labels));
    Json list = Json::array();
    for (const std::vector<float>& scores : result.vectors) list.push_back(labels_json(scores, labels));
    return dump_json(list);
  };
  call.embed(std::move(job));
}

void run_rank(Call& call) {
  expect_scores(call);
  const auto& fields = call.fields.of<RankFields>();
  const FieldPath path = "texts";
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < fields.texts.size(); ++i) {
    pairs.emplace_back(fields.query, expect_string(fields.texts[i], path[i]));
  }
  if (call.fields.of<TeiFields>().raw_scores) call.fields.of<PoolingFields>().use_activation = false;
  PoolingJob job = pairs_job(call, pairs, "query", "texts", /*one_to_all=*/true);
  job.body = [texts = fields.return_text ? fields.texts : Json(), top_n = static_cast<size_t>(fields.top_n),
              task = call.info().task](const PoolingResult& result) {
    const std::vector<float> scores = scores_of(result, task, true);
    Json list = Json::array();
    for (const size_t i : by_score(scores)) {
      Json row = {{"index", i}, {"score", scores[i]}};
      if (texts.is_array()) row["text"] = texts[i];
      list.push_back(std::move(row));
      if (list.size() == top_n) break;
    }
    return dump_json(list);
  };
  call.embed(std::move(job));
}

const EndpointInfo predict_endpoint{
    .name = "tei predict",
    .dialect = &kTei,
    .paths = {"/predict"},
    .flags = Route::kGenerates,
    .help = "the scores of a model's labels, for TEI's clients",
    .parameters = {model_parameter(), kPredict, tei_truncation_parameters(), tei_scores_parameter()},
    .run = run_predict};
const EndpointInfo rank_endpoint{
    .name = "tei rerank",
    .dialect = &kTei,
    .flags = Route::kGenerates,
    .help = "documents ranked by their relevance to a query, for TEI's clients",
    .parameters = {model_parameter(), kRank, tei_truncation_parameters(), tei_scores_parameter()},
    .shared = {{"/rerank", [](const Json& body, Task) { return body.contains("texts"); }}},
    .run = run_rank};
const Registry<EndpointInfo> registered_predict{predict_endpoint}, registered_rank{rank_endpoint};

}  // namespace
}  // namespace sluice::server::tei::predict
