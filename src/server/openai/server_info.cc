// /server_info, in the forms of vLLM and of SGLang: what is served and how, without secrets.
#include "server/openai/shared_fields.h"
#include "sluice/version.h"

namespace sluice::server::openai::server_info {
namespace {

Json vllm_config(const ServedModel& served) {
  const ModelInfo& model = served.info();
  return {{"model_config",
           {{"model", model.path},
            {"served_model_name", served.name},
            {"dtype", model.dtype},
            {"max_model_len", model.max_model_len},
            {"task", to_string(model.task)}}},
          {"cache_config", {{"cache_dtype", model.kv_cache_dtype}, {"kv_cache_size_tokens", model.kv_cache_tokens}}},
          {"device_config", {{"device", model.backend}}}};
}

Json state_of(const ServedModel& served) {
  const Health health = served.engine != nullptr ? served.engine->health() : Health{};
  return {{"model", served.name},
          {"loaded", served.engine != nullptr},
          {"num_running_reqs", health.running},
          {"num_waiting_reqs", health.waiting}};
}

void run(Call& call) {
  Json states = Json::array();
  for (const ServedModel& model : call.models.engines()) states.push_back(state_of(model));
  Json body = {{"version", kVersion}, {"status", "ready"}, {"internal_states", std::move(states)}};
  if (!call.model.name.empty()) {
    const ModelInfo& model = call.info();
    body["vllm_config"] = vllm_config(call.model);
    body["model_path"] = body["tokenizer_path"] = model.path;
    body["served_model_name"] = call.model.name;
    body["dtype"] = model.dtype;
    body["device"] = model.backend;
    body["context_length"] = model.max_model_len;
    body["kv_cache_dtype"] = model.kv_cache_dtype;
    body["max_total_num_tokens"] = model.kv_cache_tokens;
    body["is_embedding"] = model.task == Task::kEmbed;
  }
  call.send({.body = dump_json(body)});
}

const EndpointInfo endpoint{.name = "server_info",
                            .dialect = &kOpenAi,
                            .method = "GET",
                            .paths = {"/server_info", "/get_server_info"},
                            .flags = Route::kQuick,
                            .help = "the server and the model (?model=NAME), for clients of vLLM and SGLang",
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::server_info
