// The decoder that most families are: token embedding, pre-norm blocks of causal attention and a gated MLP, a final norm
// and a head (Llama: Touvron et al. 2023, arXiv:2302.13971). A family fills in DecoderSpec; a field enters the spec when
// two families need it, until then a family writes its own layer in its own file.
#pragma once

#include <memory>
#include <vector>

#include "nn/model.h"
#include "nn/rope.h"

namespace sluice {

struct DecoderSpec {
  std::string family;
  int vocab = 0;
  int hidden = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int inner = 0;                 // width of the MLP
  int max_positions = 0;
  float norm_eps = 1e-6f;
  ops::Activation activation = ops::Activation::kSilu;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool tied_head = false;        // the head is the embedding table
  RopeSpec rope;
  std::vector<int> windows;      // per layer: sliding window in tokens, 0 for all
};

// Keys that Llama and its relatives share: sizes, norm, activation, rope, tied head. Windows are zero.
DecoderSpec llama_like(const Config& config, std::string family);

std::unique_ptr<Model> decoder_lm(DecoderSpec spec, LoadContext& context, int max_len);

}  // namespace sluice
