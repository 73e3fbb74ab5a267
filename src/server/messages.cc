// One function per shape of the chat API.
#include "server/messages.h"

#include <fmt/core.h>

#include "server/members.h"

namespace sluice::server {
namespace {

constexpr size_t kMaxRoleBytes = 64;
constexpr size_t kMaxArgumentValues = 64 << 10;  // values in the arguments of one call

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
  return joined_text(content, path, unknown, 1, part_text);
}

// Templates want arguments as an object, while the API has them as JSON text.
Json called_function(const Json& function, const FieldPath& path, UnknownFields& unknown) {
  expect_object(function, path);
  note_unknown(function, path, {"name", "arguments"}, unknown);
  required_string(function, "name", path);
  const std::string& text = required_string(function, "arguments", path);
  Json arguments = Json::object();
  if (!text.empty()) {
    try {
      arguments = parse_json(text, {.values = kMaxArgumentValues});
    } catch (const Error& e) {
      throw invalid_value(path / "arguments",
                          fmt::format("Invalid '{}.arguments': not valid JSON: {}.", path.str(), e.what()));
    }
    if (!arguments.is_object()) {
      throw invalid_value(path / "arguments",
                          fmt::format("Invalid '{}.arguments': expected the text of a JSON object.", path.str()));
    }
  }
  Json out = function;
  out["arguments"] = std::move(arguments);
  return out;
}

Json tool_call(const Json& call, const FieldPath& path, UnknownFields& unknown) {
  expect_object(call, path);
  note_unknown(call, path, {"id", "type", "function", "index"}, unknown);
  required_string(call, "id", path);
  const std::string& type = required_string(call, "type", path);
  if (type != "function") {
    throw invalid_value(path / "type",
                        fmt::format("Invalid value: '{}'. Supported values are: 'function'.", quotable(type)));
  }
  Json out = call;
  out["function"] = called_function(required_member(call, "function", path), path / "function", unknown);
  return out;
}

// The ids of calls in the older form, which has none: that of a call is made from its place among the messages.
std::string legacy_id(size_t message) { return fmt::format("call_{}", message); }

Json assistant_calls(const Json* calls, const Json* legacy, size_t index, const FieldPath& path,
                     UnknownFields& unknown) {
  if (calls != nullptr && legacy != nullptr) {
    throw ApiError{.message = "Setting 'tool_calls' and 'function_call' in one message is not supported.",
                   .param = path / "function_call",
                   .code = "invalid_parameter_combination"};
  }
  Json list = Json::array();
  if (legacy != nullptr) {
    list.push_back({{"id", legacy_id(index)},
                    {"type", "function"},
                    {"function", called_function(*legacy, path / "function_call", unknown)}});
  }
  if (calls != nullptr) {
    const FieldPath calls_path = path / "tool_calls";
    expect_array(*calls, calls_path, 0, 128);
    for (size_t i = 0; i < calls->size(); ++i) list.push_back(tool_call((*calls)[i], calls_path[i], unknown));
  }
  return list;
}

Json assistant_message(const Json& message, size_t index, const FieldPath& path, UnknownFields& unknown) {
  note_unknown(message, path,
               {"role", "content", "name", "tool_calls", "refusal", "reasoning_content", "reasoning", "audio",
                "function_call", "annotations"},
               unknown);
  if (member(message, "audio") != nullptr) throw unsupported_parameter(path / "audio", "is not supported");
  Json out = {{"role", "assistant"}};
  const Json* content = member(message, "content");
  const Json* calls = member(message, "tool_calls");
  const Json* legacy = member(message, "function_call");
  const Json* refusal = member(message, "refusal");
  if (content == nullptr && calls == nullptr && legacy == nullptr && refusal == nullptr)
    throw missing_parameter(path / "content");
  if (content != nullptr) {
    out["content"] = content_text(*content, path / "content", unknown);
  } else if (refusal != nullptr) {
    out["content"] = expect_string(*refusal, path / "refusal");
  } else {
    out["content"] = nullptr;
  }
  // Templates know the older name. Answers have both.
  for (const char* key : {"reasoning", "reasoning_content"}) {
    if (const Json* reasoning = member(message, key)) out["reasoning_content"] = expect_string(*reasoning, path / key);
  }
  Json list = assistant_calls(calls, legacy, index, path, unknown);
  if (!list.empty()) out["tool_calls"] = std::move(list);
  return out;
}

Json template_message(const Json& message, size_t index, const std::string& legacy_call, const FieldPath& path,
                      UnknownFields& unknown) {
  expect_object(message, path);
  const std::string& role = required_string(message, "role", path);
  Json out;
  if (role == "assistant") {
    out = assistant_message(message, index, path, unknown);
  } else if (role == "system" || role == "developer" || role == "user") {
    note_unknown(message, path, {"role", "content", "name"}, unknown);
    out = {{"role", role == "developer" ? "system" : role},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)}};
  } else if (role == "tool") {
    note_unknown(message, path, {"role", "content", "name", "tool_call_id"}, unknown);
    out = {{"role", role},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)},
           {"tool_call_id", required_string(message, "tool_call_id", path)}};
  } else if (role == "function") {
    note_unknown(message, path, {"role", "content", "name"}, unknown);
    required_string(message, "name", path);
    out = {{"role", "tool"},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)},
           {"tool_call_id", legacy_call}};
  } else {  // a role that the template may know
    note_unknown(message, path, {"role", "content", "name"}, unknown);
    if (role.empty() || role.size() > kMaxRoleBytes) {
      throw invalid_value(path / "role", fmt::format("Invalid '{}.role': expected 1 to {} bytes, but got {}.",
                                                     path.str(), kMaxRoleBytes, role.size()));
    }
    out = {{"role", role},
           {"content", content_text(required_member(message, "content", path), path / "content", unknown)}};
  }
  if (const Json* name = member(message, "name")) out["name"] = expect_string(*name, path / "name");
  return out;
}

}  // namespace

Json template_messages(const Json& messages, UnknownFields& unknown) {
  const FieldPath path = "messages";
  Json out = Json::array();
  std::string legacy_call = "call_0";
  for (size_t i = 0; i < messages.size(); ++i) {
    out.push_back(template_message(messages[i], i, legacy_call, path[i], unknown));
    if (member(messages[i], "function_call") != nullptr) legacy_call = legacy_id(i);
  }
  return out;
}

const Json& check_function(const Json& function, const FieldPath& path, UnknownFields& unknown) {
  expect_object(function, path);
  note_unknown(function, path, {"name", "description", "parameters", "strict"}, unknown);
  const std::string& name = required_string(function, "name", path);
  if (name.empty() || name.size() > 128) {
    throw invalid_value(path / "name", fmt::format("Invalid '{}.name': expected 1 to 128 characters, but got {}.",
                                                   path.str(), name.size()));
  }
  if (const Json* text = member(function, "description")) expect_string(*text, path / "description");
  if (const Json* schema = member(function, "parameters")) expect_object(*schema, path / "parameters");
  if (const Json* strict = member(function, "strict")) expect_boolean(*strict, path / "strict");
  return function;
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
    check_function(required_member(tool, "function", path), path / "function", unknown);
  }
  return tools;
}

}  // namespace sluice::server
