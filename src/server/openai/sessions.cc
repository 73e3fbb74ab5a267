// /v1/sessions/ID: the end of a conversation whose cached tokens were kept for its next turn.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::sessions {
namespace {

// Of the model that the query names, else of all that are loaded. A session that is unknown has ended already.
void run(Call& call) {
  const auto end = [&](Engine& engine) { engine.end_session(call.tenant, call.suffix); };
  if (call.model.engine != nullptr) {
    end(*call.model.engine);
  } else if (call.model.name.empty()) {
    for (const ServedModel& model : call.models.engines()) end(*model.engine);
  }
  call.send({.body = dump_json({{"id", call.suffix}, {"object", "session.deleted"}, {"deleted", true}})});
}

const EndpointInfo endpoint{.name = "session end",
                            .dialect = &kOpenAi,
                            .method = "DELETE",
                            .paths = {"/v1/sessions/*"},
                            .flags = Route::kQuick,
                            .help = "ends a session: its cached tokens are kept no longer than others",
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::sessions
