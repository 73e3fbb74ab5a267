// Physical experts: the copies of experts that ranks have (nn/moe/placement.h).
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace sluice::ops {

// Replaces each entry by a physical expert of its expert. Where there are several, a hash of the router's logit selects
// one. The choice therefore depends on the row alone, and all ranks make the same one. Also counts the entries of each
// expert. The lists are in the device's memory.
struct PhysicalExpertsArgs {
  Tensor experts;                     // in and out: [rows, top_k] int32
  Tensor logits;                      // [rows, choices] fp32
  const int32_t* first = nullptr;     // [choices + 1]: expert e has physical[first[e]] .. physical[first[e + 1] - 1]
  const int32_t* physical = nullptr;  // [first[choices]]
  int64_t* counts = nullptr;          // [choices]; entries are added
};
void choose_physical(Ctx&, const PhysicalExpertsArgs& args);

// Which of several physical experts a logit with these bits selects. Mixes the bits (the finalizer of MurmurHash3).
constexpr uint32_t physical_of(uint32_t bits, uint32_t several) {
  bits = (bits ^ bits >> 16) * 0x85ebca6bU;
  bits = (bits ^ bits >> 13) * 0xc2b2ae35U;
  return (bits ^ bits >> 16) % several;
}

}  // namespace sluice::ops
