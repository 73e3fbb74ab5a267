// What the router reads of a request's body: the text that replicas cache, and the session. The body is scanned, not
// parsed: a replica reads it anyway and reports what is wrong with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/prefix_table.h"

namespace sluice::route {

struct Prompt {
  // One hash per block of the text; the first one covers the model, too. A last block that is not full has no hash.
  std::vector<ChainHash> chain;
  std::string session;  // JSON text of session_id, prompt_cache_key or user, the first that is there; may be empty
  // Whether one replica has what the request needs, or keeps it: the answer that the body names (previous_response_id),
  // this answer, or the cached tokens of a session_id.
  bool sticky = false;
};

inline constexpr size_t kBlockBytes = 256;
inline constexpr size_t kMaxPromptBytes = 128 << 10;  // what follows is not hashed

// Reads a JSON object. The text is the fields that come first in what a model sees (tools, system, instructions), then
// messages, prompt, input or inputs, all as the JSON that the client wrote. What is no JSON object has no text.
Prompt read_prompt(std::string_view body);

}  // namespace sluice::route
