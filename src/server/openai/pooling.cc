// /pooling, as vLLM has it: what the model's pooler gives for each text, a vector or the scores of its labels.
#include <fmt/core.h>

#include <array>
#include <ctime>

#include "server/openai/pooling_fields.h"
#include "sluice/dimensions.h"

namespace sluice::server::openai::pooling {
namespace {

using Type = Parameter::Type;

struct PoolingTaskFields {
  std::string task;
  int dimensions = 0;
  std::optional<bool> normalize;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "task",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "the model's",
     .help = "embed or classify, as the model's task is",
     .set = assign<&PoolingTaskFields::task>},
    {.name = "dimensions",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions of a vector, normalized again",
     .set = assign<&PoolingTaskFields::dimensions>},
    {.name = "normalize",
     .type = Type::kBoolean,
     .fallback = "the model's",
     .help = "divide vectors by their length",
     .set = assign<&PoolingTaskFields::normalize>},
});

void check_task(const Call& call, const std::string& task) {
  const bool embeds = call.info().embeds();
  const std::string_view own = embeds ? "embed" : "classify";
  if (task.empty() || task == own || (!embeds && task == "score")) return;
  throw invalid_value("task", fmt::format("Invalid 'task': '{}'. This model supports '{}'.", quotable(task), own));
}

void run(Call& call) {
  const ModelInfo& model = call.info();
  if (model.task == Task::kGenerate && !model.embeds()) refuse_task(call, "pool texts");
  const auto& fields = call.fields.of<PoolingTaskFields>();
  const auto& shared = call.fields.of<PoolingFields>();
  check_task(call, fields.task);
  if (model.embeds()) {
    check_dimensions(model, fields.dimensions);
  } else if (fields.dimensions > 0 || fields.normalize) {
    throw unsupported_parameter(fields.dimensions > 0 ? "dimensions" : "normalize", "is for models that embed");
  }
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = input_texts(call, shared.input, prompt_text(call, std::nullopt), "input"),
                             .param = is_chat(call) ? "messages" : "input",
                             .dimensions = fields.dimensions,
                             .normalize = normalize_of(call, fields.normalize),
                             .activate = shared.use_activation,
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  job.body = [name = call.model.name, base64 = shared.base64,
              created = std::time(nullptr)](const PoolingResult& result) {
    std::string data;
    for (size_t i = 0; i < result.vectors.size(); ++i) {
      data += fmt::format(R"({}{{"index":{},"object":"pooling","data":{}}})", i > 0 ? "," : "", i,
                          vector_text(result.vectors[i], base64));
    }
    return fmt::format(R"({{"id":"{}","object":"list","created":{},"model":{},"data":[{}],"usage":{}}})",
                       next_id("pool"), created, dump_json(name), data, dump_json(usage_of(result)));
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{
    .name = "pooling",
    .dialect = &kOpenAi,
    .paths = {"/pooling", "/v1/pooling"},
    .flags = Route::kGenerates,
    .help = "vectors or scores of labels, as the model gives them",
    .parameters = {model_parameter(), input_parameters(), kParameters, truncation_parameters(), activation_parameter(),
                   conversation_parameters(), special_token_parameter(), label_parameter()},
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::pooling
