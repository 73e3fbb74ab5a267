// /rerank, in the form of Cohere and Jina.
#include <algorithm>
#include <array>
#include <numeric>

#include "server/openai/pooling_fields.h"

namespace sluice::server::openai::rerank {
namespace {

using Type = Parameter::Type;

struct RerankFields {
  std::string query;
  Json documents;
  int top_n = 0;  // 0: all
  bool return_documents = true;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "query",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "the text that documents are ranked by",
     .set = assign<&RerankFields::query>},
    {.name = "documents",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "strings, or objects with a string `text`",
     .set = assign<&RerankFields::documents>},
    {.name = "top_n",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "all",
     .help = "the most results",
     .set = assign<&RerankFields::top_n>},
    {.name = "return_documents",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "put documents into the results",
     .set = assign<&RerankFields::return_documents>},
});

void run(Call& call) {
  expect_scores(call);
  const auto& fields = call.fields.of<RerankFields>();
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> documents;
  const FieldPath field = "documents";
  for (size_t i = 0; i < fields.documents.size(); ++i) {
    const Json& document = fields.documents[i];
    const FieldPath path = field[i], text = path / "text";
    if (document.is_object() && !document.contains("text")) throw missing_parameter(text);
    documents.push_back(document.is_object() ? expect_string(document["text"], text) : expect_string(document, path));
    pairs.emplace_back(fields.query, documents.back());
  }
  PoolingJob job = pairs_job(call, pairs, "query", "documents", /*one_to_all=*/true);
  if (!fields.return_documents) documents.clear();
  job.body = [name = call.model.name, task = call.info().task, top_n = fields.top_n,
              documents = std::move(documents)](const PoolingResult& result) {
    const std::vector<float> scores = scores_of(result, task, true);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (top_n > 0) order.resize(std::min(order.size(), static_cast<size_t>(top_n)));
    Json results = Json::array();
    for (const size_t i : order) {
      Json row = {{"index", i}};
      if (!documents.empty()) row["document"] = {{"text", documents[i]}};
      row["relevance_score"] = scores[i];
      results.push_back(std::move(row));
    }
    return dump_json(
        {{"id", next_id("rerank")}, {"model", name}, {"usage", usage_of(result)}, {"results", std::move(results)}});
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{.name = "rerank",
                            .dialect = &kOpenAi,
                            .paths = {"/v1/rerank", "/v2/rerank", "/rerank"},
                            .flags = Route::kGenerates,
                            .help = "documents ranked by their relevance to a query",
                            .parameters = {model_parameter(), kParameters, truncation_parameters(), pair_parameters(),
                                           activation_parameter(), label_parameter()},
                            .shared = {{"/invocations", [](const Json& body, Task) { return body.contains("query"); }}},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::rerank
