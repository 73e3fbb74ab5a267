// /reset_prefix_cache, as vLLM has it, and SGLang's /flush_cache: all cached prefixes are forgotten.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::prefix_cache {
namespace {

// Of the model that the query names, else of all that are loaded.
void reset(const Call& call) {
  if (!call.model.name.empty()) {
    if (call.model.engine != nullptr) call.model.engine->reset_prefix_cache();
    return;
  }
  for (const ServedModel& model : call.models.engines()) model.engine->reset_prefix_cache();
}

void run_reset(Call& call) {
  reset(call);
  call.send({.content_type = {}, .body = {}});
}

void run_flush(Call& call) {
  reset(call);
  call.send({.content_type = "text/plain; charset=utf-8", .body = "Cache flushed.\n"});
}

constexpr std::string_view kHelp = "forget all cached prefixes, or those of ?model=NAME; requests that run keep theirs";

const EndpointInfo reset_endpoint{.name = "reset_prefix_cache",
                                  .dialect = &kOpenAi,
                                  .paths = {"/reset_prefix_cache"},
                                  .flags = Route::kQuick,
                                  .help = kHelp,
                                  .run = run_reset};
const EndpointInfo flush_endpoint{.name = "sglang flush_cache",
                                  .dialect = &kOpenAi,
                                  .paths = {"/flush_cache"},
                                  .flags = Route::kQuick,
                                  .help = kHelp,
                                  .run = run_flush};
const EndpointInfo get_endpoint{.name = "sglang flush_cache by GET",
                                .dialect = &kOpenAi,
                                .method = "GET",
                                .paths = {"/flush_cache"},
                                .flags = Route::kQuick,
                                .help = kHelp,
                                .run = run_flush};
const Registry<EndpointInfo> registered_reset{reset_endpoint}, registered_flush{flush_endpoint},
    registered_get{get_endpoint};

}  // namespace
}  // namespace sluice::server::openai::prefix_cache
