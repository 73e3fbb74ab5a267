// Digests of rows, by which equal vectors share blocks of the prefix cache.
#include "sluice/prompt_vectors.h"

#include <utility>

#include "base/sha256.h"
#include "sluice/error.h"

namespace sluice {

PromptVectors::PromptVectors(int width, std::vector<float> values) : width_(width), values_(std::move(values)) {
  if (width < 1 || values_.empty() || values_.size() % static_cast<size_t>(width) != 0) {
    throw Error(ErrorCode::kInvalidRequest, "the vectors of a prompt must be whole rows, and at least one");
  }
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(float);
  std::string_view rest(reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(float));
  digests_.reserve(static_cast<size_t>(rows()) * kDigest);
  for (; !rest.empty(); rest.remove_prefix(row_bytes)) {
    const Sha256 digest = sha256(rest.substr(0, row_bytes));
    static_assert(sizeof digest == kDigest);
    digests_.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
}

}  // namespace sluice
