// Reads --enable-eplb, --eplb-config and --init-expert-location.
#pragma once

#include <memory>

#include "nn/moe/balancer.h"
#include "sluice/options.h"

namespace sluice {

// The balancer of a model's experts; null without --enable-eplb. Throws Error(kInvalidRequest | kUnsupportedModel) for
// values that are not understood, for options that need others, and for those that exclude each other.
std::unique_ptr<ExpertBalancer> make_balancer(const EngineOptions& options);

}  // namespace sluice
