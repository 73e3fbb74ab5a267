// Matmuls of few rows with the first formats of GGUF (Q4_0 to Q8_0).
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

template struct CompiledPanels<quant::LegacyCodecs>;

}  // namespace sluice::cuda
