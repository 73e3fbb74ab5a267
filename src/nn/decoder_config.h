// From config.json to a DecoderSpec: the keys that many families share, each with the family's own defaults where
// transformers' configuration classes differ. What is read here and cannot be is refused by name.
#pragma once

#include <functional>
#include <string>

#include "nn/decoder.h"

namespace sluice {

// How a family spells its sizes; null: there is no such key.
struct SizeKeys {
  const char* vocab = "vocab_size";
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";  // absent: as many as heads
  const char* inner = "intermediate_size";
  bool inner_is_four_hidden = false;  // when the key is absent
  const char* max_positions = "max_position_embeddings";
  int default_max_positions = 2048;
  bool heads_divide_hidden = true;  // unless "head_dim" is given; false: heads have other sizes
};

// Sizes, and what follows from them: head_dim, the scale of the scores, as many layers as asked for.
DecoderSpec read_sizes(const Config& config, std::string family, const SizeKeys& keys = {});

struct LlamaDefaults {
  int head_dim = 0;  // 0: hidden_size / num_attention_heads
  const char* norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied_head = false;
  RopeDefaults rope{};
};

// Keys that Llama and its relatives share: sizes, norm, activation, rope, tied head. Windows are zero.
DecoderSpec llama_like(const Config& config, std::string family, const LlamaDefaults& defaults = {});

// "attention_bias" for all four projections or only for q, k and v.
void read_attention_bias(const Config& config, DecoderSpec& spec, bool out, bool fallback = false);

// Of an object inside the configuration, once everything that matters was read: what nobody asked for is refused.
void refuse_unread(const Config& config);
// Tensors whose names begin so are stored for something that is not computed (layers that predict further tokens).
void ignore_tensors(LoadContext& context, std::string_view prefix);

int read_positive(const Config& config, const char* key, int value);
ops::Activation read_activation(const Config& config, const char* key, const char* fallback);
NormSpec read_layer_norm(const Config& config, const char* eps_key, bool bias = true);
// The value; `fallback` when the key is absent, 0 when it is null.
double read_or_off(const Config& config, const char* key, double fallback);

// A window for the layers that "layer_types" or, without it, `by_default` calls sliding; 0 is no window anywhere.
// Returns per layer whether it is a sliding one.
std::vector<bool> read_windows(const Config& config, DecoderSpec& spec, int window,
                               const std::function<bool(int layer)>& by_default);
// The rule of Qwen 2 and later: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_qwen_windows(const Config& config, DecoderSpec& spec, int max_window_layers);
// EXAONE's: sliding_window in all but every sliding_window_pattern-th layer, and rotation in sliding layers only,
// unless no layer slides.
void read_exaone_windows(const Config& config, DecoderSpec& spec);
// All layers have the window "sliding_window", or none has.
void read_one_window(const Config& config, DecoderSpec& spec, double fallback);

// Norms of what the halves of a block add, in place of norms of their inputs (OLMo 2).
void use_post_norms(DecoderSpec& spec);
// The rotation of sliding layers where they have their own: rope_parameters.sliding_attention, or plain with `theta`.
RopeSpec read_sliding_rope(const Config& config, const DecoderSpec& spec, double theta);

// Experts in all layers: their number, how many of them a row takes and how wide they are.
void read_experts(const Config& config, DecoderSpec& spec, const char* experts_key, const char* top_k_key, int inner);
// The layers Qwen gives experts to: decoder_sparse_step, mlp_only_layers.
void read_sparse_layers(const Config& config, DecoderSpec& spec);
// The groups that experts are chosen from: n_group, topk_group.
void read_expert_groups(const Config& config, MoeSpec& moe);
// DeepSeek-V3's routing, as others took it over: sigmoids with corrections, groups, shared experts, dense first layers.
struct DeepseekExpertKeys {
  const char* experts = "n_routed_experts";
  const char* shared = "n_shared_experts";
  int default_shared = 0;
  int default_dense = 0;
  float default_scale = 1.0f;
};
void read_deepseek_experts(const Config& config, DecoderSpec& spec, bool normalize,
                           const DeepseekExpertKeys& keys = {});
// "mlp_layer_types", where given: which layers are "sparse" and have experts, which "dense".
void read_mlp_layer_types(const Config& config, DecoderSpec& spec);
// Layers after the last one, num_nextn_predict_layers of them, predict further tokens: a means of speculation, without
// which results are the same. Their tensors are left alone.
void ignore_prediction_layers(const Config& config, LoadContext& context, const DecoderSpec& spec);

}  // namespace sluice
