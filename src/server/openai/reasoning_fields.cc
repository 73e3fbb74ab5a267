// Rows of the fields, and what they mean for a model.
#include "server/openai/reasoning_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "server/openai/shared_fields.h"

namespace sluice::server {
namespace {

using Type = Parameter::Type;

constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};

ApiError combination(const std::string& param, const std::string& other) {
  return {.message = fmt::format("Setting '{}' and '{}' to different values is not supported.", param, other),
          .param = param,
          .code = "invalid_parameter_combination"};
}

void set_effort(Fields& f, const Json& v) {
  const std::string& effort = expect_string(v, "reasoning_effort");
  if (std::ranges::find(kEfforts, effort) == std::end(kEfforts)) {
    throw invalid_value("reasoning_effort",
                        fmt::format("Invalid value: '{}'. Supported values are: 'none', 'minimal', 'low', 'medium', "
                                    "'high', 'xhigh'.",
                                    quotable(effort)));
  }
  f.of<ReasoningFields>().effort = effort;
}

void set_switch(Fields& f, bool on, const char* param) {
  auto& fields = f.of<ReasoningFields>();
  if (fields.thinking && *fields.thinking != on) throw combination(param, fields.thinking_param);
  fields.thinking = on;
  fields.thinking_param = param;
}

void set_budget(Fields& f, const Json& v, const std::string& param, int least) {
  const auto tokens = static_cast<int>(expect_integer(v, param, least, static_cast<int64_t>(kIntMax)));
  if (tokens < 0) return;  // no limit
  auto& fields = f.of<ReasoningFields>();
  if (fields.budget && *fields.budget != tokens) throw combination(param, fields.budget_param);
  fields.budget = tokens;
  fields.budget_param = param;
}

// true, false, or {"type": "enabled", "budget_tokens": 100}.
void set_thinking(Fields& f, const Json& v) {
  const FieldPath path = "thinking";
  if (v.is_boolean()) return set_switch(f, v.get<bool>(), "thinking");
  if (!v.is_object()) throw invalid_type("thinking", "one of a boolean or object", v);
  const auto type = v.find("type");
  if (type == v.end()) throw missing_parameter("thinking.type");
  const std::string& name = expect_string(*type, path / "type");
  constexpr std::string_view kTypes[] = {"enabled", "disabled"};
  expect_one_of(name, "thinking.type", kTypes);
  set_switch(f, name == "enabled", "thinking");
  for (const auto& [key, value] : v.items()) {
    if (key == "type" || value.is_null()) continue;
    if (key != "budget_tokens") throw unsupported_parameter(path / key, "is not known");
    set_budget(f, value, "thinking.budget_tokens", 0);
  }
}

constexpr auto kReasoning = std::to_array<Parameter>({
    {.name = "reasoning_effort",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "the template's",
     .help = "none, minimal, low, medium, high, xhigh: a variable of the chat template; none turns thoughts off",
     .set = set_effort},
    {.name = "include_reasoning",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "false: the answer comes without what the model thought",
     .set = assign<&ReasoningFields::include_reasoning>},
    {.name = "thinking",
     .type = Type::kAny,
     .max_bytes = kLabelBytes,
     .fallback = "the template's",
     .help = "true, false, or an object with type (enabled, disabled) and budget_tokens: turns thoughts on or off",
     .set = set_thinking},
    {.name = "enable_thinking",
     .type = Type::kBoolean,
     .fallback = "the template's",
     .help = "the same as thinking",
     .set = [](Fields& f, const Json& v) { set_switch(f, v.get<bool>(), "enable_thinking"); }},
    {.name = "thinking_token_budget",
     .type = Type::kInteger,
     .min = 0,
     .max = kIntMax,
     .fallback = "none",
     .help = "tokens of thought after which its end is forced",
     .set = [](Fields& f, const Json& v) { set_budget(f, v, "thinking_token_budget", 0); }},
    {.name = "thinking_budget_tokens",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "-1",
     .help = "the same; -1: no limit",
     .set = [](Fields& f, const Json& v) { set_budget(f, v, "thinking_budget_tokens", -1); }},
    {.name = "reasoning_budget",
     .type = Type::kInteger,
     .min = -1,
     .max = kIntMax,
     .fallback = "-1",
     .help = "the same; -1: no limit",
     .set = [](Fields& f, const Json& v) { set_budget(f, v, "reasoning_budget", -1); }},
});

constexpr auto kRefused = std::to_array<Parameter>({
    refused("reasoning_effort", {}, "Use /v1/chat/completions"),
    refused("include_reasoning", "[true]", "Use /v1/chat/completions"),
    refused("thinking", {}, "Use /v1/chat/completions"),
    refused("enable_thinking", {}, "Use /v1/chat/completions"),
    refused("thinking_token_budget", {}, "Use /v1/chat/completions"),
    refused("thinking_budget_tokens", "[-1]", "Use /v1/chat/completions"),
    refused("reasoning_budget", "[-1]", "Use /v1/chat/completions"),
});

// Sets a variable of the template, unless the client has given it with another value.
void set_variable(Call& call, const std::string& name, const Json& value, const std::string& param) {
  Json& variables = call.fields.of<ConversationFields>().template_kwargs;
  if (variables.is_null()) variables = Json::object();
  const auto given = variables.find(name);
  if (given != variables.end() && dump_json(*given) != dump_json(value)) {
    throw combination(param, "chat_template_kwargs." + name);
  }
  variables[name] = value;
}

void apply_effort(Call& call, const std::string& effort) {
  const ModelInfo& info = call.info();
  const bool off = effort == "none";
  const bool takes_none = !info.thinking_switch.empty() || info.template_takes_no_effort;
  if (off ? !takes_none : !info.template_takes_effort) {
    std::string accepted = takes_none ? "'none'" : "";
    if (info.template_takes_effort) {
      for (const char* other : {"minimal", "low", "medium", "high", "xhigh"}) {
        accepted += fmt::format("{}'{}'", accepted.empty() ? "" : ", ", other);
      }
    }
    if (accepted.empty()) throw unsupported_parameter("reasoning_effort", "is not known to this model's chat template");
    throw invalid_value("reasoning_effort",
                        fmt::format("Invalid value: '{}'. This model's chat template takes: {}.", effort, accepted));
  }
  if (off && !info.thinking_switch.empty()) set_variable(call, info.thinking_switch, false, "reasoning_effort");
  if (off ? info.template_takes_no_effort : true) set_variable(call, "reasoning_effort", effort, "reasoning_effort");
}

}  // namespace

std::span<const Parameter> reasoning_parameters() { return kReasoning; }
std::span<const Parameter> refused_reasoning_parameters() { return kRefused; }

void apply_reasoning(Call& call) {
  const auto& fields = call.fields.of<ReasoningFields>();
  const ModelInfo& info = call.info();
  if (!fields.effort.empty()) apply_effort(call, fields.effort);
  if (fields.thinking) {
    // Without a switch the model has no such field.
    if (info.thinking_switch.empty()) {
      call.unknown.add(fields.thinking_param);
    } else {
      set_variable(call, info.thinking_switch, *fields.thinking, fields.thinking_param);
    }
  }
  if (fields.budget && info.reasoning_syntax.empty()) {
    throw unsupported_parameter(fields.budget_param,
                                "limits thoughts, and how this model marks them is not known (see --reasoning-parser)");
  }
}

}  // namespace sluice::server
