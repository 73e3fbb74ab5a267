// The rows of `options`, which are checked like the fields of a request.
#include "server/ollama/options.h"

#include <fmt/core.h>

#include <array>

#include "server/members.h"
#include "server/ollama/dialect.h"
#include "server/rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

// -1 and -2 stand for as many tokens as the context holds.
void set_num_predict(Fields& f, const Json& v) {
  const int tokens = v.get<int>();
  if (tokens == 0) {
    throw invalid_value("num_predict", "Invalid 'num_predict': expected -2, -1 or at least 1, but got 0.");
  }
  f.of<SamplingParams>().max_tokens = tokens > 0 ? std::optional(tokens) : std::nullopt;
  f.of<GenerationFields>().has_max_tokens = tokens > 0;
}

constexpr auto kOwnOptions = std::to_array<Parameter>({
    {.name = "num_predict", .type = Type::kInteger, .min = -2, .max = kIntMax, .set = set_num_predict},
    {.name = "num_ctx", .type = Type::kInteger, .min = 1, .max = kIntMax, .set = assign<&OllamaFields::num_ctx>},
    {.name = "seed", .type = Type::kInteger, .min = -0x1p63, .max = 0x1p63, .set = assign<&SamplingParams::seed>},
    {.name = "stop",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop"); }},
    refused("penalize_newline", "[true]"),
});

constexpr auto kOptions = joined(kOwnOptions, sampling_rows_of<SamplingParameter::kOllama>());

constexpr std::span<const Parameter> kOptionGroups[] = {kOptions};

// "json", an empty string or a schema.
void set_format(Fields& f, const Json& v) {
  auto& grammar = f.of<GenerationFields>().grammar;
  if (is_string(v, "")) return;
  if (is_string(v, "json")) {
    grammar = {"json_object", "", "format"};
  } else if (v.is_object()) {
    grammar = schema_grammar(dump_json(v), "format");
  } else {
    throw invalid_value("format", "Invalid 'format': expected \"json\" or a JSON schema.");
  }
}

// true, false, or how much to think.
void set_think(Fields& f, const Json& v) {
  if (!v.is_boolean()) {
    const std::string& level = expect_string(v, "think");
    if (level != "low" && level != "medium" && level != "high") {
      throw invalid_value("think", fmt::format("Invalid value: '{}'. Supported values are: true, false, 'low', "
                                               "'medium', 'high'.",
                                               quotable(level)));
    }
  }
  auto& conversation = f.of<ConversationFields>();
  conversation.thinks = v != false;
  conversation.thinking_param = conversation.effort_param = "think";
  if (v.is_string()) conversation.effort = v.get<std::string>();
}

// A number of seconds, or a duration like "5m" or "-1m".
void set_keep_alive(Fields& f, const Json& v) {
  if (v.is_number()) {
    f.of<OllamaFields>().unloads = v == 0;
    return;
  }
  const std::string& text = expect_string(v, "keep_alive");
  if (text.empty() || text.find_first_not_of("0123456789.-+hmsun") != std::string::npos) {
    throw invalid_value("keep_alive", "Invalid 'keep_alive': expected a number of seconds or a duration like \"5m\".");
  }
  f.of<OllamaFields>().unloads = text.find_first_of("123456789") == std::string::npos;
}

constexpr Parameter kKeepAlive[] = {{.name = "keep_alive",
                                     .type = Type::kAny,
                                     .max_bytes = kLabelBytes,
                                     .fallback = "-1",
                                     .help = "changes nothing: models stay loaded",
                                     .set = set_keep_alive}};

constexpr auto kOllamaGeneration = std::to_array<Parameter>({
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "answer by lines of JSON",
     .set = assign<&OllamaFields::stream>},
    {.name = "options",
     .type = Type::kObject,
     .max_items = 64,
     .max_bytes = 256 << 10,
     .fallback = "{}",
     .help = "num_predict, num_ctx, seed, stop, and the samplers in docs/sampling.md",
     .set = assign<&OllamaFields::options>},
    {.name = "format",
     .type = Type::kAny,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "json, or a JSON schema for the answer",
     .set = set_format},
    {.name = "think",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "as the template says",
     .help = "true, false, low, medium or high: turns thoughts on or off, and says how much",
     .set = set_think},
    refused("logprobs", "[false]"),
    refused("top_logprobs", "[0]"),
    refused("truncate", "[false]"),
    refused("shift", "[false]"),
});

}  // namespace

std::span<const Parameter> ollama_keep_alive_parameter() { return kKeepAlive; }
std::span<const Parameter> ollama_generation_parameters() { return kOllamaGeneration; }

void read_ollama_options(Call& call) {
  const auto& fields = call.fields.of<OllamaFields>();
  call.fields.of<GenerationFields>().stream = fields.stream;
  if (!fields.options.is_object()) return;
  UnknownFields unknown;  // settings of the machine: how many threads, how many layers on a GPU, ...
  read_parameters(kOptionGroups, fields.options, call.info().vocab_size, call.fields, unknown);
  const FieldPath options = "options";
  for (const std::string& name : unknown.names()) call.unknown.add(options / name);
  if (fields.num_ctx && *fields.num_ctx > call.info().max_model_len) {
    throw invalid_value("options.num_ctx", fmt::format("Invalid 'num_ctx': the model's context is {} tokens, as the "
                                                       "server was started.",
                                                       call.info().max_model_len));
  }
}

void answer_load(Call& call, const char* key, Json empty) {
  if (call.fields.of<OllamaFields>().unloads) {
    throw unsupported_parameter("keep_alive", "cannot be 0 in a request without a prompt: models stay loaded");
  }
  call.send({.body = dump_json({{"model", call.model.name},
                                {"created_at", rfc3339_now()},
                                {key, std::move(empty)},
                                {"done", true},
                                {"done_reason", "load"}}),
             .headers = call.warnings()});
}

}  // namespace sluice::server
