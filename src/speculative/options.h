// How drafts are made: what --speculative-config says, with vLLM's keys.
#pragma once

#include <optional>
#include <string>

namespace sluice {

struct SpeculativeOptions {
  std::string method{};  // a name of speculative/drafter.h
  int tokens = 0;        // drafted for a step, at most
  // ngram: a draft follows where the last shortest .. longest tokens of the text were seen before; the longest match
  // counts.
  int shortest = 0, longest = 0;
  // draft_model:
  std::string model{};  // folder, file or name of the draft model
  // draft_model, mtp:
  double least_probability = 0;  // a draft ends before the first token that the draft model gives less
  int least_tokens = 0;          // shorter drafts are not used
  std::optional<int> ranks{};    // of the draft model; a wrong number is refused
  // mtp:
  bool own_layers = false;  // layers draft that the model's checkpoint has behind its last one
};

// Reads a JSON object with the keys method, num_speculative_tokens, and those of the method (docs/speculative.md).
// Without a method, `model` makes it draft_model. Empty text: no speculation. Throws Error(kInvalidRequest), which
// names the key.
std::optional<SpeculativeOptions> parse_speculative_config(const std::string& text);

// Throws Error(kInvalidRequest) if all drafts are too short to be used.
void check_least_tokens(const SpeculativeOptions& options);

// Throws Error(kInvalidRequest) about --speculative-config.
[[noreturn]] void refuse_speculative_config(const std::string& message);

}  // namespace sluice
