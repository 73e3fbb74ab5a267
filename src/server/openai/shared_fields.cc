// Rules and conversions that the endpoints of OpenAI's dialect share. Their rows are in shared_parameters.cc.
#include "server/openai/shared_fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/sha256.h"
#include "server/auth.h"
#include "server/messages.h"

namespace sluice::server {

void refuse_task(const Call& call, std::string_view what) {
  throw ApiError{.message = fmt::format("The model '{}' does not {}: it is served for the task '{}'.", call.model.name,
                                        what, to_string(call.info().task)),
                 .param = "model",
                 .code = "unsupported_task"};
}

void expect_generates(const Call& call) {
  if (call.info().task != Task::kGenerate) refuse_task(call, "generate text");
}

void check_generation(Call& call, bool echo) {
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

Request base_request(Call& call) {
  const auto& fields = call.fields.of<GenerationFields>();
  Request request;
  request.id = call.request_id;
  request.sampling = call.fields.of<SamplingParams>();
  request.n = fields.n;
  request.priority = fields.priority;
  request.cache_salt = cache_salt(call.tenant, fields.cache_salt);
  request.tenant = call.tenant;
  request.grammar = fields.grammar;
  request.deadline = call.deadline;
  return request;
}

std::vector<TokenId> tokenize_text(const Call& call, const std::string& text, bool add_special_tokens,
                                   const std::string& param, size_t accepted) {
  check_text_length(text.size(), call.info().max_model_len, param, accepted);
  return call.engine().tokenize(text, add_special_tokens);
}

ChatPrompt chat_prompt(Call& call, bool with_tools) {
  const auto& fields = call.fields.of<ConversationFields>();
  ChatPrompt chat;
  chat.messages = dump_json(template_messages(fields.messages, call.unknown));
  if (fields.tools.is_array() && !fields.tools.empty()) {
    const Json& tools = check_tools(fields.tools, call.unknown);
    if (with_tools) chat.tools = dump_json(tools);
  }
  if (fields.template_kwargs.is_object()) chat.template_kwargs = dump_json(fields.template_kwargs);
  chat.add_generation_prompt = fields.add_generation_prompt;
  return chat;
}

std::vector<TokenId> tokenize_chat(Call& call, bool with_tools) {
  const std::string text = call.engine().render_chat(chat_prompt(call, with_tools));
  // Templates write the special tokens themselves.
  return tokenize_text(call, text, call.fields.of<SpecialTokenFields>().add_special_tokens.value_or(false), "messages");
}

std::string fingerprint(const ModelInfo& model) {
  const std::string text = fmt::format("{} {} {} {}", model.name, model.dtype, model.backend, model.created);
  return "fp_" + hex(sha256(text)).substr(0, 12);
}

}  // namespace sluice::server
