// /v1/embeddings, with OpenAI's fields and vLLM's.
#include <fmt/core.h>

#include <array>
#include <chrono>

#include "server/openai/pooling_fields.h"
#include "sluice/dimensions.h"

namespace sluice::server::openai::embeddings {
namespace {

using Type = Parameter::Type;

struct EmbeddingFields {
  int dimensions = 0;  // 0: all
  std::optional<bool> normalize;
  std::optional<std::string> prompt_name;
};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "dimensions",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions, normalized again; for models trained so (Matryoshka)",
     .set = assign<&EmbeddingFields::dimensions>},
    {.name = "normalize",
     .type = Type::kBoolean,
     .fallback = "the model's",
     .help = "divide vectors by their length",
     .set = assign<&EmbeddingFields::normalize>},
    {.name = "prompt_name",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "the model's",
     .help = "which of the model's prompts to put before texts (config_sentence_transformers.json); an empty string: "
             "none",
     .set = assign<&EmbeddingFields::prompt_name>},
});

void run(Call& call) {
  const ModelInfo& model = call.info();
  if (!model.embeds()) refuse_task(call, "give embeddings");
  const auto& fields = call.fields.of<EmbeddingFields>();
  check_dimensions(model, fields.dimensions);
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = input_texts(call, call.fields.of<PoolingFields>().input,
                                                  prompt_text(call, fields.prompt_name), "input"),
                             .param = is_chat(call) ? "messages" : "input",
                             .dimensions = fields.dimensions,
                             .normalize = normalize_of(call, fields.normalize),
                             .activate = {},
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  const auto created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  job.body = [id = "embd-" + call.request_id, created, name = call.model.name,
              base64 = call.fields.of<PoolingFields>().base64](const PoolingResult& result) {
    std::string data;
    for (size_t i = 0; i < result.vectors.size(); ++i) {
      data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i > 0 ? "," : "", i,
                          vector_text(result.vectors[i], base64));
    }
    return fmt::format(R"({{"id":{},"object":"list","created":{},"data":[{}],"model":{},"usage":{}}})", dump_json(id),
                       created, data, dump_json(name), dump_json(usage_of(result)));
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{
    .name = "embeddings",
    .dialect = &kOpenAi,
    .paths = {"/v1/embeddings", "/embeddings"},
    .flags = Route::kGenerates,
    .help = "vectors of texts",
    .parameters = {model_parameter(), input_parameters(), kParameters, truncation_parameters(), activation_parameter(),
                   conversation_parameters(), special_token_parameter(), label_parameter()},
    .shared = {{"/invocations",
                [](const Json& body, Task task) {
                  const bool has_text = body.contains("input") || (task == Task::kEmbed && body.contains("messages"));
                  return task != Task::kScore && has_text;
                }}},
    .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::embeddings
