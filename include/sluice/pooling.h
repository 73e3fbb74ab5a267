// Requests of models that give a vector or scores of a text instead of continuing it. Plain values; all validation
// happens in Engine::embed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sluice/request.h"

namespace sluice {

// What a model is loaded for.
enum class Task {
  kGenerate,
  kEmbed,  // a vector of a text
  kScore,  // a score for each label of a text or a pair of texts: classifiers, rerankers
};
constexpr const char* to_string(Task task) {
  return task == Task::kGenerate ? "generate" : task == Task::kEmbed ? "embed" : "score";
}

// A text, or a pair of texts, as the model reads it.
struct PooledText {
  std::vector<TokenId> tokens{};
  std::vector<int32_t> types{};  // token types of a pair, one per token; empty: all are of the first type
};

struct PoolingRequest {
  std::string id{};                 // for logs; need not be unique
  std::vector<PooledText> texts{};  // at least one; each has at least one token
  std::string param = "input";      // the request's field that errors about the texts name
  int dimensions = 0;               // kEmbed: how many of the first ones are wanted; 0: all (arXiv:2205.13147)
  std::optional<bool> normalize{};  // kEmbed: to length 1; none: as the model says
  std::optional<bool> activate{};   // kScore: false gives the logits; none: as the model says
  std::optional<std::chrono::steady_clock::time_point>
      deadline{};  // past it the request ends with FinishReason::kAbort
};

// The whole answer: it comes once.
struct PoolingResult {
  std::vector<std::vector<float>> vectors{};  // one per text, in order: an embedding, or a score per label
  int prompt_tokens = 0;                      // of all texts
  FinishReason reason = FinishReason::kStop;  // kStop: done; kAbort, kError: there are no vectors
  std::string message{};                      // for kError
};

// Gets the result on a thread of the engine; must not block and must not throw.
using PoolingSink = std::function<void(PoolingResult)>;

}  // namespace sluice
