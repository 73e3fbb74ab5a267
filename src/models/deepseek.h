// Code shared by DeepSeek's models and the families derived from them.
#pragma once

#include <span>
#include <utility>

#include "nn/attention/latent_attention.h"
#include "nn/decoder_config.h"

namespace sluice {

// Key names in a family's checkpoints, each with DeepSeek's name for the same setting.
using KeyAliases = std::span<const std::pair<const char*, const char*>>;
// Returns a copy with DeepSeek's names. A setting under both names must have the same value.
Config with_usual_names(const Config& config, KeyAliases aliases);
// Marks the keys as read whose setting was read from `copy`.
void note_reads(const Config& config, const Config& copy, KeyAliases aliases);

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
// Refuses rotations that are scaled.
void refuse_scaled_rope(const Config& config);
// Reads latent attention (nn/attention/latent_attention.h) and its rotation, which becomes the only one of `spec`.
LatentAttentionSpec read_latent_attention(const Config& config, DecoderSpec& spec, const LatentDefaults& defaults);
MakeTokenMixer latent_attention(const LatentAttentionSpec& spec);  // whose tensors are below self_attn
// Reads sizes, norm, activation and head; gives all layers latent attention, whose specification is `attention` if that
// is not null.
DecoderSpec latent_llama_like(const Config& config, std::string family, const LatentDefaults& defaults = {},
                              LatentAttentionSpec* attention = nullptr);
// Chooses the layers with experts: every moe_layer_freq-th, from first_k_dense_replace on.
void read_deepseek_layers(const Config& config, DecoderSpec& spec, int default_dense = 0);

}  // namespace sluice
