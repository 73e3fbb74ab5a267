// Code shared by Granite's dense and mixture-of-experts models.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

DecoderSpec granite_like(const Config& config, std::string family, const LlamaDefaults& defaults = {});
// Gives all layers experts, below "block_sparse_moe".
void read_granite_experts(const Config& config, DecoderSpec& spec);
// Adds "shared_mlp" of width `inner` for all rows beside the experts.
void add_granite_shared_mlp(DecoderSpec& spec, int inner);

}  // namespace sluice
