// The backend that tests of the host's memory compute with, on machines with a GPU as well.
#pragma once

#include "base/registry.h"
#include "ops/ops.h"

namespace sluice::testing {

// The best one that works on the host's memory.
inline const ops::Backend& best_host_backend() {
  const ops::Backend* best = nullptr;
  for (const ops::Backend* backend : Registry<ops::Backend>::all()) {
    if (!backend->usable() || !backend->memory().on_host()) continue;
    if (best == nullptr || backend->rank > best->rank) best = backend;
  }
  return *best;
}

}  // namespace sluice::testing
