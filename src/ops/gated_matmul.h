// Gated units whose products a matmul writes itself.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace sluice::ops {

// A kernel that takes the place of a matmul and of glu behind it. Backends register what they have.
struct GatedMatmul {
  std::string_view name;
  DType type = nullptr;  // of the weights
  // It belongs to the op tables that have this matmul for them.
  void (*matmul)(Queue&, const MatmulArgs&) = nullptr;
  // See gated_matmul() and gated_experts().
  bool (*run)(Queue& queue, const MatmulArgs& args, Activation activation) = nullptr;
  bool (*run_experts)(Queue& queue, const ExpertMatmulArgs& args, Activation activation, int64_t next_n) = nullptr;
};

// out = activation(gate) * up, where x W^T has the columns of the gate, then those of up. args.out is [rows, n / 2], in
// the types of glu's out. Returns false, having done nothing, if there is no kernel for these arguments or it gains
// nothing; the caller then calls matmul() and glu().
bool gated_matmul(Ctx&, const MatmulArgs& args, Activation activation);
// The same for the matrices of experts. args.out is [places, n / 2] in the type of the weights. An expert_matmul() with
// weights of this type and `next_n` outputs of an expert then takes these rows as x.
bool gated_experts(Ctx&, const ExpertMatmulArgs& args, Activation activation, int64_t next_n);

}  // namespace sluice::ops
