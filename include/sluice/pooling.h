// Requests to models that return a vector or scores for a text instead of continuing it. Plain values; Engine::embed
// validates them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/request.h"
#include "sluice/task.h"

namespace sluice {

// The tokens of a text or of a pair of texts, with what the model wants around them.
struct PooledText {
  std::vector<TokenId> tokens{};
  std::vector<int32_t> types{};  // token type (0 or 1) of each token; empty: all 0
};

struct PoolingRequest {
  std::string id{};                 // for logs; need not be unique
  std::vector<PooledText> texts{};  // at least one; each has at least one token
  std::string param = "input";      // name of the request's field in errors about the texts
  int dimensions = 0;               // kEmbed: leading dimensions to return; 0: all (arXiv:2205.13147)
  std::optional<bool> normalize{};  // kEmbed: scale vectors to length 1; none: as the model says
  std::optional<bool> activate{};   // kScore: false returns logits; none: as the model says
  // Past it the request ends with FinishReason::kAbort.
  std::optional<std::chrono::steady_clock::time_point> deadline{};
};

// The answer to all texts of a request.
struct PoolingResult {
  std::vector<std::vector<float>> vectors{};  // one per text, in order: an embedding, or a score per label
  int prompt_tokens = 0;                      // tokens of all texts together
  FinishReason reason = FinishReason::kStop;  // kStop: done; kAbort, kError: there are no vectors
  std::string message{};                      // for kError
};

// Receives the result once, on a thread of the engine. Must not block and must not throw.
using PoolingSink = std::function<void(PoolingResult)>;

}  // namespace sluice
