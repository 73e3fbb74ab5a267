// Code shared by BERT and its relatives.
#pragma once

#include <string>

#include "nn/decoder_config.h"
#include "nn/encoder.h"

namespace sluice {

// BERT's graph, sizes, names and configuration keys. Its body is below `prefix` or at the top of the checkpoint.
EncoderSpec bert_like(const Config& config, const LoadContext& context, std::string family, const std::string& prefix);

// RoBERTa: bert_like, but the first token has position pad_token_id + 1, after the positions reserved for padding.
EncoderSpec roberta_like(const Config& config, const LoadContext& context, std::string family,
                         const std::string& prefix);

// The classification head of RoBERTa and its relatives: a dense layer, then the labels. Names are from the top of the
// checkpoint.
std::vector<DenseSpec> roberta_head(int hidden, ops::Activation activation);

// Fuses queries, keys and values, in this order, into one matrix `qkv`; names the output projection `out`.
void use_fused_qkv(EncoderSpec& spec, std::string qkv, std::string out, bool bias);

}  // namespace sluice
