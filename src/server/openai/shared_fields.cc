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
  request.deadline = call.deadline;
  return request;
}

void check_text_length(const Call& call, size_t bytes, const std::string& param, size_t accepted) {
  const auto context = static_cast<size_t>(call.info().max_model_len);
  if (bytes <= std::max(context * kBytesPerToken, accepted)) return;
  throw ApiError{.message = fmt::format("This model's maximum context length is {} tokens. However, your {} has {} "
                                        "bytes of text, which is more than {} tokens can hold.",
                                        context, param, bytes, context),
                 .param = param,
                 .code = "context_length_exceeded"};
}

std::vector<TokenId> tokenize_text(const Call& call, const std::string& text, bool add_special_tokens,
                                   const std::string& param, size_t accepted) {
  check_text_length(call, text.size(), param, accepted);
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

void fit_context(const Call& call, std::string_view what, bool asked, Request& request) {
  const int64_t context = call.info().max_model_len;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) {
    throw invalid_value(request.prompt_param, fmt::format("Invalid '{}': it has no tokens.", request.prompt_param));
  }
  if (!asked && request.sampling.max_tokens) {
    request.sampling.max_tokens =
        static_cast<int>(std::clamp<int64_t>(context - prompt, 1, *request.sampling.max_tokens));
  }
  const int64_t completion = request.sampling.max_tokens.value_or(1);
  if (prompt + completion <= context) return;
  std::string message = fmt::format("This model's maximum context length is {} tokens. However, ", context);
  if (prompt >= context) {
    message += fmt::format("your {0} resulted in {1} tokens. Please reduce the length of the {0}.", what, prompt);
  } else {
    message += fmt::format(
        "you requested {0} tokens ({1} in the {3}, {2} in the completion). Please reduce the length "
        "of the {3} or completion.",
        prompt + completion, prompt, completion, what);
  }
  throw ApiError{.message = std::move(message), .param = request.prompt_param, .code = "context_length_exceeded"};
}

std::string fingerprint(const ModelInfo& model) {
  const std::string text = fmt::format("{} {} {} {}", model.name, model.dtype, model.backend, model.created);
  return "fp_" + hex(sha256(text)).substr(0, 12);
}

}  // namespace sluice::server
