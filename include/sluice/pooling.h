// Requests to models that return a vector or scores for a text instead of continuing it. Plain values; Engine::embed
// validates them.
#pragma once

#include <chrono>
#include <cstddef>
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

// What becomes of a text with too many tokens.
struct Truncation {
  int tokens = 0;         // the text is cut to so many; 0: it is an error if it has more than max_model_len
  bool keep_end = false;  // the text is cut at its beginning, not at its end; pairs are always cut at their ends
};

// Keeps `count` tokens of at least as many: the first ones, or the last ones.
inline void keep_tokens(std::vector<TokenId>& tokens, size_t count, bool end) {
  if (end) {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(count));
  } else {
    tokens.resize(count);
  }
}

struct PoolingRequest {
  std::string id{};                 // for logs; need not be unique
  std::vector<PooledText> texts{};  // at least one; each has at least one token
  std::string param = "input";      // name of the request's field in errors about the texts
  int dimensions = 0;               // kEmbed: leading dimensions to return; 0: all (arXiv:2205.13147)
  std::optional<bool> normalize{};  // kEmbed: scale vectors to length 1; none: as the model says
  std::optional<bool> activate{};   // kScore: false returns logits; none: as the model says
  std::string cache_salt{};         // prefixes are shared only between equal salts, for models that also generate text
  std::string tenant{};             // who asks, see Request::tenant
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
