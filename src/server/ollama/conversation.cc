// In Ollama's API, arguments of calls are objects, and calls need no ids.
#include "server/ollama/conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/members.h"

namespace sluice::server {
namespace {

struct PendingCall {
  std::string id, name;
};

std::string text_of(const Json& message, const FieldPath& path) {
  const Json* content = member(message, "content");
  return content != nullptr ? expect_string(*content, path / "content") : std::string();
}

Json translate_calls(const Json& calls, const FieldPath& path, UnknownFields& unknown,
                     std::vector<PendingCall>& pending) {
  expect_array(calls, path, 0, 128);
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const FieldPath call_path = path[i];
    const Json& call = expect_object(calls[i], call_path);
    note_unknown(call, call_path, {"id", "type", "function"}, unknown);
    const FieldPath inner = call_path / "function";
    const Json& function = expect_object(required_member(call, "function", call_path), inner);
    note_unknown(function, inner, {"name", "arguments", "index"}, unknown);
    const Json* id = member(call, "id");
    const Json* arguments = member(function, "arguments");
    PendingCall one{.id = id != nullptr ? expect_string(*id, call_path / "id") : fmt::format("call_{}", pending.size()),
                    .name = required_string(function, "name", inner)};
    out.push_back({{"id", one.id},
                   {"type", "function"},
                   {"function",
                    {{"name", one.name},
                     {"arguments", arguments != nullptr ? dump_json(expect_object(*arguments, inner / "arguments"))
                                                        : std::string("{}")}}}});
    pending.push_back(std::move(one));
  }
  return out;
}

Json assistant_message(const Json& message, const FieldPath& path, UnknownFields& unknown,
                       std::vector<PendingCall>& pending) {
  note_unknown(message, path, {"role", "content", "thinking", "tool_calls", "images"}, unknown);
  Json out = {{"role", "assistant"}, {"content", text_of(message, path)}};
  if (const Json* thinking = member(message, "thinking")) {
    const std::string& text = expect_string(*thinking, path / "thinking");
    if (!text.empty()) out["reasoning_content"] = text;
  }
  if (const Json* calls = member(message, "tool_calls")) {
    Json list = translate_calls(*calls, path / "tool_calls", unknown, pending);
    if (!list.empty()) out["tool_calls"] = std::move(list);
  }
  return out;
}

// The result belongs to the call with its id, or else to the first open one of its name, or else to the first.
Json tool_message(const Json& message, const FieldPath& path, UnknownFields& unknown,
                  std::vector<PendingCall>& pending) {
  note_unknown(message, path, {"role", "content", "tool_name", "name", "tool_call_id", "images"}, unknown);
  Json out = {{"role", "tool"}, {"content", text_of(message, path)}};
  std::string name, id;
  if (const Json* text = member(message, "name")) name = expect_string(*text, path / "name");
  if (const Json* text = member(message, "tool_name")) name = expect_string(*text, path / "tool_name");
  if (const Json* text = member(message, "tool_call_id")) id = expect_string(*text, path / "tool_call_id");
  auto call = std::find_if(pending.begin(), pending.end(),
                           [&](const PendingCall& c) { return id.empty() ? c.name == name : c.id == id; });
  if (call == pending.end() && id.empty()) call = pending.begin();
  if (call != pending.end()) {
    if (name.empty()) name = call->name;
    id = call->id;
    pending.erase(call);
  }
  out["tool_call_id"] = id;
  if (!name.empty()) out["name"] = name;
  return out;
}

}  // namespace

Json translate_ollama_messages(const Json& messages, UnknownFields& unknown) {
  const FieldPath list = "messages";
  std::vector<PendingCall> pending;
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const FieldPath path = list[i];
    const Json& message = expect_object(messages[i], path);
    const std::string& role = required_string(message, "role", path);
    if (const Json* images = member(message, "images"); images != nullptr && !images->empty()) {
      throw unsupported_parameter(path / "images", "is not supported: this model reads text");
    }
    if (role == "assistant") {
      out.push_back(assistant_message(message, path, unknown, pending));
    } else if (role == "tool") {
      out.push_back(tool_message(message, path, unknown, pending));
    } else if (role == "system" || role == "user") {
      note_unknown(message, path, {"role", "content", "images"}, unknown);
      out.push_back({{"role", role}, {"content", text_of(message, path)}});
    } else {
      throw invalid_value(path / "role", fmt::format("Invalid value: '{}'. Supported values are: 'system', 'user', "
                                                     "'assistant', 'tool'.",
                                                     quotable(role)));
    }
  }
  return out;
}

}  // namespace sluice::server
