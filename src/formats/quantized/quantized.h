// Reads checkpoints whose matrices were quantized by other tools. config.json's "quantization_config" names the method.
// The tensors that represent a matrix are converted to the blocks of quant/groups.h. A matrix becomes one entry
// NAME.weight that is computed when it is read (TensorEntry::compute).
//
// Supported values of "quant_method":
//   gptq                 qweight, qzeros, scales, g_idx; 2, 3, 4 and 8 bits, with and without act-order
//   awq                  qweight, qzeros, scales in the order of GEMM; 4 bits
//   auto-round           either the gptq or the awq format
//   bitsandbytes         4 bits (nf4, fp4; scales that are themselves quantized, too), 8 bits (SCB)
//   compressed-tensors   pack-quantized (4 and 8 bits), int-quantized (8 bits), float-quantized, nvfp4- and
//                        mxfp4-pack-quantized
//   fp8, fbgemm_fp8      8-bit floats with a scale per tensor, per channel, or per block (weight_scale_inv)
//   modelopt, quark      8-bit floats, NVFP4, MXFP4
//   mxfp4                experts of gpt-oss
// Scales of activations and caches are dropped: quantized activations are scaled row by row at run time.
#pragma once

#include "formats/checkpoint.h"

namespace sluice {

// Replaces the quantized matrices in `tensors` if the configuration says that there are any. Throws
// Error(kUnsupportedModel) that names file and key, or the tensor, when something is not supported. Returns whether
// inputs of 8-bit matrices should be quantized to 8-bit floats.
bool read_quantized(const Config& config, TensorMap& tensors);

}  // namespace sluice
