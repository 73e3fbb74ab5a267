// Rows of the demo model's embedding table, to be given in place of ids.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/collect.h"
#include "formats/checkpoint.h"
#include "tensor/dtype.h"

namespace sluice::testing {

inline constexpr int kDemoWidth = 256;

inline std::vector<float> table_rows(std::span<const TokenId> ids) {
  static const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(demo_model());
  const TensorEntry& table = *checkpoint->find("model.embed_tokens.weight");
  std::vector<float> values(ids.size() * kDemoWidth);
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::byte* row = table.data + static_cast<size_t>(ids[i]) * kDemoWidth * table.dtype->block_bytes;
    to_float(table.dtype, row, values.data() + i * kDemoWidth, kDemoWidth);
  }
  return values;
}

// Puts vectors in the place of a request's prompt.
inline void give_vectors(Request& request, std::vector<float> values) {
  request.prompt_vectors = std::make_shared<const PromptVectors>(kDemoWidth, std::move(values));
  request.prompt.assign(static_cast<size_t>(request.prompt_vectors->rows()), 0);
}

}  // namespace sluice::testing
