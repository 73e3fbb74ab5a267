// Matmuls of many rows with weights of 16 bits.
#include "kernels/cuda/matmul/tiles.cuh"

namespace sluice::cuda {

bool matmul_plain_by_tiles(const Launch& l, const MatmulProblem& p) {
  const int64_t panel_bytes = kPanelOutputs * padded_k(p.k) * p.type->block_bytes;
  if (p.type == &kBFloat16) return matmul_by_tiles<tiles::PlainWeights<__nv_bfloat16>>(l, p, panel_bytes);
  return p.type == &kFloat16 && matmul_by_tiles<tiles::PlainWeights<__half>>(l, p, panel_bytes);
}

}  // namespace sluice::cuda
