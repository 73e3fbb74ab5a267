// Matrices of experts or heads, packed as layers stack them.
#pragma once

#include "ops/testing.h"

namespace sluice::ops {

struct Packed : Weight {
  Buffer storage;
};

// The matrices are [n, k].
inline Packed stacked(Ctx& ctx, DType stored, const std::vector<Owned>& matrices) {
  const MatmulKernels& kernels = ctx.ops.matmul.at(stored);
  const int64_t n = matrices[0]->rows(), count = static_cast<int64_t>(matrices.size());
  Packed weight;
  weight.dtype = stored;
  weight.n = count * stacked_outputs(n);
  weight.k = matrices[0]->shape[1];
  weight.storage = Buffer(kernels.packed_bytes(weight.n, weight.k), test_memory());
  weight.data = weight.storage.data();
  for (int64_t i = 0; i < count; ++i) kernels.pack(ctx.queue, weight, i * stacked_outputs(n), matrices[i]);
  return weight;
}

}  // namespace sluice::ops
