// One function per kind of item.
#include "server/openai/responses/input.h"

#include <fmt/core.h>

#include "server/members.h"

namespace sluice::server {
namespace {

std::string input_part_text(const Json& part, const FieldPath& path, UnknownFields& unknown) {
  expect_object(part, path);
  const std::string& type = required_string(part, "type", path);
  if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text") {
    note_unknown(part, path, {"type", "text", "annotations", "logprobs"}, unknown);
    return required_string(part, "text", path);
  }
  if (type == "refusal") return required_string(part, "refusal", path);
  for (const std::string_view other : {"input_image", "input_file", "input_audio"}) {
    if (type == other) throw unsupported_parameter(path, fmt::format("is of type '{}': this model reads text", type));
  }
  throw invalid_value(path / "type", fmt::format("Invalid value: '{}'. Supported values are: 'input_text', "
                                                 "'output_text', 'refusal'.",
                                                 quotable(type)));
}

std::string text_of(const Json& content, const FieldPath& path, UnknownFields& unknown) {
  return joined_text(content, path, unknown, 0, input_part_text);
}

// The assistant's message that the next part of its turn belongs to: the last one, or a new one.
Json& assistant_message(Json& messages) {
  if (messages.empty() || !is_string(messages.back().at("role"), "assistant")) {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  return messages.back();
}

void append_text_message(const Json& item, const FieldPath& path, UnknownFields& unknown, Json& messages) {
  note_unknown(item, path, {"type", "role", "content", "id", "status", "phase"}, unknown);
  const std::string& role = required_string(item, "role", path);
  std::string text = text_of(required_member(item, "content", path), path / "content", unknown);
  if (role == "system" || role == "developer") return append_system(text, messages);
  if (role == "user") {
    messages.push_back({{"role", "user"}, {"content", std::move(text)}});
    return;
  }
  if (role != "assistant") {
    throw invalid_value(path / "role", fmt::format("Invalid value: '{}'. Supported values are: 'user', 'assistant', "
                                                   "'system', and 'developer'.",
                                                   quotable(role)));
  }
  const bool goes_on = !messages.empty() && is_string(messages.back().at("role"), "assistant") &&
                       is_string(messages.back().at("content"), "") && !messages.back().contains("tool_calls");
  if (!goes_on) messages.push_back({{"role", "assistant"}, {"content", ""}});
  messages.back()["content"] = std::move(text);
}

void append_call(const Json& item, const FieldPath& path, UnknownFields& unknown, Json& messages) {
  note_unknown(item, path, {"type", "id", "call_id", "name", "arguments", "status"}, unknown);
  assistant_message(messages)["tool_calls"].push_back(
      {{"id", required_string(item, "call_id", path)},
       {"type", "function"},
       {"function",
        {{"name", required_string(item, "name", path)}, {"arguments", required_string(item, "arguments", path)}}}});
}

void append_output(const Json& item, const FieldPath& path, UnknownFields& unknown, Json& messages) {
  note_unknown(item, path, {"type", "id", "call_id", "output", "status"}, unknown);
  messages.push_back({{"role", "tool"},
                      {"content", text_of(required_member(item, "output", path), path / "output", unknown)},
                      {"tool_call_id", required_string(item, "call_id", path)}});
}

// What the model thought before the rest of its turn.
void append_reasoning(const Json& item, const FieldPath& path, UnknownFields& unknown, Json& messages) {
  note_unknown(item, path, {"type", "id", "summary", "content", "encrypted_content", "status"}, unknown);
  if (member(item, "encrypted_content") != nullptr) {
    throw unsupported_parameter(path / "encrypted_content", "is not supported: send the item's 'content'");
  }
  const Json* content = member(item, "content");
  if (content == nullptr) return;
  std::string text = text_of(*content, path / "content", unknown);
  if (text.empty()) return;
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", std::move(text)}});
}

void append_item(const Json& item, const FieldPath& path, UnknownFields& unknown, Json& messages) {
  expect_object(item, path);
  const Json* type = member(item, "type");
  const std::string name = type != nullptr ? expect_string(*type, path / "type") : std::string("message");
  if (name == "message") return append_text_message(item, path, unknown, messages);
  if (name == "function_call") return append_call(item, path, unknown, messages);
  if (name == "function_call_output") return append_output(item, path, unknown, messages);
  if (name == "reasoning") return append_reasoning(item, path, unknown, messages);
  throw unsupported_parameter(path, fmt::format("is of type '{}', which is not supported. Accepted: 'message', "
                                                "'function_call', 'function_call_output', 'reasoning'",
                                                quotable(name)));
}

}  // namespace

void append_system(const std::string& text, Json& messages) {
  if (messages.size() == 1 && is_string(messages[0].at("role"), "system")) {
    messages[0].at("content").get_ref<std::string&>().append("\n\n").append(text);
    return;
  }
  messages.push_back({{"role", "system"}, {"content", text}});
}

void append_input(const Json& input, UnknownFields& unknown, Json& messages) {
  const FieldPath path = "input";
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return;
  }
  if (!input.is_array()) throw invalid_type(path, "one of a string or array of objects", input);
  expect_array(input, path, 1, kMaxParts);
  for (size_t i = 0; i < input.size(); ++i) append_item(input[i], path[i], unknown, messages);
}

Json input_items(const Json& input) {
  if (input.is_array()) return input;
  Json part = {{"type", "input_text"}, {"text", input}};
  return Json::array({{{"type", "message"}, {"role", "user"}, {"content", Json::array({std::move(part)})}}});
}

Json translate_response_tools(const Json& tools, UnknownFields& unknown) {
  const FieldPath list = "tools";
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const FieldPath path = list[i];
    const Json& tool = expect_object(tools[i], path);
    const std::string& type = required_string(tool, "type", path);
    if (type != "function") {
      throw unsupported_parameter(path, fmt::format("is of type '{}': only 'function' is supported", quotable(type)));
    }
    note_unknown(tool, path, {"type", "name", "description", "parameters", "strict"}, unknown);
    Json function = {{"name", required_string(tool, "name", path)}};
    if (const Json* text = member(tool, "description")) {
      function["description"] = expect_string(*text, path / "description");
    }
    if (const Json* schema = member(tool, "parameters")) {
      function["parameters"] = expect_object(*schema, path / "parameters");
    }
    if (const Json* strict = member(tool, "strict")) function["strict"] = expect_boolean(*strict, path / "strict");
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

}  // namespace sluice::server
