// /load: how many sequences of all models run or wait, as vLLM's endpoint for load balancers answers it.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::load {
namespace {

void run(Call& call) {
  int64_t load = 0;
  for (const ServedModel& model : call.models.engines()) {
    const Health health = model.engine->health();
    load += health.running + health.waiting;
  }
  call.send({.body = dump_json({{"server_load", load}})});
}

const EndpointInfo endpoint{.name = "load",
                            .dialect = &kOpenAi,
                            .method = "GET",
                            .paths = {"/load"},
                            .flags = Route::kQuick,
                            .help = "sequences that run or wait",
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::load
