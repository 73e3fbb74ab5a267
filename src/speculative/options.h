// How drafts are made: what --speculative-config says, with vLLM's keys.
#pragma once

#include <optional>
#include <string>

namespace sluice {

struct SpeculativeOptions {
  int tokens = 0;  // drafted for a step, at most
  // A draft follows where the last shortest .. longest tokens of the text were seen before; the longest match counts.
  int shortest = 0, longest = 0;
};

// Reads a JSON object with the keys method ("ngram"), num_speculative_tokens, prompt_lookup_min and prompt_lookup_max.
// Empty text: no speculation. Throws Error(kInvalidRequest), which names the key.
std::optional<SpeculativeOptions> parse_speculative_config(const std::string& text);

}  // namespace sluice
