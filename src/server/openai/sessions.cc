// /v1/sessions/ID: the end of a conversation whose cached tokens were kept for its next turn, and
// /v1/sessions/ID/prefetch: the word that this turn comes soon.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::sessions {
namespace {

// Calls f for the engine of the model that the query names, else for those of all loaded models.
template <class F>
void each_engine(Call& call, F&& f) {
  if (call.model.engine != nullptr) {
    f(*call.model.engine);
  } else if (call.model.name.empty()) {
    for (const ServedModel& model : call.models.engines()) f(*model.engine);
  }
}

// A session that is unknown has ended already.
void run_end(Call& call) {
  each_engine(call, [&](Engine& engine) { engine.end_session(call.tenant, call.suffix); });
  call.send({.body = dump_json({{"id", call.suffix}, {"object", "session.deleted"}, {"deleted", true}})});
}

// It is not waited for: the next turn uses what is there by then.
void run_prefetch(Call& call) {
  constexpr std::string_view kPrefetch = "/prefetch";
  std::string_view session = call.suffix;
  if (!session.ends_with(kPrefetch) || session.size() == kPrefetch.size()) {
    throw ApiError{
        .status = 404, .message = "Unknown path: only /v1/sessions/ID/prefetch takes POST.", .code = "not_found"};
  }
  session.remove_suffix(kPrefetch.size());
  each_engine(call, [&](Engine& engine) { engine.prefetch_session(call.tenant, session); });
  call.send({.body = dump_json({{"id", session}, {"object", "session.prefetch"}})});
}

const EndpointInfo endpoint{.name = "session end",
                            .dialect = &kOpenAi,
                            .method = "DELETE",
                            .paths = {"/v1/sessions/*"},
                            .flags = Route::kQuick,
                            .help = "ends a session: its cached tokens are kept no longer than others",
                            .run = run_end};
const EndpointInfo prefetch_endpoint{.name = "session prefetch",
                                     .dialect = &kOpenAi,
                                     .paths = {"/v1/sessions/*"},
                                     .flags = Route::kQuick,
                                     .help =
                                         "ID/prefetch: the session's next turn comes soon: its cached tokens are "
                                         "loaded from host memory or disk",
                                     .run = run_prefetch};
const Registry<EndpointInfo> registered{endpoint}, registered_prefetch{prefetch_endpoint};

}  // namespace
}  // namespace sluice::server::openai::sessions
