// Where adapters change the experts of a layer, and what adapters call these projections.
#pragma once

#include "nn/moe/expert_weights.h"

namespace sluice {

// Gives the experts' projections sites, if the model may have adapters of experts.
void adapt_experts(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, ExpertMatrices& adapted);

}  // namespace sluice
