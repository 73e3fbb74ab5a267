// What DeepSeek's models and those made after them share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

struct LatentDefaults {
  double norm_eps = 1e-6;
  bool tied_head = false;
  int q_rank = 1536, kv_rank = 512;
  int nope_dim = 128, rope_dim = 64;
  int value_dim = 128;  // 0: hidden_size / num_attention_heads
  bool interleaved_rope = true;
  bool rope_is_part = false;  // partial_rotary_factor is of nope_dim and rope_dim together
  RopeDefaults rope{};
};
// Sizes, norm, activation, head, and latent attention in all layers (nn/attention/latent_attention.h).
DecoderSpec latent_llama_like(const Config& config, std::string family, const LatentDefaults& defaults = {});
// The layers with experts: moe_layer_freq, from first_k_dense_replace on.
void read_deepseek_layers(const Config& config, DecoderSpec& spec);

}  // namespace sluice
