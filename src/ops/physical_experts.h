// Chooses physical experts: the copies of experts that ranks have (nn/moe/placement.h). Not in the op table: only
// devices whose memory the host can access have it.
#pragma once

#include <span>

#include "ops/ops.h"

namespace sluice::ops {

// Replaces each entry by a physical expert, and counts the entries of each. Where an expert has several, a hash of the
// router's logit selects one. The choice therefore depends on the row alone, and all ranks make the same one.
struct PhysicalExpertsArgs {
  Tensor experts;                     // in and out: [rows, top_k] int32
  Tensor logits;                      // [rows, choices] fp32
  std::span<const int32_t> first;     // [choices + 1]: expert e has physical[first[e]] .. physical[first[e + 1] - 1]
  std::span<const int32_t> physical;  // [first[choices]]
  std::span<int64_t> counts;          // entries of each physical expert
};
void choose_physical(Ctx&, const PhysicalExpertsArgs& args);

}  // namespace sluice::ops
