// /v1/models: the served models, with vLLM's additions.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::models {
namespace {

// The name under which the adapter's model is served.
std::string base_of(const ServedModel& adapter, const Models& models) {
  for (const ServedModel& model : models.all()) {
    if (model.same_model(adapter) && model.adapter.empty()) return model.name;
  }
  return adapter.info().name;
}

// The folder of a served model's adapter, or its name while the model is not loaded.
std::string root_of(const ServedModel& served) {
  if (served.engine == nullptr) return served.adapter;
  for (AdapterInfo& adapter : served.engine->adapters()) {
    if (adapter.name == served.adapter) return std::move(adapter.folder);
  }
  return served.adapter;
}

Json model_card(const ServedModel& served, const Models& models) {
  const ModelInfo& model = served.info();
  const bool is_adapter = !served.adapter.empty();
  Json card = {{"id", served.name},
               {"object", "model"},
               {"created", model.created},
               {"owned_by", "sluice"},
               {"root", is_adapter ? root_of(served) : model.name},
               {"parent", is_adapter ? Json(base_of(served, models)) : Json(nullptr)},
               {"max_model_len", model.max_model_len},
               {"task", to_string(model.task)}};
  if (served.hosted) card["loaded"] = served.engine != nullptr;
  return card;
}

void list(Call& call) {
  Json data = Json::array();
  for (const ServedModel& model : call.models.all()) data.push_back(model_card(model, call.models));
  call.send({.body = dump_json({{"object", "list"}, {"data", std::move(data)}})});
}

void show(Call& call) {
  const auto model = call.models.find(call.suffix);
  if (!model) throw model_not_found(call.suffix, call.models.names());
  call.send({.body = dump_json(model_card(*model, call.models))});
}

const EndpointInfo all{.name = "models",
                       .dialect = &kOpenAi,
                       .method = "GET",
                       .paths = {"/v1/models", "/models"},
                       .flags = Route::kQuick,
                       .help = "the served models",
                       .run = list};
const EndpointInfo one{.name = "model",
                       .dialect = &kOpenAi,
                       .method = "GET",
                       .paths = {"/v1/models/*"},
                       .flags = Route::kQuick,
                       .help = "one model",
                       .run = show};
const Registry<EndpointInfo> registered_all{all}, registered_one{one};

}  // namespace
}  // namespace sluice::server::openai::models
