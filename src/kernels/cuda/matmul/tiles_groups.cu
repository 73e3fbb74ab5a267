// Matmuls of many rows with the integer groups and 8-bit floats of quantized checkpoints.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_TILES(quant::Int4G32);
SLUICE_INSTANTIATE_TILES(quant::Int4G64);
SLUICE_INSTANTIATE_TILES(quant::Int4G128);
SLUICE_INSTANTIATE_TILES(quant::Int8G128);
SLUICE_INSTANTIATE_TILES(quant::Fp8);

}  // namespace sluice::cuda
