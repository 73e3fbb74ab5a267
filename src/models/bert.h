// What BERT and its relatives share.
#pragma once

#include <string>

#include "nn/decoder_config.h"
#include "nn/encoder.h"

namespace sluice {

// BERT's graph, sizes, names and configuration keys; its body is below `prefix` or at the top of the checkpoint.
EncoderSpec bert_like(const Config& config, const LoadContext& context, std::string family, const std::string& prefix);

// RoBERTa's: positions begin behind those that stood for padding, one more than pad_token_id.
EncoderSpec roberta_like(const Config& config, const LoadContext& context, std::string family,
                         const std::string& prefix);

// The head of RoBERTa and of those that took it over: a dense layer and the labels, names from the top.
std::vector<DenseSpec> roberta_head(int hidden, ops::Activation activation);

// Wo, Wqkv: one matrix of queries, keys and values, in this order.
void use_fused_qkv(EncoderSpec& spec, std::string qkv, std::string out, bool bias);

}  // namespace sluice
