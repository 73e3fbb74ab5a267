// Products of many rows with what quantized checkpoints hold.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_TILES(quant::Int4G32);
SLUICE_INSTANTIATE_TILES(quant::Int4G64);
SLUICE_INSTANTIATE_TILES(quant::Int4G128);
SLUICE_INSTANTIATE_TILES(quant::Int8G128);
SLUICE_INSTANTIATE_TILES(quant::Fp8);

}  // namespace sluice::cuda
