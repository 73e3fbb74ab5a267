// /props, /slots and /apply-template.
#include <fmt/core.h>

#include <cmath>

#include "server/engine_request.h"
#include "server/llamacpp/dialect.h"
#include "server/llamacpp/settings.h"
#include "server/openai/shared_fields.h"
#include "server/rows.h"
#include "sluice/version.h"

namespace sluice::server {
namespace {

void props(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  const ModelInfo& model = call.info();
  call.send(
      {.body = dump_json({{"default_generation_settings",
                           {{"n_ctx", model.max_model_len}, {"params", llama_settings(model.default_sampling, model)}}},
                          {"model_alias", call.model.name},
                          {"model_path", model.path},
                          {"modalities", {{"vision", false}, {"audio", false}}},
                          {"build_info", fmt::format("sluice {}", kVersion)}})});
}

// A slot for each sequence that runs, and an idle one, which the next sequence gets: their number is not fixed.
void slots(Call& call) {
  Json list = Json::array();
  for (const ServedModel& model : call.models.engines()) {
    const int running = model.engine->health().running;
    for (int i = 0; i <= running; ++i) {
      list.push_back(
          {{"id", list.size()}, {"is_processing", i < running}, {"n_ctx", model.engine->model().max_model_len}});
    }
  }
  call.send({.body = dump_json(list)});
}

void apply_template(Call& call) {
  if (!call.fields.of<ConversationFields>().messages.is_array()) throw missing_parameter("messages");
  const std::string prompt = call.engine().render_chat(chat_prompt(call, /*with_tools=*/true));
  call.send({.body = dump_json({{"prompt", prompt}}), .headers = call.warnings()});
}

const EndpointInfo props_endpoint{.name = "llama.cpp props",
                                  .dialect = &kLlamaCpp,
                                  .method = "GET",
                                  .paths = {"/props"},
                                  .flags = Route::kQuick,
                                  .help = "the model (?model=NAME) and its defaults, for llama.cpp's clients",
                                  .run = props};
const EndpointInfo slots_endpoint{.name = "llama.cpp slots",
                                  .dialect = &kLlamaCpp,
                                  .method = "GET",
                                  .paths = {"/slots"},
                                  .flags = Route::kQuick,
                                  .help = "the sequences that run and an idle slot, for llama.cpp's clients",
                                  .run = slots};
const EndpointInfo template_endpoint{.name = "llama.cpp apply-template",
                                     .dialect = &kLlamaCpp,
                                     .paths = {"/apply-template"},
                                     .help = "messages through the chat template",
                                     .parameters = {model_parameter(), conversation_parameters()},
                                     .run = apply_template};
const Registry<EndpointInfo> registered_props{props_endpoint}, registered_slots{slots_endpoint},
    registered_template{template_endpoint};

}  // namespace

Json llama_settings(const SamplingParams& sampling, const ModelInfo& model) {
  Json stop = Json::array();
  for (const std::string& text : sampling.stop) stop.push_back(text);
  Json biases = Json::array();  // JSON has no infinity: null stands for never
  for (const auto& [id, bias] : sampling.logit_bias) {
    biases.push_back({{"token", id}, {"bias", std::isfinite(bias) ? Json(bias) : Json()}});
  }
  if (sampling.ignore_eos) {
    for (const TokenId id : model.eos_token_ids) biases.push_back({{"token", id}, {"bias", Json()}});
  }
  Json settings = {{"n_predict", sampling.max_tokens.value_or(-1)},
                   {"seed", sampling.seed.value_or(-1)},
                   {"ignore_eos", sampling.ignore_eos},
                   {"logit_bias", std::move(biases)},
                   {"stop", std::move(stop)}};
  for (const SamplingParameter& row : kSamplingParameters) {
    if ((row.dialects & SamplingParameter::kLlamaCpp) == 0) continue;
    const double value = row.of(sampling);
    const std::string name(row.name_in(SamplingParameter::kLlamaCpp));
    settings[name] = row.is_integer() ? Json(static_cast<int>(value)) : Json(value);
  }
  return settings;
}

}  // namespace sluice::server
