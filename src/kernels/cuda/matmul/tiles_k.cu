// Matmuls of many rows with the K formats of GGUF.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_TILES(quant::Q2_K);
SLUICE_INSTANTIATE_TILES(quant::Q3_K);
SLUICE_INSTANTIATE_TILES(quant::Q4_K);
SLUICE_INSTANTIATE_TILES(quant::Q5_K);
SLUICE_INSTANTIATE_TILES(quant::Q6_K);
SLUICE_INSTANTIATE_TILES(quant::TQ2_0);

}  // namespace sluice::cuda
