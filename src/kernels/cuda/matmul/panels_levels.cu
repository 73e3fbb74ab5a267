// Matmuls of few rows with formats whose codes select levels.
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_PANELS(quant::IQ4_NL);
SLUICE_INSTANTIATE_PANELS(quant::IQ4_XS);
SLUICE_INSTANTIATE_PANELS(quant::MXFP4);
SLUICE_INSTANTIATE_PANELS(quant::ScaledNVFP4);
SLUICE_INSTANTIATE_PANELS(quant::NF4);

}  // namespace sluice::cuda
