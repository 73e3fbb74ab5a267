// /sleep, /wake_up and /is_sleeping, as vLLM has them, for models that come and go (server/model_host.h).
#include <fmt/core.h>

#include <algorithm>

#include "server/openai/shared_fields.h"

namespace sluice::server::openai::sleep {
namespace {

// The models that a request is about: the one that its query names, or all.
std::vector<ServedModel> targets(const Call& call) {
  return call.model.name.empty() ? call.models.all() : std::vector{call.model};
}

void refuse_setting(const Call& call, std::string_view name, std::string_view value, std::string_view why) {
  if (query_value(call.target, name) != value) return;
  throw unsupported_parameter(std::string(name), fmt::format("{} is not supported: {}", value, why));
}

void run_sleep(Call& call) {
  ModelHost* const host = call.models.host();
  if (host == nullptr) {
    throw ApiError{.status = 501,
                   .message =
                       "/sleep is not supported for a model that always stays loaded. Start the server with "
                       "--load-models-on-demand or --model-idle-seconds, and the model can be unloaded.",
                   .code = "unsupported_endpoint"};
  }
  refuse_setting(call, "level", "0", "a model is unloaded, or answers");
  for (const char* mode : {"abort", "keep"}) refuse_setting(call, "mode", mode, "requests that run are finished first");
  for (const ServedModel& model : targets(call)) host->unload(*model.hosted);
  call.send({.content_type = {}, .body = {}});
}

// The model was loaded before this runs, if it comes and goes.
void run_wake_up(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  call.send({.content_type = {}, .body = {}});
}

void run_is_sleeping(Call& call) {
  const std::vector<ServedModel> models = targets(call);
  const bool awake = std::ranges::any_of(models, [](const ServedModel& model) { return model.engine != nullptr; });
  call.send({.body = dump_json({{"is_sleeping", !awake}})});
}

const EndpointInfo sleep_endpoint{.name = "sleep",
                                  .dialect = &kOpenAi,
                                  .paths = {"/sleep"},
                                  .flags = Route::kQuick,
                                  .help = "unload all models, or ?model=NAME, when the requests that run have ended",
                                  .run = run_sleep};
const EndpointInfo wake_endpoint{.name = "wake_up",
                                 .dialect = &kOpenAi,
                                 .paths = {"/wake_up"},
                                 .help = "load the model (?model=NAME) now, and not at its next request",
                                 .needs_engine = [](const Json&) { return true; },
                                 .run = run_wake_up};
const EndpointInfo state_endpoint{.name = "is_sleeping",
                                  .dialect = &kOpenAi,
                                  .method = "GET",
                                  .paths = {"/is_sleeping"},
                                  .flags = Route::kQuick,
                                  .help = "whether no model is loaded, or not ?model=NAME",
                                  .run = run_is_sleeping};
const Registry<EndpointInfo> registered_sleep{sleep_endpoint}, registered_wake{wake_endpoint},
    registered_state{state_endpoint};

}  // namespace
}  // namespace sluice::server::openai::sleep
