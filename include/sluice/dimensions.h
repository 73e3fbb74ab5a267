// Whether vectors of a model may be cut to fewer dimensions (Matryoshka: Kusupati et al. 2022, arXiv:2205.13147).
#pragma once

#include <algorithm>
#include <string>

#include "sluice/engine.h"

namespace sluice {

// Throws Error(kInvalidRequest), which names the request's field, if the model's vectors cannot be cut to that many
// dimensions. 0 means all of them.
inline void check_dimensions(const ModelInfo& model, int dimensions, const std::string& field = "dimensions") {
  const auto refuse = [&](const std::string& message) {
    throw Error(ErrorCode::kInvalidRequest, "Invalid '" + field + "': " + message, field, "invalid_value");
  };
  if (dimensions == 0) return;
  const std::string all = std::to_string(model.vector_size);
  if (!model.embeds() || dimensions < 0 || dimensions > model.vector_size) {
    refuse("vectors of this model have " + all + " dimensions, but got " + std::to_string(dimensions) + ".");
  }
  if (dimensions == model.vector_size) return;
  if (!model.matryoshka) {
    refuse("this model does not declare that its vectors may be cut (Matryoshka). Expected " + all +
           " or no value. If it was trained for fewer, start the server with --matryoshka.");
  }
  const auto& allowed = model.matryoshka_dimensions;
  if (allowed.empty() || std::find(allowed.begin(), allowed.end(), dimensions) != allowed.end()) return;
  std::string list;
  for (const int size : allowed) list += (list.empty() ? "" : ", ") + std::to_string(size);
  refuse("this model's vectors may be cut to " + list + " dimensions, but got " + std::to_string(dimensions) + ".");
}

}  // namespace sluice
