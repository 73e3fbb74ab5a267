// Matmuls of many rows with formats whose codes select levels.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

template struct CompiledTiles<quant::LevelCodecs>;

}  // namespace sluice::cuda
