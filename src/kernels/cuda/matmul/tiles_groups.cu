// Matmuls of many rows with the integer groups and 8-bit floats of quantized checkpoints.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

template struct CompiledTiles<quant::GroupCodecs>;

}  // namespace sluice::cuda
