// What engines that give vectors of texts share: the checks of a request, and how a vector is returned.
#pragma once

#include <span>
#include <vector>

#include "sluice/engine.h"

namespace sluice {

// Checks all ranges, for requests from any source. Throws Error(kInvalidRequest) that names the field.
void check_pooling(const PoolingRequest& request, const ModelInfo& model);

// The first `dimensions` values (0: all), divided by their length if asked to.
std::vector<float> finish_embedding(std::span<const float> x, int dimensions, bool normalize);

}  // namespace sluice
