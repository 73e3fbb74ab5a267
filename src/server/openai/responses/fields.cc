// The rows of the fields, and what they set.
#include "server/openai/responses/fields.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "server/members.h"
#include "server/openai/metadata.h"
#include "server/openai/responses/input.h"
#include "server/rows.h"
#include "server/store/store.h"
#include "server/tool_rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

// {"format": {"type": "text" | "json_object" | "json_schema", "schema": ...}, "verbosity": ...}
void set_text(Fields& f, const Json& v) {
  const FieldPath text = "text";
  if (const Json* verbosity = member(v, "verbosity"); verbosity != nullptr && !is_string(*verbosity, "medium")) {
    throw unsupported_parameter(text / "verbosity", "is not supported. Accepted: null or \"medium\"");
  }
  const FieldPath path = text / "format";
  const Json* format = member(v, "format");
  if (format == nullptr) return;
  const std::string& type = required_string(expect_object(*format, path), "type", path);
  auto& grammar = f.of<GenerationFields>().grammar;
  if (type == "json_object") {
    grammar = {"json_object", "", path.str()};
  } else if (type == "json_schema") {
    const FieldPath schema = path / "schema";
    grammar = schema_grammar(dump_json(expect_object(required_member(*format, "schema", path), schema)), schema);
    required_string(*format, "name", path);
  } else if (type != "text") {
    throw invalid_value(path / "type", fmt::format("Invalid value: '{}'. Supported values are: 'text', 'json_object', "
                                                   "'json_schema'.",
                                                   quotable(type)));
  }
  f.of<ResponseFields>().text_format = *format;
}

// {"effort": ..., "summary": ...}
void set_reasoning(Fields& f, const Json& v) {
  const FieldPath path = "reasoning";
  for (const auto& [key, value] : v.items()) {
    if (value.is_null() || key == "effort" || (key == "summary" && is_string(value, "auto"))) continue;
    throw unsupported_parameter(path / key, key == "summary" ? "is not supported: reasoning is sent as it is"
                                                             : "is not supported. Accepted: effort");
  }
  const Json* effort = member(v, "effort");
  if (effort == nullptr) return;
  const std::string& level = expect_string(*effort, path / "effort");
  const std::string_view known[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (std::ranges::find(known, level) == std::end(known)) {
    throw invalid_value("reasoning.effort", fmt::format("Invalid value: '{}'. Supported values are: 'none', 'minimal', "
                                                        "'low', 'medium', 'high', and 'xhigh'.",
                                                        quotable(level)));
  }
  f.of<ResponseFields>().effort = level;
  auto& conversation = f.of<ConversationFields>();
  conversation.thinks = level != "none";
  conversation.effort = level;
  conversation.effort_param = "reasoning.effort";
}

// "none", "auto", "required" or {"type": "function", "name": ...}.
void set_response_tool_choice(Fields& f, const Json& v) {
  const FieldPath path = "tool_choice";
  Json& choice = f.of<ConversationFields>().tool_choice;
  if (v.is_object()) {
    const std::string& type = required_string(v, "type", path);
    if (type != "function") {
      throw unsupported_parameter(path, fmt::format("is of type '{}': only 'function' is supported", quotable(type)));
    }
    choice = {{"type", "function"}, {"function", {{"name", required_string(v, "name", path)}}}};
    f.of<ConversationFields>().names.chosen = "tool_choice.name";
  } else {
    const std::string& name = expect_string(v, path);
    constexpr std::string_view kChoices[] = {"none", "auto", "required"};
    expect_one_of(name, path, kChoices);
    choice = name;
  }
  f.of<ResponseFields>().tool_choice = v;
}

// Reasoning items carry their text, so nothing needs to be encrypted for the client to send it back.
void set_include(Fields& f, const Json& v) {
  const FieldPath path = "include";
  for (size_t i = 0; i < v.size(); ++i) {
    const FieldPath inner = path[i];
    const std::string& what = expect_string(v[i], inner);
    if (what == "message.output_text.logprobs") {
      f.of<ResponseFields>().logprobs = true;
    } else if (what != "reasoning.encrypted_content") {
      throw unsupported_parameter(inner,
                                  "is not supported. Accepted: \"message.output_text.logprobs\", "
                                  "\"reasoning.encrypted_content\"");
    }
  }
}

template <const char* const& kName>
void set_label(Fields& f, const Json& v) {
  f.of<ResponseFields>().labels[kName] = v;
}

constexpr const char* kUserName = "user";
constexpr const char* kSafetyIdentifier = "safety_identifier";
constexpr const char* kPromptCacheKey = "prompt_cache_key";

template <const char* const& kName>
constexpr Parameter label() {
  return {.name = kName,
          .type = Type::kString,
          .max_bytes = kLabelBytes,
          .fallback = "none",
          .help = "a label; changes nothing",
          .set = set_label<kName>};
}

constexpr auto kResponseParameters = std::to_array<Parameter>({
    {.name = "input",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a string, or an array of items of the types message, function_call, function_call_output, reasoning",
     .set = assign<&ResponseFields::input>},
    {.name = "instructions",
     .type = Type::kString,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "a message of the system before the input",
     .set = assign<&ResponseFields::instructions>},
    {.name = "previous_response_id",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "goes on from a stored response",
     .set = assign<&ResponseFields::previous_response_id>},
    {.name = "store",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "keep the response, so that others can go on from it",
     .set = assign<&ResponseFields::store>},
    {.name = "background",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "answer at once, and keep the response when it is complete; not with stream",
     .set = assign<&ResponseFields::background>},
    tools_row(assign<&ResponseFields::tools>),
    tool_choice_row(set_response_tool_choice),
    parallel_tool_calls_row(),
    {.name = "text",
     .type = Type::kObject,
     .max_bytes = kGrammarBytes,
     .fallback = "{\"format\": {\"type\": \"text\"}}",
     .help = "format: text, json_object or json_schema",
     .set = set_text},
    {.name = "reasoning",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "as the template says",
     .help = "effort: how much to think; none turns thoughts off",
     .set = set_reasoning},
    {.name = "include",
     .type = Type::kArray,
     .max_items = 16,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "message.output_text.logprobs: the log probability of each token of the text; "
             "reasoning.encrypted_content is accepted, but reasoning is never encrypted",
     .set = set_include},
    {.name = "top_logprobs",
     .type = Type::kInteger,
     .min = 0,
     .max = 20,
     .fallback = "0",
     .help = "alternatives to report for each token; needs message.output_text.logprobs in include",
     .set = assign<&ResponseFields::top_logprobs>},
    {.name = "enable_response_messages",
     .type = Type::kBoolean,
     .fallback = "false",
     .help = "add the prompt and the answer as texts and as token ids, as vLLM does",
     .set = assign<&ResponseFields::messages>},
    metadata_row("labels, which the response repeats: texts of at most 512 characters under keys of at most 64",
                 [](Fields& f, const Json& v) { f.of<ResponseFields>().metadata = checked_metadata(v); }),
    label<kUserName>(),
    label<kSafetyIdentifier>(),
    label<kPromptCacheKey>(),
    refused("conversation", {}, "Use 'previous_response_id'"),
    refused("max_tool_calls"),
    refused("prompt"),
    refused("prompt_cache_retention"),
    refused("service_tier", R"(["auto", "default"])"),
    refused("stream_options", R"([{}, {"include_obfuscation": false}])"),
    refused("truncation", R"(["disabled"])"),
});

void set_max_output_tokens(Fields& f, const Json& v) {
  f.of<SamplingParams>().max_tokens = v.get<int>();
  f.of<GenerationFields>().has_max_tokens = true;
  f.of<GenerationFields>().max_tokens_name = "max_output_tokens";
}

constexpr auto kLengthOfResponse = std::to_array<Parameter>({{.name = "max_output_tokens",
                                                              .type = Type::kInteger,
                                                              .min = 1,
                                                              .max = kIntMax,
                                                              .fallback = "up to the context",
                                                              .help = "the most tokens to generate",
                                                              .set = set_max_output_tokens}});
constexpr auto kSampling = joined(kLengthOfResponse, sampling_rows());

}  // namespace

std::span<const Parameter> response_parameters() { return kResponseParameters; }
std::span<const Parameter> response_sampling_parameters() { return kSampling; }

void translate_response_request(Call& call) {
  const auto& fields = call.fields.of<ResponseFields>();
  auto& conversation = call.fields.of<ConversationFields>();
  Json messages = Json::array();
  if (!fields.instructions.empty()) append_system(fields.instructions, messages);
  if (!fields.previous_response_id.empty()) {
    const auto previous = call.shared->of<Store>()->response(fields.previous_response_id, call.tenant);
    if (!previous) {
      throw ApiError{
          .status = 404,
          .message = fmt::format("Previous response with id '{}' not found.", quotable(fields.previous_response_id)),
          .param = "previous_response_id",
          .code = "previous_response_not_found"};
    }
    if (previous->conversation.empty()) {
      throw invalid_value("previous_response_id", fmt::format("Invalid 'previous_response_id': '{}' has no answer.",
                                                              quotable(fields.previous_response_id)));
    }
    for (Json& message : parse_json(previous->conversation)) messages.push_back(std::move(message));
  }
  append_input(*fields.input, call.unknown, messages);
  conversation.messages = std::move(messages);
  if (fields.tools.is_array()) conversation.tools = translate_response_tools(fields.tools, call.unknown);
  const bool has_tools = conversation.tools.is_array() && !conversation.tools.empty();
  const bool calls = conversation.tool_choice.is_object() || is_string(conversation.tool_choice, "required");
  if (calls && !has_tools) throw invalid_value("tool_choice", "Invalid 'tool_choice': it needs 'tools'.");
  if (fields.top_logprobs > 0 && !fields.logprobs) {
    throw invalid_value("top_logprobs",
                        "Invalid 'top_logprobs': it needs \"message.output_text.logprobs\" in 'include'.");
  }
}

}  // namespace sluice::server
