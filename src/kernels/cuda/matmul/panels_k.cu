// Matmuls of few rows with the K formats of GGUF.
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_PANELS(quant::Q2_K);
SLUICE_INSTANTIATE_PANELS(quant::Q3_K);
SLUICE_INSTANTIATE_PANELS(quant::Q4_K);
SLUICE_INSTANTIATE_PANELS(quant::Q5_K);
SLUICE_INSTANTIATE_PANELS(quant::Q6_K);
SLUICE_INSTANTIATE_PANELS(quant::TQ2_0);

}  // namespace sluice::cuda
