// /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them. Only what is below --lora-root is read.
#include <fmt/core.h>

#include <filesystem>

#include "server/openai/shared_fields.h"
#include "sluice/error.h"

namespace sluice::server::openai::adapters {
namespace {

namespace fs = std::filesystem;

struct AdapterFields {
  std::string name, path;
};

constexpr Parameter kName{.name = "lora_name",
                          .type = Parameter::Type::kString,
                          .max_bytes = 256,
                          .required = true,
                          .fallback = "required",
                          .help = "name of the adapter, which requests give as their model",
                          .set = assign<&AdapterFields::name>};
constexpr Parameter kLoad[] = {kName,
                               {.name = "lora_path",
                                .type = Parameter::Type::kString,
                                .max_bytes = 4096,
                                .required = true,
                                .fallback = "required",
                                .help = "the adapter's folder or GGUF file, below --lora-root",
                                .set = assign<&AdapterFields::path>}};
constexpr Parameter kUnload[] = {kName};

// The folder or GGUF file that the path stands for, without symbolic links.
std::string place_below(std::string_view root, const std::string& path) {
  if (root.empty()) {
    throw ApiError{.status = 403,
                   .message = "Adapters can be loaded only if the server was started with --lora-root.",
                   .param = "lora_path"};
  }
  const auto outside = [] {
    return ApiError{
        .message = "Invalid 'lora_path': it must be a folder or a GGUF file below the server's --lora-root.",
        .param = "lora_path",
        .code = "invalid_value"};
  };
  if (path.empty() || path.find('\0') != std::string::npos) throw outside();
  std::error_code failed;
  const fs::path real_root = fs::canonical(fs::path(root), failed);
  if (failed) throw outside();
  const fs::path place = fs::canonical(real_root / fs::path(path), failed);
  const bool file = !failed && fs::is_regular_file(place, failed) && place.extension() == ".gguf";
  if (failed || (!file && !fs::is_directory(place, failed))) throw outside();
  const fs::path relative = place.lexically_relative(real_root);
  if (relative.empty() || relative == "." || *relative.begin() == "..") throw outside();
  return place.string();
}

// What is wrong with the files is for the client, who named them.
void load_into(Engine& engine, const std::string& name, const std::string& place) {
  try {
    engine.load_adapter(name, place);
  } catch (const Error& e) {
    if (e.code != ErrorCode::kUnsupportedModel && e.code != ErrorCode::kCorruptFile) throw;
    throw ApiError{.message = e.what(), .param = "lora_path", .code = "invalid_value"};
  }
}

void load(Call& call) {
  const auto& fields = call.fields.of<AdapterFields>();
  const std::optional<ServedModel> model = call.models.only();
  if (!model || model->hosted) {
    throw ApiError{.message =
                       "Adapters can be loaded only while one model is served, which stays loaded. Give those "
                       "of other models with --lora-modules."};
  }
  if (call.models.find(fields.name)) {
    throw invalid_value("lora_name", fmt::format("the name '{}' is already in use", fields.name));
  }
  load_into(*model->engine, fields.name, place_below(call.lora_root, fields.path));
  call.models.add_adapter(fields.name, model->name);
  call.send({.body = dump_json(fmt::format("Success: LoRA adapter '{}' added successfully.", fields.name)),
             .headers = call.warnings()});
}

void unload(Call& call) {
  const auto& fields = call.fields.of<AdapterFields>();
  if (const auto found = call.models.find(fields.name); found && found->hosted && !found->adapter.empty()) {
    throw ApiError{.message = "The adapters of models that come and go cannot be unloaded.", .param = "lora_name"};
  }
  const std::optional<ServedModel> model = call.models.remove_adapter(fields.name);
  if (!model) {
    throw ApiError{.status = 404,
                   .message = fmt::format("The lora adapter '{}' cannot be found.", fields.name),
                   .param = "lora_name",
                   .code = "model_not_found"};
  }
  model->engine->unload_adapter(fields.name);
  call.send({.body = dump_json(fmt::format("Success: LoRA adapter '{}' removed successfully.", fields.name)),
             .headers = call.warnings()});
}

const EndpointInfo loading{.name = "load_lora_adapter",
                           .dialect = &kOpenAi,
                           .paths = {"/v1/load_lora_adapter"},
                           .help = "load an adapter (LoRA) of the model",
                           .parameters = {kLoad},
                           .run = load};
const EndpointInfo unloading{.name = "unload_lora_adapter",
                             .dialect = &kOpenAi,
                             .paths = {"/v1/unload_lora_adapter"},
                             .help = "unload an adapter; requests that run keep it",
                             .parameters = {kUnload},
                             .run = unload};
const Registry<EndpointInfo> registered_load{loading}, registered_unload{unloading};

}  // namespace
}  // namespace sluice::server::openai::adapters
