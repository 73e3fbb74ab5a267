// /generate, /generate_stream, / and /info.
#include <fmt/core.h>

#include <array>

#include "server/engine_request.h"
#include "server/members.h"
#include "server/rows.h"
#include "server/tgi/format.h"
#include "sluice/version.h"

namespace sluice::server::tgi::generate {
namespace {

using Type = Parameter::Type;

constexpr int kDefaultNewTokens = 100;

struct TgiFields {
  std::string inputs;
  Json parameters;  // object or null
  bool stream = false;
  // What `parameters` says:
  bool samples = false;
  bool return_full_text = false;
  bool details = false;
  bool prefill = false;
  std::optional<int> truncate;
};

// {"type": "json" | "json_schema" | "regex", "value": ...}
void set_grammar(Fields& f, const Json& v) {
  const FieldPath path = "grammar";
  const FieldPath value_path = path / "value";
  const std::string& type = required_string(v, "type", path);
  const Json& value = required_member(v, "value", path);
  auto& grammar = f.of<GenerationFields>().grammar;
  if (type == "regex") {
    grammar = {"regex", expect_string(value, value_path), value_path.str()};
  } else if (type == "json" || type == "json_schema") {
    grammar = schema_grammar(value.is_string() ? value.get<std::string>() : dump_json(expect_object(value, value_path)),
                             value_path);
  } else {
    throw invalid_value(path / "type", fmt::format("Invalid value: '{}'. Supported values are: 'json', 'json_schema', "
                                                   "'regex'.",
                                                   quotable(type)));
  }
}

void set_max_new_tokens(Fields& f, const Json& v) {
  f.of<SamplingParams>().max_tokens = v.get<int>();
  f.of<GenerationFields>().has_max_tokens = true;
  f.of<GenerationFields>().max_tokens_name = "max_new_tokens";
}

constexpr auto kOwnNested = std::to_array<Parameter>({
    {.name = "max_new_tokens", .type = Type::kInteger, .min = 1, .max = kIntMax, .set = set_max_new_tokens},
    {.name = "do_sample", .type = Type::kBoolean, .set = assign<&TgiFields::samples>},
    {.name = "seed", .type = Type::kInteger, .min = 0, .max = 0x1p63, .set = assign<&SamplingParams::seed>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    {.name = "return_full_text", .type = Type::kBoolean, .set = assign<&TgiFields::return_full_text>},
    {.name = "details", .type = Type::kBoolean, .set = assign<&TgiFields::details>},
    {.name = "decoder_input_details", .type = Type::kBoolean, .set = assign<&TgiFields::prefill>},
    {.name = "truncate", .type = Type::kInteger, .min = 1, .max = kIntMax, .set = assign<&TgiFields::truncate>},
    {.name = "grammar", .type = Type::kObject, .max_bytes = kGrammarBytes, .set = set_grammar},
    refused("best_of", "[1]"),
    refused("watermark", "[false]"),
    refused("top_n_tokens", "[0]"),
    refused("adapter_id"),
});

constexpr auto kNested = joined(kOwnNested, sampling_rows_of<SamplingParameter::kTgi>());

constexpr std::span<const Parameter> kNestedGroups[] = {kNested};

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "inputs",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "the text to continue",
     .set = assign<&TgiFields::inputs>},
    {.name = "parameters",
     .type = Type::kObject,
     .max_bytes = kGrammarBytes,
     .fallback = "{}",
     .help = "max_new_tokens (100), do_sample, seed, stop, return_full_text, details, decoder_input_details (not with "
             "stream), truncate, grammar, and the samplers in docs/sampling.md",
     .set = assign<&TgiFields::parameters>},
});

constexpr Parameter kStream[] = {{.name = "stream",
                                  .type = Type::kBoolean,
                                  .fallback = "false",
                                  .help = "answer as /generate_stream does",
                                  .set = assign<&TgiFields::stream>}};

// TGI samples only when it is told to, or told how to.
bool names_sampler(const Json& parameters) {
  return parameters.is_object() && std::ranges::any_of(kSamplingParameters, [&](const SamplingParameter& row) {
           const bool samples = row.effect != SamplingParameter::Effect::kPenalty;
           return samples && (row.dialects & SamplingParameter::kTgi) != 0 && member(parameters, row.name) != nullptr;
         });
}

void read_nested(Call& call) {
  const auto& fields = call.fields.of<TgiFields>();
  auto& sampling = call.fields.of<SamplingParams>();
  if (fields.parameters.is_object()) {
    UnknownFields unknown;
    read_parameters(kNestedGroups, fields.parameters, call.info().vocab_size, call.fields, unknown);
    const FieldPath path = "parameters";
    for (const std::string& name : unknown.names()) call.unknown.add(path / name);
  }
  if (!fields.samples && !names_sampler(fields.parameters)) sampling.temperature = 0;
  if (!call.fields.of<GenerationFields>().has_max_tokens) sampling.max_tokens = kDefaultNewTokens;
  sampling.logprobs = 0;
}

enum class Whole { kObject, kList };  // of an answer that is no stream

void answer(Call& call, bool stream, Whole whole = Whole::kObject) {
  expect_generates(call);
  read_nested(call);
  const auto& fields = call.fields.of<TgiFields>();
  if (fields.prefill && stream) {
    throw invalid_value("parameters.decoder_input_details",
                        "Invalid 'parameters.decoder_input_details': it cannot be streamed.");
  }
  if (fields.prefill) call.fields.of<SamplingParams>().prompt_logprobs = 0;
  Request request = base_request(call);
  request.prompt_param = "inputs";
  request.prompt = tokenize_text(call, fields.inputs, /*add_special_tokens=*/true, "inputs");
  if (fields.truncate && request.prompt.size() > static_cast<size_t>(*fields.truncate)) {
    request.prompt.erase(request.prompt.begin(), request.prompt.end() - *fields.truncate);
  }
  request.max_tokens_is_default = !call.fields.of<GenerationFields>().has_max_tokens;
  fit_context(request, call.info().max_model_len, "prompt");
  check_prompt_logprobs({request}, "parameters.decoder_input_details");
  GenerationJob job;
  job.stream = stream;
  job.headers = call.warnings();
  job.format = std::make_unique<TgiFormat>(
      call.model.engine, TgiAnswerOptions{.before = fields.return_full_text ? fields.inputs : std::string(),
                                          .seed = request.sampling.seed,
                                          .details = fields.details || fields.prefill,
                                          .list = whole == Whole::kList});
  job.requests.push_back(std::move(request));
  call.generate(std::move(job));
}

void info(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  const ModelInfo& model = call.info();
  call.send(
      {.body = dump_json({{"model_id", call.model.name},
                          {"model_sha", nullptr},
                          {"model_dtype", model.dtype},
                          {"model_device_type", model.backend},
                          {"model_pipeline_tag", model.task == Task::kGenerate ? Json("text-generation") : Json()},
                          {"max_best_of", 1},
                          {"max_stop_sequences", kMaxStopStrings},
                          {"max_input_tokens", model.max_model_len - 1},
                          {"max_total_tokens", model.max_model_len},
                          {"router", "sluice"},
                          {"version", kVersion}})});
}

const EndpointInfo whole{.name = "tgi generate",
                         .dialect = &kTgi,
                         .paths = {"/generate"},
                         .flags = Route::kGenerates,
                         .help = "TGI's text generation",
                         .parameters = {model_parameter(), kParameters, kStream},
                         .run = [](Call& call) { answer(call, call.fields.of<TgiFields>().stream); }};
// TGI's own client sends every request here.
const EndpointInfo either{
    .name = "tgi",
    .dialect = &kTgi,
    .paths = {"/"},
    .flags = Route::kGenerates,
    .help = "TGI's text generation, answered by a list of one, or with 'stream' by server-sent events",
    .parameters = {model_parameter(), kParameters, kStream},
    .run = [](Call& call) { answer(call, call.fields.of<TgiFields>().stream, Whole::kList); }};
const EndpointInfo streamed{.name = "tgi generate_stream",
                            .dialect = &kTgi,
                            .paths = {"/generate_stream"},
                            .flags = Route::kGenerates,
                            .help = "TGI's text generation by server-sent events",
                            .parameters = {model_parameter(), kParameters},
                            .run = [](Call& call) { answer(call, true); }};
const EndpointInfo info_endpoint{.name = "tgi info",
                                 .dialect = &kTgi,
                                 .method = "GET",
                                 .paths = {"/info"},
                                 .flags = Route::kQuick,
                                 .help = "the model (?model=NAME) and its limits, for TGI's clients",
                                 .run = info};
const Registry<EndpointInfo> registered_whole{whole}, registered_streamed{streamed}, registered_info{info_endpoint},
    registered_either{either};

}  // namespace
}  // namespace sluice::server::tgi::generate
