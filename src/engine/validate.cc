// One function per kind of range.
#include "engine/validate.h"

#include <fmt/core.h>

#include <cmath>

#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(std::string param, const char* reason, const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message, std::move(param), reason);
}

void in_range(const char* name, double value, double low, double high) {
  if (std::isnan(value) || value < low) {
    refuse(name, "decimal_below_min_value",
           fmt::format("Invalid '{}': decimal below minimum value. Expected a value >= {}, but got {} instead.", name,
                       low, value));
  }
  if (value > high) {
    refuse(name, "decimal_above_max_value",
           fmt::format("Invalid '{}': decimal above maximum value. Expected a value <= {}, but got {} instead.", name,
                       high, value));
  }
}

void at_least(const char* name, int64_t value, int64_t low) {
  if (value >= low) return;
  refuse(name, "integer_below_min_value",
         fmt::format("Invalid '{}': integer below minimum value. Expected a value >= {}, but got {} instead.", name,
                     low, value));
}

void at_most(const char* name, int64_t value, int64_t high) {
  if (value <= high) return;
  refuse(name, "integer_above_max_value",
         fmt::format("Invalid '{}': integer above maximum value. Expected a value <= {}, but got {} instead.", name,
                     high, value));
}

void known_token(const std::string& path, TokenId id, int vocab) {
  if (id >= 0 && id < vocab) return;
  refuse(path, "invalid_value",
         fmt::format("Invalid '{}': token id {} is not in the vocabulary of {} tokens.", path, id, vocab));
}

void check_stops(const SharedList<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    refuse(
        "stop", "array_above_max_length",
        fmt::format("Invalid 'stop': array too long. Expected an array with maximum length {}, but got an array with "
                    "length {} instead.",
                    kMaxStopStrings, stops.size()));
  }
  size_t bytes = 0;
  for (const std::string& stop : stops) bytes += stop.size();
  if (bytes <= kMaxStopBytes) return;
  refuse("stop", "array_above_max_size",
         fmt::format("Invalid 'stop': too long. Expected at most {} bytes of stop strings, but got {} instead.",
                     kMaxStopBytes, bytes));
}

void check_allowed(const SharedList<TokenId>& allowed, int vocab) {
  if (allowed.size() > static_cast<size_t>(vocab)) {
    refuse("allowed_token_ids", "array_above_max_length",
           fmt::format("Invalid 'allowed_token_ids': array too long. Expected at most the {} tokens of the vocabulary, "
                       "but got {} instead.",
                       vocab, allowed.size()));
  }
  for (const TokenId id : allowed) known_token("allowed_token_ids", id, vocab);
}

}  // namespace

void validate(const Request& request, int vocab) {
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      known_token(fmt::format("{}[{}]", request.prompt_param, i), request.prompt[i], vocab);
    }
  }
  const SamplingParams& s = request.sampling;
  in_range("temperature", s.temperature, 0, 2);
  in_range("top_p", s.top_p, 0, 1);
  if (s.top_p == 0)
    refuse("top_p", "decimal_below_min_value", "Invalid 'top_p': expected a value above 0, but got 0 instead.");
  in_range("min_p", s.min_p, 0, 1);
  in_range("repetition_penalty", s.repetition_penalty, 1e-6, 1e6);
  in_range("presence_penalty", s.presence_penalty, -2, 2);
  in_range("frequency_penalty", s.frequency_penalty, -2, 2);
  at_least("top_k", s.top_k, -1);
  at_least("min_tokens", s.min_tokens, 0);
  if (s.max_tokens) {
    at_least("max_tokens", *s.max_tokens, 1);
    at_most("min_tokens", s.min_tokens, *s.max_tokens);
  }
  if (s.logprobs) at_least("logprobs", *s.logprobs, 0);
  if (s.logprobs) at_most("logprobs", *s.logprobs, vocab);
  if (s.prompt_logprobs) at_least("prompt_logprobs", *s.prompt_logprobs, 0);
  if (s.prompt_logprobs) at_most("prompt_logprobs", *s.prompt_logprobs, vocab);
  for (const auto& [id, bias] : s.logit_bias) {
    known_token("logit_bias", id, vocab);
    in_range("logit_bias", bias, -100, 100);
  }
  for (const TokenId id : s.stop_token_ids) known_token("stop_token_ids", id, vocab);
  check_allowed(s.allowed_token_ids, vocab);
  check_stops(s.stop);
}

}  // namespace sluice
