// /v1/messages and /v1/messages/count_tokens.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "server/anthropic/conversation.h"
#include "server/anthropic/format.h"
#include "server/members.h"
#include "server/rows.h"

namespace sluice::server {}  // namespace sluice::server

namespace sluice::server::anthropic::messages {
namespace {

using Type = Parameter::Type;

void set_max_tokens(Fields& f, const Json& v) {
  f.of<SamplingParams>().max_tokens = v.get<int>();
  f.of<GenerationFields>().has_max_tokens = true;
}

// {"type": "json_schema", "schema": {...}}.
void set_format(Fields& f, const Json& v, const FieldPath& path) {
  expect_object(v, path);
  const std::string& type = required_string(v, "type", path);
  if (type != "json_schema") {
    throw invalid_value(path / "type",
                        fmt::format("Invalid value: '{}'. Supported values are: 'json_schema'.", quotable(type)));
  }
  const FieldPath schema = path / "schema";
  f.of<GenerationFields>().grammar =
      schema_grammar(dump_json(expect_object(required_member(v, "schema", path), schema)), schema);
}

void set_effort(Fields& f, const Json& v, const FieldPath& path) {
  const std::string& level = expect_string(v, path);
  constexpr std::string_view kKnown[] = {"low", "medium", "high", "xhigh", "max"};
  if (std::ranges::find(kKnown, level) == std::end(kKnown)) {
    throw invalid_value(path, fmt::format("Invalid value: '{}'. Supported values are: 'low', 'medium', 'high', "
                                          "'xhigh', 'max'.",
                                          quotable(level)));
  }
  f.of<ConversationFields>().effort = level;
  f.of<ConversationFields>().effort_param = "output_config.effort";
}

void set_output_config(Fields& f, const Json& v) {
  const FieldPath path = "output_config";
  for (const auto& [key, value] : v.items()) {
    const FieldPath inner = path / key;
    if (value.is_null()) continue;
    if (key == "format") {
      set_format(f, value, inner);
    } else if (key == "effort") {
      set_effort(f, value, inner);
    } else {
      throw unsupported_parameter(inner, "is not supported. Accepted: format, effort");
    }
  }
}

constexpr auto kOwnParameters = std::to_array<Parameter>({
    {.name = "max_tokens",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .required = true,
     .fallback = "required",
     .help = "the most tokens to generate",
     .set = set_max_tokens},
    {.name = "stop_sequences",
     .type = Type::kStrings,
     .max_items = kMaxStopStrings,
     .max_bytes = kMaxStopBytes,
     .fallback = "none",
     .help = "the text ends before the first of these strings",
     .set = [](Fields& f, const Json& v) { set_stop_strings(f, v, "stop_sequences"); }},
    {.name = "stream",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer by server-sent events",
     .set = assign<&GenerationFields::stream>},
    {.name = "output_config",
     .type = Type::kObject,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "format: {\"type\": \"json_schema\", \"schema\": ...}; effort: sets the template's reasoning_effort",
     .set = set_output_config},
    {.name = "output_format",
     .type = Type::kObject,
     .max_bytes = kGrammarBytes,
     .fallback = "none",
     .help = "the older name of output_config.format",
     .set = [](Fields& f, const Json& v) { set_format(f, v, "output_format"); }},
    {.name = "metadata",
     .type = Type::kObject,
     .max_bytes = 64 << 10,
     .fallback = "none",
     .help = "labels; change nothing"},
    refused("service_tier", R"(["auto", "standard_only"])"),
    refused("diagnostics"),
    refused("inference_geo"),
    refused("speed", R"(["standard"])"),
});

constexpr auto kParameters = joined(kOwnParameters, sampling_rows_of<SamplingParameter::kAnthropic>());

void run(Call& call) {
  expect_generates(call);
  translate_conversation(call);
  // A budget cannot be enforced where thoughts cannot be told from the answer, which a header says.
  const bool has_budget = call.fields.of<ConversationFields>().thinking_budget.has_value();
  if (has_budget && call.info().reasoning_syntax.empty()) call.unknown.add("thinking.budget_tokens");
  const bool stream = call.fields.of<GenerationFields>().stream;
  GenerationJob job;
  job.chat = chat_request(call);
  job.stream = stream;
  job.headers = call.warnings();
  job.format = std::make_unique<MessagesFormat>(call.request_id, call.model.name, stream);
  call.generate(std::move(job));
}

void count(Call& call) {
  expect_generates(call);
  translate_conversation(call);
  const bool with_tools = !is_string(call.fields.of<ConversationFields>().tool_choice, "none");
  const size_t tokens = tokenize_chat(call, with_tools).size();
  call.send({.body = dump_json({{"input_tokens", tokens}}), .headers = call.warnings()});
}

const EndpointInfo messages{.name = "anthropic messages",
                            .dialect = &kAnthropic,
                            .paths = {"/v1/messages"},
                            .flags = Route::kGenerates,
                            .help = "Anthropic's Messages API",
                            .parameters = {model_parameter(), anthropic_conversation_parameters(), kParameters},
                            .run = run};
const EndpointInfo count_tokens{.name = "anthropic count_tokens",
                                .dialect = &kAnthropic,
                                .paths = {"/v1/messages/count_tokens"},
                                .help = "tokens of a conversation",
                                .parameters = {model_parameter(), anthropic_conversation_parameters()},
                                .run = count};
const Registry<EndpointInfo> registered_messages{messages}, registered_count{count_tokens};

}  // namespace
}  // namespace sluice::server::anthropic::messages
