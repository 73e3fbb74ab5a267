// Matmuls of few rows with the integer groups and 8-bit floats of quantized checkpoints.
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

template struct CompiledPanels<quant::GroupCodecs>;

}  // namespace sluice::cuda
