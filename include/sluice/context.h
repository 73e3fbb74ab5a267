// Whether prompt and completion of a request fit the context of a model. Servers ask before they submit several prompts
// together; Engine::submit_chat asks for its one prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "sluice/error.h"
#include "sluice/request.h"

namespace sluice {

// Text of so many bytes per token of context cannot fit: it is refused before any time is spent on tokenizing it.
inline constexpr size_t kBytesPerToken = 16;
inline constexpr size_t kBytesAlways = 4096;        // accepted whatever the context
inline constexpr size_t kBytesTruncated = 1 << 20;  // accepted whatever the context where tokens are cut off

// Throws Error(kInvalidRequest, context_length_exceeded) that names `param` when a text of so many bytes cannot fit
// `context` tokens. Accepts up to `accepted` bytes in any case.
inline void check_text_length(size_t bytes, int context, const std::string& param, size_t accepted = kBytesAlways) {
  if (bytes <= std::max(static_cast<size_t>(context) * kBytesPerToken, accepted)) return;
  const std::string tokens = std::to_string(context);
  throw Error(ErrorCode::kInvalidRequest,
              "This model's maximum context length is " + tokens + " tokens. However, your " + param + " has " +
                  std::to_string(bytes) + " bytes of text, which is more than " + tokens + " tokens can hold.",
              param, "context_length_exceeded");
}

// Decides whether max_tokens may go beyond the context, where the request leaves that to the engine's default.
// Searches, prompts of vectors and prompts with modules stay within it.
inline void set_context_shift(Request& request, bool by_default) {
  if (request.context_shift || request.beams || request.prompt_vectors || !request.modules.empty()) return;
  if (!searches_contrastively(request.sampling)) request.context_shift = by_default;
}

// The position of the first token behind all modules of a prompt: that of its own text.
inline int64_t modules_end(const Request& request) {
  int64_t end = 0, next = 0;
  for (const PromptModule& module : request.modules) {
    next = (module.position < 0 ? next : module.position) + int64_t{module.tokens};
    end = std::max(end, next);
  }
  return end;
}

// The positions that a prompt takes: its tokens, and those that its modules leave out.
inline int64_t prompt_positions(const Request& request) {
  auto positions = static_cast<int64_t>(request.prompt.size()) + modules_end(request);
  for (const PromptModule& module : request.modules) positions -= module.tokens;
  return positions;
}

// Cuts a prompt as request.truncate_prompt and truncation_keeps_start say.
inline void truncate_prompt(Request& request, int context) {
  if (!request.truncate_prompt) return;
  const bool one = request.max_tokens_is_default || request.context_shift.value_or(false);
  const int completion = one ? 1 : request.sampling.max_tokens.value_or(1);
  const int most = *request.truncate_prompt >= 0 ? *request.truncate_prompt : std::max(1, context - completion);
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length <= most) return;
  if (request.truncation_keeps_start) return request.prompt.resize(static_cast<size_t>(most));
  request.prompt.erase(request.prompt.begin(), request.prompt.end() - most);
}

// Truncates the prompt if that is asked for. Throws Error(kInvalidRequest) unless prompt and completion fit `context`
// tokens; with a context shift, the prompt and one token. It names request.prompt_param, or request.max_tokens_param if
// the prompt alone would fit. max_tokens gives way to the context if request.max_tokens_is_default. The wording is
// OpenAI's: `what` is "messages" or "prompt".
inline void fit_context(Request& request, int context, const std::string& what) {
  truncate_prompt(request, context);
  const int64_t prompt = prompt_positions(request);
  if (prompt == modules_end(request)) {
    throw Error(ErrorCode::kInvalidRequest, "Invalid '" + request.prompt_param + "': it has no tokens.",
                request.prompt_param, "invalid_value");
  }
  std::optional<int>& most = request.sampling.max_tokens;
  if (request.max_tokens_is_default && most) {
    most = static_cast<int>(std::clamp<int64_t>(context - prompt, 1, std::max(*most, 1)));
  }
  const int64_t completion = request.context_shift.value_or(false) ? 1 : most.value_or(1);
  if (prompt + completion <= context) return;
  std::string message = "This model's maximum context length is " + std::to_string(context) + " tokens. However, ";
  if (prompt >= context) {
    message += "your " + what + " resulted in " + std::to_string(prompt) + " tokens. Please reduce the length of the " +
               what + ".";
  } else {
    message += "you requested " + std::to_string(prompt + completion) + " tokens (" + std::to_string(prompt) +
               " in the " + what + ", " + std::to_string(completion) +
               " in the completion). Please reduce the length of the " + what + " or completion.";
  }
  throw Error(ErrorCode::kInvalidRequest, message, prompt >= context ? request.prompt_param : request.max_tokens_param,
              "context_length_exceeded");
}

}  // namespace sluice
