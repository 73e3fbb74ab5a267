// Checkpoints whose matrices were quantized by other tools: what config.json's "quantization_config" says, and the
// tensors that stand for each matrix, brought into the blocks of quant/groups.h. A matrix becomes one entry
// NAME.weight that is computed when it is read (TensorEntry::compute).
//
// Read are, by "quant_method":
//   gptq                 qweight, qzeros, scales, g_idx; 4 and 8 bits, with and without act-order
//   awq                  qweight, qzeros, scales in the order of GEMM; 4 bits
//   fp8                  8-bit floats with a scale per tensor, per channel, or per block (weight_scale_inv)
//   compressed-tensors   pack-quantized (4 and 8 bits), int-quantized (8 bits), float-quantized
// Scales of activations and caches are dropped: who quantizes activations measures them, row by row.
#pragma once

#include <map>
#include <string>

#include "formats/checkpoint.h"

namespace sluice {

using TensorMap = std::map<std::string, TensorEntry, std::less<>>;

// Replaces the quantized matrices among `tensors` if the configuration says that there are any. A method that is read
// by a model family itself (mxfp4) is left to it. Throws Error(kUnsupportedModel) that names file and key, or the
// tensor, for what is not understood. True if 8-bit matrices are meant for inputs of 8-bit floats.
bool read_quantized(const Config& config, TensorMap& tensors);

}  // namespace sluice
