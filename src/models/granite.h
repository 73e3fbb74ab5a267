// What Granite's dense and mixture-of-experts models share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec granite_like(const Config& config, std::string family, const LlamaDefaults& defaults = {});
// Experts in all layers, below "block_sparse_moe".
void read_granite_experts(const Config& config, DecoderSpec& spec);
// Beside them, "shared_mlp" of that width for all rows.
void add_granite_shared_mlp(DecoderSpec& spec, int inner);

}  // namespace sluice
