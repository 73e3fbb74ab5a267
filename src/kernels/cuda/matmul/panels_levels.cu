// Matmuls of few rows with formats whose codes select levels.
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

template struct CompiledPanels<quant::LevelCodecs>;

}  // namespace sluice::cuda
