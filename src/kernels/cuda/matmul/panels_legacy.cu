// Matmuls of few rows with the first formats of GGUF (Q4_0 to Q8_0).
#include "kernels/cuda/matmul/panels.cuh"

namespace sluice::cuda {

SLUICE_INSTANTIATE_PANELS(quant::Q4_0);
SLUICE_INSTANTIATE_PANELS(quant::Q4_1);
SLUICE_INSTANTIATE_PANELS(quant::Q5_0);
SLUICE_INSTANTIATE_PANELS(quant::Q5_1);
SLUICE_INSTANTIATE_PANELS(quant::Q8_0);

}  // namespace sluice::cuda
