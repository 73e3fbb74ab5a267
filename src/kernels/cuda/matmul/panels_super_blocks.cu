// Matmuls of few rows with the formats in super-blocks of 256 weights (K formats, TQ1_0, TQ2_0).
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

template struct CompiledPanels<quant::SuperBlockCodecs>;

}  // namespace sluice::cuda
