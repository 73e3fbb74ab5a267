// One function per shape of the chat API.
#include "server/messages.h"

#include <fmt/core.h>

#include "server/members.h"

namespace sluice::server {
namespace {

constexpr size_t kMaxItems = 16384;

std::string part_text(const Json& part, const FieldPath& path, UnknownFields& unknown) {
  expect_object(part, path);
  const std::string& type = required_string(part, "type", path);
  if (type == "text") {
    note_unknown(part, path, {"type", "text"}, unknown);
    return required_string(part, "text", path);
  }
  for (const std::string_view other : {"image_url", "input_audio", "audio_url", "video_url", "file", "image_embeds"}) {
    if (type == other) throw unsupported_parameter(path, fmt::format("is of type '{}': this model reads text", type));
  }
  throw invalid_value(path / "type", fmt::format("Invalid value: '{}'. Supported values are: 'text'.", quotable(type)));
}

std::string content_text(const Json& content, const FieldPath& path, UnknownFields& unknown) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw invalid_type(path, "one of a string or array of objects", content);
  expect_array(content, path, 1, kMaxItems);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    text += part_text(content[i], path[i], unknown);
  }
  return text;
}

// Templates want arguments as an object, while the API has them as JSON text.
Json tool_call(const Json& call, const FieldPath& path, UnknownFields& unknown) {
  expect_object(call, path);
  note_unknown(call, path, {"id", "type", "function", "index"}, unknown);
  required_string(call, "id", path);
  const std::string& type = required_string(call, "type", path);
  if (type != "function") {
    throw invalid_value(path / "type",
                        fmt::format("Invalid value: '{}'. Supported values are: 'function'.", quotable(type)));
  }
  const Json& function = expect_object(required_member(call, "function", path), path / "function");
  const FieldPath inner = path / "function";
  note_unknown(function, inner, {"name", "arguments"}, unknown);
  required_string(function, "name", inner);
  const std::string& text = required_string(function, "arguments", inner);
  Json arguments = Json::object();
  if (!text.empty()) {
    try {
      arguments = parse_json(text);
    } catch (const Error& e) {
      throw invalid_value(inner / "arguments",
                          fmt::format("Invalid '{}.arguments': not valid JSON: {}.", inner.str(), e.what()));
    }
    if (!arguments.is_object()) {
      throw invalid_value(inner / "arguments",
                          fmt::format("Invalid '{}.arguments': expected the text of a JSON object.", inner.str()));
    }
  }
  Json out = call;
  out["function"]["arguments"] = std::move(arguments);
  return out;
}

Json assistant_message(const Json& message, const FieldPath& path, UnknownFields& unknown) {
  note_unknown(message, path,
               {"role", "content", "name", "tool_calls", "refusal", "reasoning_content", "audio", "function_call",
                "annotations"},
               unknown);
  for (const char* key : {"audio", "function_call"}) {
    if (member(message, key) != nullptr) throw unsupported_parameter(path / key, "is not supported");
  }
  Json out = {{"role", "assistant"}};
  const Json* content = member(message, "content");
  const Json* calls = member(message, "tool_calls");
  const Json* refusal = member(message, "refusal");
  if (content == nullptr && calls == nullptr && refusal == nullptr) throw missing_parameter(path / "content");
  if (content != nullptr) {
    out["content"] = content_text(*content, path / "content", unknown);
  } else if (refusal != nullptr) {
    out["content"] = expect_string(*refusal, path / "refusal");
  } else {
    out["content"] = nullptr;
  }
  if (const Json* reasoning = member(message, "reasoning_content")) {
    out["reasoning_content"] = expect_string(*reasoning, path / "reasoning_content");
  }
  if (calls != nullptr) {
    const FieldPath calls_path = path / "tool_calls";
    expect_array(*calls, calls_path, 0, 128);
    Json list = Json::array();
    for (size_t i = 0; i < calls->size(); ++i) list.push_back(tool_call((*calls)[i], calls_path[i], unknown));
    if (!list.empty()) out["tool_calls"] = std::move(list);
  }
  return out;
}

Json template_message(const Json& message, const FieldPath& path, UnknownFields& unknown) {
  expect_object(message, path);
  const std::string& role = required_string(message, "role", path);
  Json out;
  if (role == "assistant") {
    out = assistant_message(message, path, unknown);
  } else if (role == "system" || role == "developer" || role == "user") {
    note_unknown(message, path, {"role", "content", "name"}, unknown);
    out = {{"role", role == "developer" ? "system" : role},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)}};
  } else if (role == "tool") {
    note_unknown(message, path, {"role", "content", "name", "tool_call_id"}, unknown);
    out = {{"role", role},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)},
           {"tool_call_id", required_string(message, "tool_call_id", path)}};
  } else {
    throw invalid_value(path / "role",
                        fmt::format("Invalid value: '{}'. Supported values are: 'system', 'developer', 'user', "
                                    "'assistant', and 'tool'.",
                                    quotable(role)));
  }
  if (const Json* name = member(message, "name")) out["name"] = expect_string(*name, path / "name");
  return out;
}

}  // namespace

Json template_messages(const Json& messages, UnknownFields& unknown) {
  const FieldPath path = "messages";
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) out.push_back(template_message(messages[i], path[i], unknown));
  return out;
}

const Json& check_tools(const Json& tools, UnknownFields& unknown) {
  const FieldPath tools_path = "tools";
  for (size_t i = 0; i < tools.size(); ++i) {
    const FieldPath path = tools_path[i];
    const Json& tool = expect_object(tools[i], path);
    note_unknown(tool, path, {"type", "function"}, unknown);
    const std::string& type = required_string(tool, "type", path);
    if (type != "function") {
      throw invalid_value(path / "type",
                          fmt::format("Invalid value: '{}'. Supported values are: 'function'.", quotable(type)));
    }
    const FieldPath inner = path / "function";
    const Json& function = expect_object(required_member(tool, "function", path), inner);
    note_unknown(function, inner, {"name", "description", "parameters", "strict"}, unknown);
    const std::string& name = required_string(function, "name", inner);
    if (name.empty() || name.size() > 128) {
      throw invalid_value(inner / "name", fmt::format("Invalid '{}.name': expected 1 to 128 characters, but got {}.",
                                                      inner.str(), name.size()));
    }
    if (const Json* text = member(function, "description")) expect_string(*text, inner / "description");
    if (const Json* schema = member(function, "parameters")) expect_object(*schema, inner / "parameters");
    if (const Json* strict = member(function, "strict")) expect_boolean(*strict, inner / "strict");
  }
  return tools;
}

}  // namespace sluice::server
