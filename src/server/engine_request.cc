// Rules and conversions that the endpoints of all dialects share.
#include "server/engine_request.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/sha256.h"
#include "server/auth.h"
#include "server/messages.h"

namespace sluice::server {
namespace {

// What tool_choice, strict functions and parallel_tool_calls demand of the answer, as a grammar; none if they demand
// nothing.
std::optional<GrammarSpec> call_grammar(Call& call) {
  const auto& chat = call.fields.of<ConversationFields>();
  const Json& tools = chat.tools;
  if (!tools.is_array() || tools.empty() || is_string(chat.tool_choice, "none")) return std::nullopt;
  const bool named = chat.tool_choice.is_object(), required = named || is_string(chat.tool_choice, "required");
  const std::string name = named ? chat.tool_choice["function"]["name"].get<std::string>() : "";
  Json functions = Json::array();
  bool strict = false;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    if (named && function.at("name") != name) continue;
    const auto wants = function.find("strict");
    strict = strict || (wants != function.end() && wants->is_boolean() && wants->get<bool>());
    Json one = {{"name", function.at("name")}};
    const auto parameters = function.find("parameters");
    one["parameters"] = parameters != function.end() && parameters->is_object() ? *parameters : Json();
    functions.push_back(std::move(one));
  }
  const std::string param(required ? chat.names.choice : strict ? chat.names.tools : chat.names.parallel);
  if (functions.empty()) {
    throw invalid_value(std::string(chat.names.chosen), fmt::format("Invalid value: '{}'. '{}' has no such function.",
                                                                    quotable(name), chat.names.tools));
  }
  if (!required && !strict && chat.parallel_tool_calls) return std::nullopt;
  if (call.info().tool_syntax.empty()) {
    throw unsupported_parameter(param, "constrains calls, and how this model writes them is not known");
  }
  const Json text = {{"syntax", call.info().tool_syntax},
                     {"functions", functions},
                     {"required", required},
                     {"parallel", chat.parallel_tool_calls && !named}};
  return GrammarSpec{"tool_calls", dump_json(text), param};
}

}  // namespace

void refuse_task(const Call& call, std::string_view what) {
  throw ApiError{.message = fmt::format("The model '{}' does not {}: it is served for the task '{}'.", call.model.name,
                                        what, to_string(call.info().task)),
                 .param = "model",
                 .code = "unsupported_task"};
}

void expect_generates(const Call& call) {
  if (call.info().task != Task::kGenerate) refuse_task(call, "generate text");
}

static void apply_n_predict(Call& call) {
  auto& fields = call.fields.of<GenerationFields>();
  if (!fields.n_predict) return;
  if (fields.n_predict == 0) {
    throw invalid_value("n_predict", "Invalid 'n_predict': expected -1 or at least 1, but got 0.");
  }
  if (fields.has_max_tokens || fields.max_tokens_name != "max_tokens") {
    throw ApiError{
        .message = fmt::format("Setting both '{}' and 'n_predict' is not supported.", fields.max_tokens_name),
        .param = "n_predict",
        .code = "invalid_parameter_combination"};
  }
  fields.max_tokens_name = "n_predict";
  call.fields.of<SamplingParams>().max_tokens = fields.n_predict > 0 ? fields.n_predict : std::nullopt;
}

void check_generation(Call& call, bool echo) {
  apply_n_predict(call);
  const auto& fields = call.fields.of<GenerationFields>();
  const auto& sampling = call.fields.of<SamplingParams>();
  if (fields.has_max_tokens && sampling.max_tokens == 0 && !echo) {
    throw ApiError{.message =
                       "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 "
                       "instead.",
                   .param = "max_tokens",
                   .code = "integer_below_min_value"};
  }
  if (!fields.stream_options.is_null() && !fields.stream) {
    throw invalid_value("stream_options", "Invalid 'stream_options': it needs 'stream' to be true.");
  }
  if (fields.stream && sampling.prompt_logprobs) {
    throw invalid_value("prompt_logprobs", "Invalid 'prompt_logprobs': it cannot be streamed.");
  }
}

GrammarSpec schema_grammar(std::string schema, const FieldPath& path) {
  return {.kind = "json_schema_strict", .text = std::move(schema), .param = path.str()};
}

// vLLM has as many beams as choices; transformers names their number.
static std::optional<BeamParams> beams_of(const GenerationFields& fields) {
  const BeamParams beams = {.width = fields.num_beams.value_or(fields.n),
                            .length_penalty = fields.length_penalty.value_or(1),
                            .early_stopping = fields.early_stopping.value_or(EarlyStopping::kNo),
                            .groups = fields.num_beam_groups,
                            .diversity_penalty = fields.diversity_penalty};
  if (fields.searches || fields.num_beams.value_or(1) != 1) return beams;
  const char* setting = beams.length_penalty != 1                    ? "length_penalty"
                        : beams.early_stopping != EarlyStopping::kNo ? "early_stopping"
                        : beams.groups != 1                          ? "num_beam_groups"
                        : beams.diversity_penalty != 0               ? "diversity_penalty"
                                                                     : nullptr;
  if (setting == nullptr) return std::nullopt;
  throw invalid_value(setting, fmt::format("Invalid '{}': it needs 'use_beam_search' or 'num_beams'.", setting));
}

void set_adapter(Request& request, const ScaledAdapter& adapter) {
  request.adapter = adapter.name;
  request.adapter_scale = adapter.scale;
}

Request base_request(Call& call) {
  const auto& fields = call.fields.of<GenerationFields>();
  if (fields.session_ttl > 0 && fields.session.empty()) {
    throw invalid_value("session_ttl", "Invalid 'session_ttl': it needs 'session_id'.");
  }
  Request request;
  request.id = call.request_id;
  request.sampling = call.fields.of<SamplingParams>();
  request.n = fields.n;
  request.beams = beams_of(fields);
  request.context_shift = fields.context_shift;
  set_context_shift(request, call.info().context_shift);
  request.context_keep = fields.context_keep;
  request.max_tokens_param = fields.max_tokens_name;
  request.truncate_prompt = fields.truncate_prompt;
  request.truncation_keeps_start = fields.keeps_start;
  request.returns_prompt = fields.return_token_ids;
  request.priority = fields.priority;
  request.cache_salt = cache_salt(call.tenant, fields.cache_salt);
  request.session = fields.session;
  request.session_ttl = std::chrono::seconds(fields.session_ttl);
  request.tenant = call.tenant;
  set_adapter(request, call.model.adapter.empty() ? call.model.default_adapter : ScaledAdapter{call.model.adapter});
  request.grammar = fields.grammar;
  request.deadline = call.deadline;
  return request;
}

bool gives_way(Call& call, const Request& request) {
  const auto& fields = call.fields.of<GenerationFields>();
  const bool predicts = fields.max_tokens_name == "n_predict" && request.sampling.max_tokens.has_value();
  return !fields.has_max_tokens && !(predicts && request.context_shift.value_or(false));
}

void check_prompt_logprobs(const std::vector<Request>& requests, const std::string& param) {
  constexpr size_t kMost = 512 << 10;
  size_t scores = 0;
  for (const Request& request : requests) {
    const std::optional<int>& alternatives = request.sampling.prompt_logprobs;
    if (alternatives) scores += request.prompt.size() * (static_cast<size_t>(*alternatives) + 1);
  }
  if (scores <= kMost) return;
  throw ApiError{.message = fmt::format("Invalid '{}': {} log probabilities of prompts. Expected at most {} in a "
                                        "request.",
                                        param, scores, kMost),
                 .param = param,
                 .code = "too_many_logprobs"};
}

std::vector<TokenId> tokenize_text(const Call& call, const std::string& text, bool add_special_tokens,
                                   const std::string& param, size_t accepted) {
  check_text_length(text.size(), call.info().max_model_len, param, accepted);
  return call.engine().tokenize(text, add_special_tokens);
}

// Sets the template's variables for thoughts, as far as it has them.
static void set_thinking(Call& call, Json& variables) {
  const auto& fields = call.fields.of<ConversationFields>();
  const ModelInfo& info = call.info();
  if (fields.thinks && !info.thinking_switch.empty()) variables[info.thinking_switch] = *fields.thinks;
  const bool cannot_think = info.thinking_switch.empty() && info.reasoning_syntax.empty();
  if (fields.thinks.value_or(false) && cannot_think && !fields.thinking_param.empty()) {
    call.unknown.add(fields.thinking_param);
  }
  if (fields.effort.empty()) return;
  if (fields.effort == "none" ? info.template_takes_no_effort : info.template_takes_effort) {
    variables["reasoning_effort"] = fields.effort;
  } else if (fields.effort != "none" && !fields.effort_param.empty()) {
    call.unknown.add(fields.effort_param);
  }
}

ChatPrompt chat_prompt(Call& call, bool with_tools) {
  const auto& fields = call.fields.of<ConversationFields>();
  ChatPrompt chat;
  chat.messages = dump_json(template_messages(fields.messages, call.unknown));
  if (fields.tools.is_array() && !fields.tools.empty()) {
    const Json& tools = check_tools(fields.tools, call.unknown);
    if (with_tools) chat.tools = dump_json(tools);
  }
  Json variables = fields.template_kwargs;
  set_thinking(call, variables);
  if (variables.is_object()) chat.template_kwargs = dump_json(variables);
  chat.continue_final_message = fields.continue_final_message;
  chat.add_generation_prompt = fields.add_generation_prompt.value_or(!fields.continue_final_message);
  return chat;
}

std::vector<TokenId> tokenize_chat(Call& call, bool with_tools) {
  const std::string text = call.engine().render_chat(chat_prompt(call, with_tools));
  // Templates write the special tokens themselves.
  return tokenize_text(call, text, call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(false), "messages");
}

ChatRequest chat_request(Call& call) {
  const bool with_tools = !is_string(call.fields.of<ConversationFields>().tool_choice, "none");
  ChatRequest request{.request = base_request(call),
                      .chat = chat_prompt(call, with_tools),
                      .add_special_tokens = call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(false)};
  request.request.prompt_param = "messages";
  request.request.max_tokens_is_default = !call.fields.of<GenerationFields>().has_max_tokens;
  if (!call.info().reasoning_syntax.empty()) {
    request.request.thinking_token_budget = call.fields.of<ConversationFields>().thinking_budget;
  }
  if (std::optional<GrammarSpec> calls = call_grammar(call)) {
    if (request.request.grammar) {
      throw ApiError{
          .message = fmt::format("Setting '{}' and '{}' at the same time is not supported: an answer has one "
                                 "grammar.",
                                 calls->param, request.request.grammar->param),
          .param = calls->param,
          .code = "invalid_parameter_combination"};
    }
    request.request.grammar = std::move(calls);
  }
  return request;
}

std::string fingerprint(const ModelInfo& model) {
  const std::string text = fmt::format("{} {} {} {}", model.name, model.dtype, model.backend, model.created);
  return "fp_" + hex(sha256(text)).substr(0, 12);
}

}  // namespace sluice::server
