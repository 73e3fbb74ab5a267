// /lora-adapters, and the adapter that the field `lora` of a completion chooses: adapters have numbers there, in the
// order in which they were loaded. A request has one adapter at most, with the scale of its file.
#include "server/llamacpp/adapters.h"

#include <fmt/core.h>

#include "server/endpoint.h"
#include "server/llamacpp/dialect.h"
#include "server/members.h"

namespace sluice::server {
namespace {

constexpr size_t kMostAdapters = 4096;

double scale_of(const Json& entry, const FieldPath& path) {
  const Json& scale = required_member(entry, "scale", path);
  if (!scale.is_number()) throw invalid_type(path / "scale", "a number", scale);
  return scale.get<double>();
}

void list_adapters(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  Json list = Json::array();
  const Engine* engine = call.model.engine.get();  // null while the model is not loaded
  for (const AdapterInfo& adapter : engine != nullptr ? engine->adapters() : std::vector<AdapterInfo>()) {
    list.push_back(
        {{"id", list.size()}, {"path", adapter.folder}, {"scale", adapter.name == call.model.adapter ? 1.0 : 0.0}});
  }
  call.send({.body = dump_json(list)});
}

const EndpointInfo endpoint{.name = "llama.cpp lora-adapters",
                            .dialect = &kLlamaCpp,
                            .method = "GET",
                            .paths = {"/lora-adapters"},
                            .flags = Route::kQuick,
                            .help = "the model's adapters (?model=NAME), for llama.cpp's clients",
                            .run = list_adapters};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace

std::string llama_adapter(const Call& call, const Json& lora) {
  const FieldPath path = "lora";
  expect_array(lora, path, 0, kMostAdapters);
  const std::vector<AdapterInfo> adapters = call.engine().adapters();
  std::string chosen;
  for (size_t i = 0; i < lora.size(); ++i) {
    const FieldPath where = path[i];
    const Json& entry = expect_object(lora[i], where);
    const int64_t id = expect_integer(required_member(entry, "id", where), where / "id", 0, INT64_MAX);
    const double scale = scale_of(entry, where);
    if (id >= std::ssize(adapters)) {
      const std::string field = (where / "id").str();
      throw invalid_value(field, fmt::format("Invalid '{}': the model has {} adapters.", field, adapters.size()));
    }
    if (scale == 0) continue;
    const std::string field = (where / "scale").str();
    if (scale != 1) {
      throw invalid_value(field, fmt::format("Invalid '{}': expected 0 or 1, but got {}. The scale of an adapter is "
                                             "that of its files.",
                                             field, scale));
    }
    if (!chosen.empty()) {
      throw invalid_value(field, fmt::format("Invalid '{}': a request has one adapter at most.", field));
    }
    chosen = adapters[static_cast<size_t>(id)].name;
  }
  return chosen;
}

}  // namespace sluice::server
