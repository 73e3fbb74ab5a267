// /classify, as vLLM has it: the probability of each label of a text.
#include <algorithm>
#include <ctime>

#include "server/openai/pooling_fields.h"

namespace sluice::server::openai::classify {
namespace {

void run(Call& call) {
  const ModelInfo& model = call.info();
  if (model.task != Task::kScore) refuse_task(call, "label texts");
  const auto& fields = call.fields.of<PoolingFields>();
  if (fields.base64) throw unsupported_parameter("encoding_format", "is not supported here: labels have names");
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = input_texts(call, fields.input, {}, "input"),
                             .param = is_chat(call) ? "messages" : "input",
                             .dimensions = 0,
                             .activate = fields.use_activation,
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  job.body = [name = call.model.name, labels = model.labels,
              created = std::time(nullptr)](const PoolingResult& result) {
    Json data = Json::array();
    for (size_t i = 0; i < result.vectors.size(); ++i) {
      const std::vector<float>& probs = result.vectors[i];
      const auto best = static_cast<size_t>(std::ranges::max_element(probs) - probs.begin());
      data.push_back({{"index", i},
                      {"label", best < labels.size() ? Json(labels[best]) : Json()},
                      {"probs", probs},
                      {"num_classes", probs.size()}});
    }
    return dump_json({{"id", next_id("classify")},
                      {"object", "list"},
                      {"created", created},
                      {"model", name},
                      {"data", std::move(data)},
                      {"usage", usage_of(result)}});
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{
    .name = "classify",
    .dialect = &kOpenAi,
    .paths = {"/classify", "/v1/classify"},
    .flags = Route::kGenerates,
    .help = "the probabilities of a model's labels",
    .parameters = {model_parameter(), input_parameters(), truncation_parameters(), activation_parameter(),
                   conversation_parameters(), special_token_parameter(), label_parameter()},
    .shared = {{"/invocations",
                [](const Json& body, Task task) {
                  return task == Task::kScore && (body.contains("input") || body.contains("messages"));
                }}},
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::classify
