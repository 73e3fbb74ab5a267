// One function per kind of block.
#include "server/anthropic/blocks.h"

#include <fmt/core.h>

#include "server/members.h"

namespace sluice::server {
namespace {

// What a conversation may hold and this server cannot read.
void refuse_block(const std::string& type, const FieldPath& path, std::string_view accepted) {
  for (const std::string_view other :
       {"image", "document", "search_result", "redacted_thinking", "server_tool_use", "web_search_tool_result",
        "web_fetch_tool_result", "code_execution_tool_result", "mcp_tool_use", "mcp_tool_result", "container_upload"}) {
    if (type == other) {
      throw unsupported_parameter(path,
                                  fmt::format("is of type '{}', which is not supported. Accepted: {}", type, accepted));
    }
  }
  const FieldPath type_path = path / "type";
  throw invalid_value(type_path,
                      fmt::format("Invalid value: '{}'. Supported values are: {}.", quotable(type), accepted));
}

std::string text_block(const Json& block, const FieldPath& path, UnknownFields& unknown) {
  note_unknown(block, path, {"type", "text", "cache_control", "citations"}, unknown);
  return required_string(block, "text", path);
}

// An error of a tool is marked in its text: templates have no other place for it.
Json tool_result(const Json& block, const FieldPath& path, UnknownFields& unknown) {
  note_unknown(block, path, {"type", "tool_use_id", "content", "is_error", "cache_control"}, unknown);
  std::string text;
  if (const Json* content = member(block, "content")) text = anthropic_text(*content, path / "content", unknown);
  const Json* failed = member(block, "is_error");
  if (failed != nullptr && expect_boolean(*failed, path / "is_error")) text = "Error: " + text;
  return {
      {"role", "tool"}, {"content", std::move(text)}, {"tool_call_id", required_string(block, "tool_use_id", path)}};
}

Json tool_use(const Json& block, const FieldPath& path, UnknownFields& unknown) {
  note_unknown(block, path, {"type", "id", "name", "input", "cache_control", "caller"}, unknown);
  const Json& input = expect_object(required_member(block, "input", path), path / "input");
  return {{"id", required_string(block, "id", path)},
          {"type", "function"},
          {"function", {{"name", required_string(block, "name", path)}, {"arguments", dump_json(input)}}}};
}

const std::string& type_of(const Json& block, const FieldPath& path) {
  expect_object(block, path);
  return required_string(block, "type", path);
}

// Turns of the user that follow each other are one turn.
void append_user_text(std::string text, Json& out) {
  if (!out.empty() && is_string(out.back().at("role"), "user")) {
    out.back().at("content").get_ref<std::string&>().append("\n\n").append(text);
    return;
  }
  out.push_back({{"role", "user"}, {"content", std::move(text)}});
}

void append_user(const Json& content, const FieldPath& path, UnknownFields& unknown, Json& out) {
  if (content.is_string()) return append_user_text(content.get<std::string>(), out);
  if (!content.is_array()) throw invalid_type(path, "one of a string or array of objects", content);
  expect_array(content, path, 1, kMaxParts);
  std::string text;
  bool has_text = false;
  for (size_t i = 0; i < content.size(); ++i) {
    const FieldPath inner = path[i];
    const std::string& type = type_of(content[i], inner);
    if (type == "text") {
      text += text_block(content[i], inner, unknown);
      has_text = true;
    } else if (type == "tool_result") {
      if (std::exchange(has_text, false)) append_user_text(std::exchange(text, {}), out);
      out.push_back(tool_result(content[i], inner, unknown));
    } else {
      refuse_block(type, inner, "'text', 'tool_result'");
    }
  }
  if (has_text) append_user_text(std::move(text), out);
}

void append_assistant(const Json& content, const FieldPath& path, UnknownFields& unknown, Json& out) {
  if (content.is_string()) {
    out.push_back({{"role", "assistant"}, {"content", content}});
    return;
  }
  if (!content.is_array()) throw invalid_type(path, "one of a string or array of objects", content);
  expect_array(content, path, 1, kMaxParts);
  std::string text, thinking;
  Json calls = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const FieldPath inner = path[i];
    const std::string& type = type_of(content[i], inner);
    if (type == "text") {
      text += text_block(content[i], inner, unknown);
    } else if (type == "thinking") {
      note_unknown(content[i], inner, {"type", "thinking", "signature", "cache_control"}, unknown);
      thinking += required_string(content[i], "thinking", inner);
    } else if (type == "tool_use") {
      calls.push_back(tool_use(content[i], inner, unknown));
    } else {
      refuse_block(type, inner, "'text', 'thinking', 'tool_use'");
    }
  }
  Json message = {{"role", "assistant"}, {"content", std::move(text)}};
  if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  out.push_back(std::move(message));
}

}  // namespace

std::string anthropic_text(const Json& content, const FieldPath& path, UnknownFields& unknown) {
  return joined_text(content, path, unknown, 0, [](const Json& block, const FieldPath& at, UnknownFields& fields) {
    const std::string& type = type_of(block, at);
    if (type != "text") refuse_block(type, at, "'text'");
    return text_block(block, at, fields);
  });
}

void append_message(const Json& message, const FieldPath& path, UnknownFields& unknown, Json& out) {
  expect_object(message, path);
  note_unknown(message, path, {"role", "content"}, unknown);
  const std::string& role = required_string(message, "role", path);
  const Json& content = required_member(message, "content", path);
  const FieldPath content_path = path / "content";
  if (role == "user") return append_user(content, content_path, unknown, out);
  if (role == "assistant") return append_assistant(content, content_path, unknown, out);
  const FieldPath role_path = path / "role";
  throw invalid_value(role_path,
                      fmt::format("Invalid value: '{}'. Supported values are: 'user', 'assistant'. Instructions go "
                                  "into 'system'.",
                                  quotable(role)));
}

}  // namespace sluice::server
