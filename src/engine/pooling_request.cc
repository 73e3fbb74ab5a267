// Checks the texts of a request and finishes its vectors.
#include "engine/pooling_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "sluice/dimensions.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(std::string param, const char* reason, const std::string& message) {
  throw Error(ErrorCode::kInvalidRequest, message, std::move(param), reason);
}

}  // namespace

void check_pooling(const PoolingRequest& request, const ModelInfo& model) {
  const std::string& param = request.param;
  if (request.texts.empty()) refuse(param, "empty_array", fmt::format("Invalid '{}': it has no texts.", param));
  for (size_t i = 0; i < request.texts.size(); ++i) {
    const PooledText& text = request.texts[i];
    const std::string path = request.texts.size() == 1 ? param : fmt::format("{}[{}]", param, i);
    if (text.tokens.empty()) refuse(path, "invalid_value", fmt::format("Invalid '{}': it has no tokens.", path));
    if (text.tokens.size() > static_cast<size_t>(model.max_model_len)) {
      refuse(path, "context_length_exceeded",
             fmt::format("This model's maximum context length is {} tokens. However, '{}' has {} tokens.",
                         model.max_model_len, path, text.tokens.size()));
    }
    for (const TokenId id : text.tokens) {
      if (id < 0 || id >= model.vocab_size) {
        refuse(path, "invalid_value",
               fmt::format("Invalid '{}': token id {} is not in the vocabulary of {} tokens.", path, id,
                           model.vocab_size));
      }
    }
    CHECK(text.types.empty() || text.types.size() == text.tokens.size());
  }
  check_dimensions(model, request.dimensions);
}

std::vector<float> finish_embedding(std::span<const float> x, int dimensions, bool normalize) {
  if (dimensions > 0) x = x.first(static_cast<size_t>(dimensions));
  std::vector<float> out(x.begin(), x.end());
  if (!normalize) return out;
  double squares = 0;
  for (const float value : out) squares += static_cast<double>(value) * value;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (float& value : out) value = static_cast<float>(value / length);
  return out;
}

}  // namespace sluice
