// /completion, also as /completions, and the refusal of /infill.
#include <fmt/core.h>

#include <array>

#include "server/engine_request.h"
#include "server/llamacpp/format.h"
#include "server/llamacpp/settings.h"
#include "server/openai/grammar_fields.h"
#include "server/rows.h"

namespace sluice::server {}  // namespace sluice::server

namespace sluice::server::llamacpp::completion {
namespace {

using Type = Parameter::Type;

struct LlamaFields {
  Json prompt;  // a string or an array of token ids
  bool return_tokens = false;
};

// -1 and -2 stand for as many tokens as the context holds.
void set_n_predict(Fields& f, const Json& v) {
  const int tokens = v.get<int>();
  if (tokens == 0) throw invalid_value("n_predict", "Invalid 'n_predict': expected -2, -1 or at least 1, but got 0.");
  f.of<SamplingParams>().max_tokens = tokens > 0 ? std::optional(tokens) : std::nullopt;
  f.of<GenerationFields>().has_max_tokens = tokens > 0;
}

void set_seed(Fields& f, const Json& v) {
  const auto seed = v.get<int64_t>();
  f.of<SamplingParams>().seed = seed < 0 ? std::nullopt : std::optional(seed);
}

constexpr auto kOwnParameters = std::to_array<Parameter>({
    {.name = "prompt",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "a string or an array of token ids",
     .set = assign<&LlamaFields::prompt>},
    {.name = "n_predict",
     .type = Type::kInteger,
     .min = -2,
     .max = kIntMax,
     .fallback = "-1",
     .help = "the most tokens to generate; -1 and -2: up to the context",
     .set = set_n_predict},
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events",
     .set = assign<&GenerationFields::stream>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .fallback = "none",
     .help = "the text ends before the first of these strings",
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    {.name = "seed",
     .type = Type::kInteger,
     .min = -1,
     .max = 0x1p63,
     .fallback = "-1",
     .help = "makes sampling repeatable; -1: none",
     .set = set_seed},
    {.name = "ignore_eos",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "generate beyond end-of-sequence tokens",
     .set = assign<&SamplingParams::ignore_eos>},
    {.name = "return_tokens",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "report the ids of the tokens",
     .set = assign<&LlamaFields::return_tokens>},
    refused("cache_prompt", "[true]"),
    refused("id_slot", "[-1]"),
    refused("logit_bias", "[[], {}]"),
    refused("lora", "[[]]"),
    refused("min_keep", "[0]"),
    refused("n_indent", "[0]"),
    refused("n_keep", "[0, -1]"),
    refused("n_probs", "[0]"),
    refused("post_sampling_probs", "[false]"),
    refused("response_fields", "[[]]"),
    refused("t_max_predict_ms", "[0]"),
    refused("timings_per_token", "[false]"),
});

constexpr auto kParameters = joined(kOwnParameters, sampling_rows_of<SamplingParameter::kLlamaCpp>());

Request request_of(Call& call) {
  const auto& fields = call.fields.of<LlamaFields>();
  Request request = base_request(call);
  if (fields.prompt.is_string()) {
    request.prompt = tokenize_text(call, fields.prompt.get_ref<const std::string&>(), true, "prompt");
  } else if (fields.prompt.is_array()) {
    request.prompt = expect_token_ids(fields.prompt, "prompt", call.info().vocab_size);
  } else {
    throw invalid_type("prompt", "one of a string or array of token ids", fields.prompt);
  }
  request.max_tokens_is_default = !call.fields.of<GenerationFields>().has_max_tokens;
  fit_context(request, call.info().max_model_len, "prompt");
  return request;
}

void run(Call& call) {
  expect_generates(call);
  const auto& fields = call.fields.of<LlamaFields>();
  GenerationJob job;
  job.requests.push_back(request_of(call));
  const Request& request = job.requests.front();
  job.stream = call.fields.of<GenerationFields>().stream;
  job.headers = call.warnings();
  job.format = std::make_unique<LlamaFormat>(
      LlamaAnswerOptions{.model = call.model.name,
                         .prompt = fields.prompt.is_string() ? fields.prompt.get<std::string>()
                                                             : call.engine().detokenize(request.prompt, false),
                         .settings = llama_settings(request.sampling),
                         .stream = job.stream,
                         .tokens = fields.return_tokens});
  call.generate(std::move(job));
}

void infill(Call&) {
  throw ApiError{
      .status = 501,
      .message = "/infill is not supported: the tokens that models use for it are not known to this server."};
}

const EndpointInfo completion{.name = "llama.cpp completion",
                              .dialect = &kLlamaCpp,
                              .paths = {"/completion", "/completions"},
                              .flags = Route::kGenerates,
                              .help = "llama.cpp's text completions",
                              .parameters = {model_parameter(), kParameters, grammar_parameters()},
                              .run = run};
const EndpointInfo infill_endpoint{
    .name = "llama.cpp infill", .dialect = &kLlamaCpp, .paths = {"/infill"}, .help = "refused", .run = infill};
const Registry<EndpointInfo> registered_completion{completion}, registered_infill{infill_endpoint};

}  // namespace
}  // namespace sluice::server::llamacpp::completion
