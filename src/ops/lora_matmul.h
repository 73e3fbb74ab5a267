// Matmuls whose results adapters change.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace sluice::ops {

// A kernel that takes the place of lora_shrink, a matmul and lora_expand. Backends register what they have.
struct LoraMatmul {
  std::string_view name;
  DType type = nullptr;  // of the weights
  // It belongs to the op tables that have this shrink.
  SlotFunction<& OpTable::lora_shrink>* shrink = nullptr;
  // Returns false, having done nothing, if it does not support the arguments or gains nothing.
  bool (*run)(Queue& queue, const MatmulArgs& args, const LoraShrinkArgs& change) = nullptr;
};

// out = or += x W^T, and then out += B times the inner values that `change` describes. Both arguments have the same x.
void matmul(Ctx&, const MatmulArgs& args, const LoraShrinkArgs& change);

}  // namespace sluice::ops
