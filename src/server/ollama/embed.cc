// /api/embed and the older /api/embeddings.
#include <fmt/core.h>

#include <array>
#include <chrono>
#include <iterator>

#include "server/ollama/dialect.h"
#include "server/ollama/options.h"
#include "server/rows.h"

namespace sluice::server::ollama::embed {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostTexts = 2048;

struct EmbedFields {
  Json input;  // a string or an array of strings
  std::string prompt;
  bool truncate = true;
  int dimensions = 0;  // 0: all
};

constexpr auto kEmbed = std::to_array<Parameter>({
    {.name = "input",
     .type = Type::kStrings,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a text or several",
     .set = assign<&EmbedFields::input>},
    {.name = "truncate",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "cut texts off at the model's limit; false: longer ones are errors",
     .set = assign<&EmbedFields::truncate>},
    {.name = "dimensions",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions (Matryoshka), normalized again",
     .set = assign<&EmbedFields::dimensions>},
});

constexpr auto kOld = std::to_array<Parameter>({
    {.name = "prompt",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "the text",
     .set = assign<&EmbedFields::prompt>},
});

constexpr Parameter kOptions[] = {refused("options", "[{}]")};

PooledText encode(Call& call, const std::string& text, bool truncate, const FieldPath& path) {
  if (text.empty()) throw invalid_value(path, fmt::format("Invalid '{}': it has no text.", path.str()));
  const int context = call.info().max_model_len;
  if (!truncate) check_text_length(text.size(), context, path);
  return call.engine().encode(text, std::nullopt, {.tokens = truncate ? context : 0});
}

std::string numbers(const std::vector<float>& vector) {
  std::string out = "[";
  for (const float value : vector) fmt::format_to(std::back_inserter(out), "{}{}", out.size() == 1 ? "" : ",", value);
  out += ']';
  return out;
}

PoolingJob job_of(Call& call, std::string param) {
  const ModelInfo& model = call.info();
  const int dimensions = call.fields.of<EmbedFields>().dimensions;
  apply_keep_alive(call);
  if (!model.embeds()) refuse_task(call, "give embeddings");
  if (dimensions > model.vector_size) {
    throw invalid_value("dimensions", fmt::format("Invalid 'dimensions': expected at most the {} dimensions of this "
                                                  "model's vectors, but got {}.",
                                                  model.vector_size, dimensions));
  }
  return {.request = {.id = call.request_id,
                      .param = std::move(param),
                      .dimensions = dimensions,
                      .normalize = {},
                      .activate = {},
                      .deadline = call.deadline},
          .body = {},
          .headers = {}};
}

void embed(Call& call) {
  PoolingJob job = job_of(call, "input");
  const auto& fields = call.fields.of<EmbedFields>();
  const FieldPath path = "input";
  const auto add = [&](const Json& text, const FieldPath& where) {
    job.request.texts.push_back(encode(call, text.get_ref<const std::string&>(), fields.truncate, where));
  };
  if (fields.input.is_string()) add(fields.input, path);
  for (size_t i = 0; fields.input.is_array() && i < fields.input.size(); ++i) add(fields.input[i], path[i]);
  job.headers = call.warnings();
  job.body = [name = call.model.name, start = std::chrono::steady_clock::now()](const PoolingResult& result) {
    std::string vectors;
    for (const auto& vector : result.vectors) {
      if (!vectors.empty()) vectors += ',';
      vectors += numbers(vector);
    }
    const auto time = std::chrono::steady_clock::now() - start;
    return fmt::format(
        R"({{"model":{},"embeddings":[{}],"total_duration":{},"load_duration":0,"prompt_eval_count":{}}})",
        dump_json(name), vectors, std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
        result.prompt_tokens);
  };
  call.embed(std::move(job));
}

void embed_one(Call& call) {
  PoolingJob job = job_of(call, "prompt");
  job.request.texts.push_back(encode(call, call.fields.of<EmbedFields>().prompt, /*truncate=*/true, "prompt"));
  job.headers = call.warnings();
  job.body = [](const PoolingResult& result) {
    return fmt::format(R"({{"embedding":{}}})", numbers(result.vectors.front()));
  };
  call.embed(std::move(job));
}

const EndpointInfo several{.name = "ollama embed",
                           .dialect = &kOllama,
                           .paths = {"/api/embed"},
                           .flags = Route::kGenerates,
                           .help = "Ollama's vectors of texts",
                           .parameters = {model_parameter(), kEmbed, kOptions, ollama_keep_alive_parameter()},
                           .run = embed};
const EndpointInfo one{.name = "ollama embeddings",
                       .dialect = &kOllama,
                       .paths = {"/api/embeddings"},
                       .flags = Route::kGenerates,
                       .help = "Ollama's vector of a text",
                       .parameters = {model_parameter(), kOld, kOptions, ollama_keep_alive_parameter()},
                       .run = embed_one};
const Registry<EndpointInfo> registered_several{several}, registered_one{one};

}  // namespace
}  // namespace sluice::server::ollama::embed
