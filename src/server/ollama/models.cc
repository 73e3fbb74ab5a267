// /api/tags, /api/ps, /api/show and /api/version: the served models as Ollama's clients list them.
#include <fmt/core.h>

#include <chrono>
#include <filesystem>

#include "base/folder.h"
#include "base/sha256.h"
#include "server/endpoint.h"
#include "server/engine_request.h"
#include "server/ollama/dialect.h"
#include "server/ollama/models.h"
#include "server/rows.h"
#include "sluice/version.h"

namespace sluice::server::ollama::models {
namespace {

struct ShowFields {
  std::string name;  // the older name of "model"
};

// Bytes of the checkpoint's files. 0 when they are gone.
uint64_t size_of(const ModelInfo& model) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(model.path, ignored)) return std::filesystem::file_size(model.path, ignored);
  uint64_t bytes = 0;
  for (const std::string& name : names_in(model.path, ignored)) {
    const std::filesystem::path file = std::filesystem::path(model.path) / name;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    const uint64_t size = std::filesystem::file_size(file, ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

// "6.1M"
std::string count_text(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return fmt::format("{:.1f}B", count / 1e9);
  return count >= 1e6 ? fmt::format("{:.1f}M", count / 1e6) : fmt::format("{:.1f}K", count / 1e3);
}

Json details(const ModelInfo& model) {
  return {{"parent_model", ""},
          {"format", model.path.ends_with(".gguf") ? "gguf" : "safetensors"},
          {"family", model.family},
          {"families", Json::array({model.family})},
          {"parameter_size", count_text(model.parameters)},
          {"quantization_level", model.dtype}};
}

}  // namespace

Json card(const ServedModel& served) {
  const ModelInfo& model = served.info();
  return {{"name", served.name},
          {"model", served.name},
          {"modified_at", rfc3339(model.created * 1'000'000)},
          {"size", size_of(model)},
          {"digest", hex(sha256(fingerprint(model)))},
          {"details", details(model)}};
}

namespace {

void tags(Call& call) {
  Json list = Json::array();
  for (const ServedModel& served : call.models.all()) list.push_back(card(served));
  call.send({.body = dump_json({{"models", std::move(list)}})});
}

// When an idle model will be unloaded.
std::string end_of(const ServedModel& served, const ModelHost* host) {
  const auto end = served.hosted ? host->expires(*served.hosted) : std::nullopt;
  if (!end) return "9999-12-31T23:59:59Z";
  const auto left = *end - ModelHost::Clock::now();
  const auto then = std::chrono::system_clock::now().time_since_epoch() + left;
  return rfc3339(std::chrono::duration_cast<std::chrono::microseconds>(then).count());
}

void running(Call& call) {
  Json list = Json::array();
  for (const ServedModel& served : call.models.all()) {
    if (served.engine == nullptr) continue;
    Json one = card(served);
    const ModelInfo& model = served.info();
    one["size_vram"] = model.backend.starts_with("cuda") ? one["size"] : Json(0);
    one["context_length"] = model.max_model_len;
    one["expires_at"] = end_of(served, call.models.host());
    list.push_back(std::move(one));
  }
  call.send({.body = dump_json({{"models", std::move(list)}})});
}

Json capabilities(const ModelInfo& model) {
  Json out = Json::array();
  if (model.task == Task::kGenerate) out.push_back("completion");
  if (!model.tool_syntax.empty()) out.push_back("tools");
  if (!model.reasoning_syntax.empty()) out.push_back("thinking");
  if (model.embeds()) out.push_back("embedding");
  return out;
}

// Reads the older name of the model, if the request has it.
void find_named(Call& call) {
  const std::string& name = call.fields.of<ShowFields>().name;
  if (!name.empty()) {
    std::optional<ServedModel> model = find_model(call.models, kOllama, name);
    if (!model) throw model_not_found(name, call.models.names());
    call.model = std::move(*model);
  }
  if (call.model.name.empty()) throw model_not_named(call.models.names());
}

void show(Call& call) {
  find_named(call);
  const ModelInfo& model = call.info();
  Json info = {{"general.architecture", model.family},
               {"general.basename", model.name},
               {"general.parameter_count", model.parameters},
               {model.family + ".context_length", model.max_model_len},
               {model.family + ".vocab_size", model.vocab_size}};
  if (model.vector_size > 0) info[model.family + ".embedding_length"] = model.vector_size;
  call.send({.body = dump_json({{"modified_at", rfc3339(model.created * 1'000'000)},
                                {"details", details(model)},
                                {"model_info", std::move(info)},
                                {"capabilities", capabilities(model)}}),
             .headers = call.warnings()});
}

void version(Call& call) { call.send({.body = dump_json({{"version", kVersion}})}); }

constexpr Parameter kShow[] = {
    {.name = "name",
     .type = Parameter::Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "model",
     .help = "the older name of model",
     .set = assign<&ShowFields::name>},
    {.name = "verbose", .type = Parameter::Type::kBoolean, .fallback = "false", .help = "changes nothing"}};

const EndpointInfo tags_endpoint{.name = "ollama tags",
                                 .dialect = &kOllama,
                                 .method = "GET",
                                 .paths = {"/api/tags"},
                                 .help = "the served models, for Ollama's clients",
                                 .run = tags};
const EndpointInfo ps_endpoint{.name = "ollama ps",
                               .dialect = &kOllama,
                               .method = "GET",
                               .paths = {"/api/ps"},
                               .help = "the loaded models, for Ollama's clients",
                               .run = running};
const EndpointInfo show_endpoint{.name = "ollama show",
                                 .dialect = &kOllama,
                                 .paths = {"/api/show"},
                                 .help = "one model, for Ollama's clients",
                                 .parameters = {model_parameter(), kShow},
                                 .needs_engine = [](const Json&) { return false; },
                                 .names_model_otherwise = true,
                                 .run = show};
const EndpointInfo version_endpoint{.name = "ollama version",
                                    .dialect = &kOllama,
                                    .method = "GET",
                                    .paths = {"/api/version"},
                                    .flags = Route::kQuick,
                                    .help = "the version, for Ollama's clients",
                                    .run = version};
const Registry<EndpointInfo> registered_tags{tags_endpoint}, registered_ps{ps_endpoint}, registered_show{show_endpoint},
    registered_version{version_endpoint};

}  // namespace
}  // namespace sluice::server::ollama::models
