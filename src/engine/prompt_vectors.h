// Prompts of vectors: reads them, and checks requests that have one.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "sluice/engine.h"
#include "sluice/prompt_vectors.h"

namespace sluice {

// Engine::read_prompt_vectors.
std::shared_ptr<const PromptVectors> read_prompt_vectors(std::string_view file, const ModelInfo& model,
                                                         const std::string& param);

// Checks a request's vectors, if it has any, and the fields that need tokens or text of the prompt. Throws
// Error(kInvalidRequest) that names the field.
void check_prompt_vectors(const Request& request, const ModelInfo& model);

// Limits the memory of the vectors that an engine's requests hold. Thread-safe.
class VectorMemory {
 public:
  static constexpr size_t kMost = size_t{2} << 30;

  explicit VectorMemory(size_t most = kMost) : most_(most) {}

  // The same vectors, which count until the last copy of the pointer is gone. Throws Error(kOverloaded) if they would
  // be too many together with others.
  std::shared_ptr<const PromptVectors> hold(std::shared_ptr<const PromptVectors> vectors);
  size_t held() const { return held_->load(); }

 private:
  const size_t most_;
  const std::shared_ptr<std::atomic<size_t>> held_ = std::make_shared<std::atomic<size_t>>(0);  // bytes
};

}  // namespace sluice
