// The rows of a conversation's fields, and one function per field that is translated.
#include "server/anthropic/conversation.h"

#include <fmt/core.h>

#include <array>

#include "server/anthropic/blocks.h"
#include "server/members.h"
#include "server/rows.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

constexpr size_t kMostTools = 512;  // agents send those of all their servers

// {"type": "enabled", "budget_tokens": N}, {"type": "adaptive"} or {"type": "disabled"}.
void set_extended_thinking(Fields& f, const Json& v) {
  const FieldPath path = "thinking";
  auto& conversation = f.of<ConversationFields>();
  const std::string& type = required_string(v, "type", path);
  const FieldPath display = path / "display";
  if (const Json* value = member(v, "display"); value != nullptr && expect_string(*value, display) != "summarized") {
    throw unsupported_parameter(display, "must be 'summarized': thinking is always sent");
  }
  if (type == "enabled") {
    const FieldPath budget = path / "budget_tokens";
    conversation.thinking_budget =
        static_cast<int>(expect_integer(required_member(v, "budget_tokens", path), budget, 1, INT32_MAX));
  } else if (type != "adaptive" && type != "disabled") {
    const FieldPath type_path = path / "type";
    throw invalid_value(type_path, fmt::format("Invalid value: '{}'. Supported values are: 'enabled', 'adaptive', "
                                               "'disabled'.",
                                               quotable(type)));
  }
  conversation.thinks = type != "disabled";
  conversation.thinking_param = "thinking";
}

// Edits of the conversation on the server. The one that keeps everything asks for nothing.
void set_context_management(Fields&, const Json& v) {
  const FieldPath path = "context_management";
  const FieldPath edits = path / "edits";
  const Json* list = member(v, "edits");
  if (list == nullptr) return;
  expect_array(*list, edits, 0, 64);
  for (size_t i = 0; i < list->size(); ++i) {
    const FieldPath inner = edits[i];
    const Json& edit = expect_object((*list)[i], inner);
    const Json* keep = member(edit, "keep");
    if (keep == nullptr || !is_string(*keep, "all")) throw unsupported_parameter(inner, "is not supported");
  }
}

constexpr auto kConversationParameters = std::to_array<Parameter>({
    {.name = "messages",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = 100'000,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "the conversation: roles user and assistant; content is a string or an array of blocks of the types text, "
             "thinking, tool_use and tool_result",
     .set = assign<&AnthropicFields::messages>},
    {.name = "system",
     .type = Type::kAny,
     .max_bytes = kTextBytes,
     .fallback = "none",
     .help = "instructions: a string or an array of text blocks",
     .set = assign<&AnthropicFields::system>},
    {.name = "tools",
     .type = Type::kArray,
     .max_items = kMostTools,
     .max_bytes = 1 << 20,
     .fallback = "none",
     .help = "tools of the client: name, description, input_schema",
     .set = assign<&AnthropicFields::tools>},
    {.name = "tool_choice",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "auto",
     .help = "type: auto, any, tool (with name) or none; disable_parallel_tool_use: at most one call",
     .set = assign<&AnthropicFields::tool_choice>},
    {.name = "thinking",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "disabled",
     .help = "type: enabled (with budget_tokens), adaptive or disabled: turns thoughts on or off",
     .set = set_extended_thinking},
    {.name = "cache_control",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "none",
     .help = "changes nothing: prefixes are always cached"},
    {.name = "context_management",
     .type = Type::kObject,
     .max_bytes = 64 << 10,
     .fallback = "none",
     .help = "accepted when its edits keep all",
     .set = set_context_management},
    refused("mcp_servers", "[[]]"),
    refused("container"),
});

Json translated_tool(const Json& tool, const FieldPath& path, UnknownFields& unknown) {
  expect_object(tool, path);
  note_unknown(tool, path, {"type", "name", "description", "input_schema", "cache_control", "strict"}, unknown);
  if (const Json* type = member(tool, "type"); type != nullptr && !is_string(*type, "custom")) {
    const FieldPath type_path = path / "type";
    throw unsupported_parameter(path, fmt::format("is of type '{}': only tools of the client ('custom') are supported",
                                                  quotable(expect_string(*type, type_path))));
  }
  const std::string& name = required_string(tool, "name", path);
  const FieldPath name_path = path / "name", schema_path = path / "input_schema";
  if (name.empty() || name.size() > 128) {
    throw invalid_value(name_path, fmt::format("Invalid '{}': expected 1 to 128 characters, but got {}.",
                                               name_path.str(), name.size()));
  }
  Json function = {{"name", name}};
  if (const Json* text = member(tool, "description")) {
    function["description"] = expect_string(*text, path / "description");
  }
  function["parameters"] = expect_object(required_member(tool, "input_schema", path), schema_path);
  if (const Json* strict = member(tool, "strict")) function["strict"] = expect_boolean(*strict, path / "strict");
  return {{"type", "function"}, {"function", std::move(function)}};
}

void translate_tools(const AnthropicFields& fields, ConversationFields& conversation, UnknownFields& unknown) {
  if (!fields.tools.is_array()) return;
  const FieldPath path = "tools";
  conversation.tools = Json::array();
  for (size_t i = 0; i < fields.tools.size(); ++i) {
    conversation.tools.push_back(translated_tool(fields.tools[i], path[i], unknown));
  }
}

void translate_tool_choice(const AnthropicFields& fields, ConversationFields& conversation, UnknownFields& unknown) {
  const Json& choice = fields.tool_choice;
  conversation.names.parallel = "tool_choice.disable_parallel_tool_use";
  if (!choice.is_object()) return;
  const FieldPath path = "tool_choice";
  note_unknown(choice, path, {"type", "name", "disable_parallel_tool_use"}, unknown);
  const std::string& type = required_string(choice, "type", path);
  if (type == "auto" || type == "none") {
    conversation.tool_choice = type;
  } else if (type == "any") {
    conversation.tool_choice = "required";
  } else if (type == "tool") {
    conversation.names.chosen = "tool_choice.name";
    conversation.tool_choice = {{"type", "function"}, {"function", {{"name", required_string(choice, "name", path)}}}};
  } else {
    const FieldPath type_path = path / "type";
    throw invalid_value(type_path, fmt::format("Invalid value: '{}'. Supported values are: 'auto', 'any', 'tool', "
                                               "'none'.",
                                               quotable(type)));
  }
  if (const Json* single = member(choice, "disable_parallel_tool_use")) {
    conversation.parallel_tool_calls = !expect_boolean(*single, path / "disable_parallel_tool_use");
  }
  const bool has_tools = conversation.tools.is_array() && !conversation.tools.empty();
  if (!has_tools && type != "none") throw invalid_value("tool_choice", "Invalid 'tool_choice': it needs 'tools'.");
}

// Checks that the answer can begin with the last message.
void check_beginning(const Json& message) {
  const Json* text = member(message, "content");
  if (message.contains("tool_calls") || text == nullptr || !text->is_string() || is_string(*text, "")) {
    throw unsupported_parameter("messages", "must not end with a message of the assistant that is not text");
  }
  constexpr std::string_view kSpace = " \t\r\n";
  if (kSpace.find(text->get_ref<const std::string&>().back()) != kSpace.npos) {
    throw invalid_value("messages", "Invalid 'messages': the last message of the assistant ends with white space.");
  }
}

}  // namespace

std::span<const Parameter> anthropic_conversation_parameters() { return kConversationParameters; }

void translate_conversation(Call& call) {
  const auto& fields = call.fields.of<AnthropicFields>();
  auto& conversation = call.fields.of<ConversationFields>();
  Json messages = Json::array();
  if (fields.system != nullptr) {
    std::string text = anthropic_text(*fields.system, "system", call.unknown);
    if (!text.empty()) messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const FieldPath path = "messages";
  const Json& turns = *fields.messages;
  for (size_t i = 0; i < turns.size(); ++i) append_message(turns[i], path[i], call.unknown, messages);
  const bool continues = is_string(messages.back().at("role"), "assistant");
  if (continues) check_beginning(messages.back());
  conversation.messages = std::move(messages);
  translate_tools(fields, conversation, call.unknown);
  translate_tool_choice(fields, conversation, call.unknown);
  if (!conversation.thinks) conversation.thinks = false;  // without the field, Anthropic's models do not think
  if (!continues) return;
  const bool calls = conversation.tool_choice.is_object() || is_string(conversation.tool_choice, "required");
  if (conversation.thinks == true || calls || call.fields.of<GenerationFields>().grammar) {
    throw unsupported_parameter("messages",
                                "must not end with a message of the assistant if the answer begins with thoughts, must "
                                "be a call or has a format");
  }
  conversation.continue_final_message = true;
}

}  // namespace sluice::server
