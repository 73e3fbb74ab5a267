// One function per kind of range.
#include "engine/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "chat/reasoning_syntax.h"
#include "chat/tool_syntax.h"
#include "sluice/error.h"
#include "sluice/sampling_parameters.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(std::string_view param, const char* reason, const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message, std::string(param), reason);
}

void in_range(std::string_view name, double value, double low, double high) {
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

void at_least(std::string_view name, int64_t value, int64_t low) {
  if (value >= low) return;
  refuse(name, "integer_below_min_value",
         fmt::format("Invalid '{}': integer below minimum value. Expected a value >= {}, but got {} instead.", name,
                     low, value));
}

void at_most(std::string_view name, int64_t value, int64_t high) {
  if (value <= high) return;
  refuse(name, "integer_above_max_value",
         fmt::format("Invalid '{}': integer above maximum value. Expected a value <= {}, but got {} instead.", name,
                     high, value));
}

void check(const SamplingParameter& row, const SamplingParams& params) {
  const double value = row.of(params);
  if (row.is_integer()) {
    at_least(row.name, static_cast<int64_t>(value), static_cast<int64_t>(row.min));
    at_most(row.name, static_cast<int64_t>(value), static_cast<int64_t>(row.max));
    return;
  }
  in_range(row.name, value, row.min, row.max);
  if (!row.above_min || value != row.min) return;
  refuse(row.name, "decimal_below_min_value",
         fmt::format("Invalid '{}': expected a value above {}, but got {} instead.", row.name, row.min, value));
}

void known_token(const std::string& path, TokenId id, int vocab) {
  if (id >= 0 && id < vocab) return;
  refuse(path, "invalid_value",
         fmt::format("Invalid '{}': token id {} is not in the vocabulary of {} tokens.", path, id, vocab));
}

void known_syntax(const char* name, const std::string& syntax, bool known) {
  if (known || syntax.empty()) return;
  refuse(name, "invalid_value", fmt::format("Invalid '{}': '{}' is not known.", name, syntax));
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

// A search has no samples, and knows the raw logits only.
void check_beams(const Request& request) {
  if (!request.beams) return;
  const BeamParams& beams = *request.beams;
  const SamplingParams& s = request.sampling;
  at_least("num_beams", beams.width, request.n);
  at_most("num_beams", beams.width, kMostBeams);
  in_range("length_penalty", beams.length_penalty, -10, 10);
  at_least("num_beam_groups", beams.groups, 1);
  in_range("diversity_penalty", beams.diversity_penalty, 0, 1000);
  if (beams.width % beams.groups != 0) {
    refuse("num_beam_groups", "invalid_value",
           fmt::format("Invalid 'num_beam_groups': {} beams cannot be divided into {} equal groups.", beams.width,
                       beams.groups));
  }
  if ((beams.groups > 1) != (beams.diversity_penalty > 0)) {
    refuse("diversity_penalty", "invalid_value",
           beams.groups > 1
               ? "Invalid 'diversity_penalty': groups of beams need a penalty above 0, or their texts are the same."
               : "Invalid 'diversity_penalty': it needs 'num_beam_groups' above 1.");
  }
  const auto excluded = [](std::string_view name) {
    refuse(name, "unsupported_parameter", fmt::format("Invalid '{}': it does not work with beam search.", name));
  };
  static const SamplingParams kNeutral;
  using Effect = SamplingParameter::Effect;
  for (const SamplingParameter& row : kSamplingParameters) {
    const bool changes =
        row.effect == Effect::kPenalty || row.effect == Effect::kHistory || row.effect == Effect::kChain;
    if (changes && row.of(s) != row.of(kNeutral)) excluded(row.name);
  }
  if (!s.logit_bias.empty()) excluded("logit_bias");
  if (!s.allowed_token_ids.empty()) excluded("allowed_token_ids");
  if (!s.bad_words.empty()) excluded("bad_words");
  if (!s.logit_processors.empty()) excluded("logit_processors");
  if (request.best_of > request.n) excluded("best_of");
  if (request.grammar) excluded(request.grammar->param);
  if (request.thinking_token_budget) excluded("thinking_token_budget");
  if (request.context_shift.value_or(false)) excluded("context_shift");
}

// Nothing is sampled: the candidates are the likeliest tokens. There is one best text.
void check_contrastive(const Request& request, int vocab) {
  const SamplingParams& s = request.sampling;
  if (!searches_contrastively(s)) return;
  const int most = std::min(kMostCandidates, vocab);
  if (s.top_k < 2 || s.top_k > most) {
    refuse("top_k", s.top_k < 2 ? "integer_below_min_value" : "integer_above_max_value",
           fmt::format("Invalid 'top_k': contrastive search ('penalty_alpha') needs 2 to {} candidates, but got {}.",
                       most, s.top_k));
  }
  const auto excluded = [](std::string_view name) {
    refuse(name, "unsupported_parameter", fmt::format("Invalid '{}': it does not work with contrastive search.", name));
  };
  static const SamplingParams kNeutral;
  for (const SamplingParameter& row : kSamplingParameters) {
    if (row.effect == SamplingParameter::Effect::kChain && row.of(s) != row.of(kNeutral)) excluded(row.name);
  }
  if (request.beams) excluded("num_beams");
  if (request.n > 1) excluded("n");
  if (request.best_of > 1) excluded("best_of");
  if (!request.modules.empty()) excluded("prompt_modules");
  if (request.context_shift.value_or(false)) excluded("context_shift");
}

}  // namespace

void validate(const Request& request, int vocab) {
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      known_token(fmt::format("{}[{}]", request.prompt_param, i), request.prompt[i], vocab);
    }
  }
  const SamplingParams& s = request.sampling;
  for (const SamplingParameter& row : kSamplingParameters) check(row, s);
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
    if (bias != -std::numeric_limits<float>::infinity()) in_range("logit_bias", bias, -100, 100);
  }
  if (request.thinking_token_budget) {
    at_least("thinking_token_budget", *request.thinking_token_budget, 0);
    if (request.reasoning_syntax.empty()) {
      refuse("thinking_token_budget", "unsupported_parameter",
             "Invalid 'thinking_token_budget': how this model marks its thoughts is not known.");
    }
  }
  check_beams(request);
  check_contrastive(request, vocab);
  if (request.context_keep) at_least("n_keep", *request.context_keep, -1);
  if (request.best_of != 0) at_least("best_of", request.best_of, request.n);
  known_syntax("tool_syntax", request.tool_syntax, tool_syntax(request.tool_syntax) != nullptr);
  known_syntax("reasoning_syntax", request.reasoning_syntax, reasoning_syntax(request.reasoning_syntax) != nullptr);
  for (const TokenId id : s.stop_token_ids) known_token("stop_token_ids", id, vocab);
  check_allowed(s.allowed_token_ids, vocab);
  check_stops(s.stop);
}

}  // namespace sluice
