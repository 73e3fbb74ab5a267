// Matmuls of many rows with the first formats of GGUF (Q4_0 to Q8_0).
#include "kernels/cuda/matmul/bytes.cuh"

namespace sluice::cuda {

template struct CompiledTiles<quant::LegacyCodecs>;

}  // namespace sluice::cuda
