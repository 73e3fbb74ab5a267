// Matmuls of many rows with formats whose codes select levels.
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_TILES(quant::IQ4_NL);
SLUICE_INSTANTIATE_TILES(quant::IQ4_XS);
SLUICE_INSTANTIATE_TILES(quant::MXFP4);
SLUICE_INSTANTIATE_TILES(quant::ScaledNVFP4);
SLUICE_INSTANTIATE_TILES(quant::NF4);

}  // namespace sluice::cuda
