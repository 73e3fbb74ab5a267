// Gated units whose products a matmul writes itself.
#pragma once

#include <string_view>

#include "ops/ops.h"

namespace sluice::ops {

// The sizes of gated_experts(): `units` of each of `places` rows with k inputs, and the outputs of the next matmul.
struct GatedExperts {
  int64_t experts = 0, places = 0, units = 0, k = 0, next_n = 0;
};

// A kernel that takes the place of a matmul and of glu behind it. Backends register what they have.
struct GatedMatmul {
  std::string_view name;
  DType type = nullptr;  // of the weights
  // It belongs to the op tables that have this matmul for them.
  void (*matmul)(Queue&, const MatmulArgs&) = nullptr;
  // See gated_matmul(), gated_experts() and takes_gated_experts().
  bool (*run)(Queue& queue, const MatmulArgs& args, Activation activation) = nullptr;
  bool (*takes_experts)(const Queue& queue, const GatedExperts& sizes, Activation activation) = nullptr;
  bool (*run_experts)(Queue& queue, const ExpertMatmulArgs& args, Activation activation, int64_t next_n) = nullptr;
};

// out = activation(gate) * up, where x W^T has the columns of the gate, then those of up. args.out is [rows, n / 2], in
// the types of glu's out. Returns false, having done nothing, if there is no kernel for these arguments or it gains
// nothing; the caller then calls matmul() and glu().
bool gated_matmul(Ctx&, const MatmulArgs& args, Activation activation);
// The same for the matrices of experts. args.out is [places, n / 2] in the type of the weights. An expert_matmul() with
// weights of this type and `next_n` outputs of an expert then takes these rows as x. args.x may have the type of the
// weights where takes_gated_experts().
bool gated_experts(Ctx&, const ExpertMatmulArgs& args, Activation activation, int64_t next_n);
// Whether gated_experts() computes this. It and expert_matmul() then also take `rows` of an x in the type of the
// weights. So a norm can write that type, and the experts' inputs are gathered from half as many bytes.
bool takes_gated_experts(const Ctx&, DType weights, const GatedExperts& sizes, Activation activation);

}  // namespace sluice::ops
