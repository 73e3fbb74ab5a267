// /lora-adapters, and the adapter that the field `lora` of a completion chooses: adapters have numbers there, in the
// order in which they were loaded. A request has one adapter at most.
#include "server/llamacpp/adapters.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "server/endpoint.h"
#include "server/llamacpp/dialect.h"
#include "server/members.h"

namespace sluice::server {
namespace {

constexpr size_t kMostAdapters = 4096;

struct DefaultFields {
  const Json* lora = nullptr;
};

float scale_of(const Json& entry, const AdapterInfo& adapter, const FieldPath& path) {
  const FieldPath where = path / "scale";
  const Json& value = required_member(entry, "scale", path);
  if (!value.is_number()) throw invalid_type(where, "a number", value);
  const auto scale = value.get<double>();
  if (!(std::abs(scale) <= double{std::numeric_limits<float>::max()})) {
    throw invalid_value(
        where, fmt::format("Invalid '{}': expected a number of single precision, but got {}.", where.str(), scale));
  }
  if (!adapter.unscalable.empty() && scale != 0 && scale != 1) {
    throw invalid_value(where, fmt::format("Invalid '{}': expected 0 or 1, but got {}. The adapter's module '{}' has "
                                           "more than lora_A and lora_B of a linear layer.",
                                           where.str(), scale, adapter.unscalable));
  }
  return static_cast<float>(scale);
}

// The scales of requests that choose no adapter. An adapter's own name always stands for its scale 1.
void list_adapters(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  const ServedModel& model = call.model;
  const ScaledAdapter used = model.adapter.empty() ? model.default_adapter : ScaledAdapter{model.adapter};
  Json list = Json::array();
  const Engine* engine = model.engine.get();  // null while the model is not loaded
  for (const AdapterInfo& adapter : engine != nullptr ? engine->adapters() : std::vector<AdapterInfo>()) {
    list.push_back({{"id", list.size()},
                    {"path", adapter.folder},
                    {"scale", adapter.name == used.name ? double{used.scale} : 0.0}});
  }
  call.send({.body = dump_json(list)});
}

// Requests that were submitted keep what they have.
void set_defaults(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  call.models.set_default_adapter(call.model, llama_adapter(call, *call.fields.of<DefaultFields>().lora));
  call.send({.body = R"({"success":true})", .headers = call.warnings()});
}

constexpr Parameter kScales[] = {{.name = "lora",
                                  .type = Parameter::Type::kArray,
                                  .max_items = kMostAdapters,
                                  .max_bytes = 64 << 10,
                                  .required = true,
                                  .fallback = "required",
                                  .help = "adapters as {\"id\", \"scale\"}; one of them may have another scale than 0, "
                                          "and those that are left out get 0. The body may be this array itself",
                                  .set = assign<&DefaultFields::lora>}};

const EndpointInfo listing{.name = "llama.cpp lora-adapters",
                           .dialect = &kLlamaCpp,
                           .method = "GET",
                           .paths = {"/lora-adapters"},
                           .flags = Route::kQuick,
                           .help = "the model's adapters (?model=NAME), for llama.cpp's clients",
                           .run = list_adapters};
const EndpointInfo setting{.name = "llama.cpp set lora-adapters",
                           .dialect = &kLlamaCpp,
                           .paths = {"/lora-adapters"},
                           .help = "scales of adapters for requests that name the model (?model=NAME) and no adapter",
                           .parameters = {kScales},
                           .array_field = "lora",
                           .needs_engine = [](const Json&) { return true; },
                           .run = set_defaults};
const Registry<EndpointInfo> registered_listing{listing}, registered_setting{setting};

}  // namespace

ScaledAdapter llama_adapter(const Call& call, const Json& lora) {
  const FieldPath path = "lora";
  expect_array(lora, path, 0, kMostAdapters);
  const std::vector<AdapterInfo> adapters = call.engine().adapters();
  std::vector<bool> seen(adapters.size());
  ScaledAdapter chosen;
  for (size_t i = 0; i < lora.size(); ++i) {
    const FieldPath where = path[i];
    const Json& entry = expect_object(lora[i], where);
    const FieldPath number = where / "id";
    const auto id = static_cast<size_t>(expect_integer(required_member(entry, "id", where), number, 0, INT64_MAX));
    if (id >= adapters.size()) {
      throw invalid_value(number,
                          fmt::format("Invalid '{}': the model has {} adapters.", number.str(), adapters.size()));
    }
    if (seen[id]) throw invalid_value(number, fmt::format("Invalid '{}': {} is there twice.", number.str(), id));
    seen[id] = true;
    const float scale = scale_of(entry, adapters[id], where);
    if (scale == 0) continue;
    if (!chosen.name.empty()) {
      const FieldPath field = where / "scale";
      throw invalid_value(field,
                          fmt::format("Invalid '{}': expected 0. A request has one adapter at most.", field.str()));
    }
    chosen = {.name = adapters[id].name, .scale = scale};
  }
  return chosen;
}

}  // namespace sluice::server
