// Code shared by DeepSeek's models and the families derived from them.
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
  bool rope_is_part = false;  // partial_rotary_factor refers to nope_dim + rope_dim
  RopeDefaults rope{};
};
// Reads sizes, norm, activation and head; gives all layers latent attention (nn/attention/latent_attention.h).
DecoderSpec latent_llama_like(const Config& config, std::string family, const LatentDefaults& defaults = {});
// Chooses the layers with experts: every moe_layer_freq-th, from first_k_dense_replace on.
void read_deepseek_layers(const Config& config, DecoderSpec& spec);

}  // namespace sluice
