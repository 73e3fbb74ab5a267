// Vectors that a request gives in place of its prompt's token ids: what the model's embedding table has for ids, or
// anything else of that width (vLLM's prompt_embeds, docs/prompt-vectors.md).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class PromptVectors {
 public:
  static constexpr size_t kDigest = 32;  // bytes

  // `values` are [rows, width]. Throws Error(kInvalidRequest) unless they are whole rows, at least one.
  PromptVectors(int width, std::vector<float> values);

  int width() const { return width_; }
  int rows() const { return static_cast<int>(values_.size() / static_cast<size_t>(width_)); }
  std::span<const float> values() const { return values_; }
  // The values of rows [first, first + count).
  std::span<const float> values(int first, int count) const {
    const auto width = static_cast<size_t>(width_);
    return values().subspan(static_cast<size_t>(first) * width, static_cast<size_t>(count) * width);
  }
  // A digest of kDigest bytes for each row. Equal digests mean equal bits.
  std::string_view digests() const { return digests_; }

 private:
  int width_;
  std::vector<float> values_;
  std::string digests_;
};

}  // namespace sluice
