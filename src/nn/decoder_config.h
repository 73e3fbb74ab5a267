// From config.json to a DecoderSpec: reads the keys that many families share. Each family passes its own defaults where
// transformers' configuration classes differ. Values that cannot be computed are refused by key name.
#pragma once

#include <functional>
#include <string>

#include "nn/decoder.h"

namespace sluice {

// Key names of a family's sizes; null: the family has no such key.
struct SizeKeys {
  const char* vocab = "vocab_size";
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";  // if absent: as many as heads
  const char* inner = "intermediate_size";
  bool inner_is_four_hidden = false;  // default of `inner` if the key is absent
  const char* max_positions = "max_position_embeddings";
  int default_max_positions = 2048;
  bool heads_divide_hidden = true;  // checked unless "head_dim" is given; false: heads may have other sizes
};

// Reads sizes and derives head_dim, the score scale and the number of layers.
DecoderSpec read_sizes(const Config& config, std::string family, const SizeKeys& keys = {});

struct LlamaDefaults {
  int head_dim = 0;  // 0: hidden_size / num_attention_heads
  const char* norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  bool tied_head = false;
  bool only_experts = false;  // in all layers, so that intermediate_size may be absent
  RopeDefaults rope{};
};

// Reads the keys that Llama and its relatives share: sizes, norm, activation, rope, tied head. Leaves windows at zero.
DecoderSpec llama_like(const Config& config, std::string family, const LlamaDefaults& defaults = {});

// Reads "attention_bias" for all four projections, or only for q, k and v.
void read_attention_bias(const Config& config, DecoderSpec& spec, bool out, bool fallback = false);

// Refuses the keys of a nested configuration object that nobody has read. Call it once all keys that matter were read.
void refuse_unread(const Config& config);
// Ignores tensors with this prefix; they belong to parts that are not computed (multi-token-prediction layers).
void ignore_tensors(LoadContext& context, std::string_view prefix);

int read_positive(const Config& config, const char* key, int value);
ops::Activation read_activation(const Config& config, const char* key, const char* fallback);
NormSpec read_layer_norm(const Config& config, const char* eps_key, bool bias = true);
// Returns the value; `fallback` if the key is absent, 0 if it is null.
double read_or_off(const Config& config, const char* key, double fallback);

// Sets the window of the layers that "layer_types" or, without it, `by_default` calls sliding. 0 means no window
// anywhere. Returns for each layer whether it is sliding.
std::vector<bool> read_windows(const Config& config, DecoderSpec& spec, int window,
                               const std::function<bool(int layer)>& by_default);
// Reads the windows of Qwen 2 and later: use_sliding_window, sliding_window, max_window_layers, layer_types.
void read_qwen_windows(const Config& config, DecoderSpec& spec, int max_window_layers);
// Reads EXAONE's windows: sliding_window in all but every sliding_window_pattern-th layer. Only sliding layers rotate,
// unless no layer slides.
void read_exaone_windows(const Config& config, DecoderSpec& spec);
// Gives all layers the window "sliding_window", or none of them.
void read_one_window(const Config& config, DecoderSpec& spec, double fallback);

// Replaces the norms of the sublayers' inputs by norms of their results (OLMo 2).
void use_post_norms(DecoderSpec& spec);
// Returns the rotation of sliding layers if they have their own: rope_parameters.sliding_attention, or default with
// `theta`.
RopeSpec read_sliding_rope(const Config& config, const DecoderSpec& spec, double theta);

// Gives all layers experts: reads their number and how many a row takes; `inner` is their width.
void read_experts(const Config& config, DecoderSpec& spec, const char* experts_key, const char* top_k_key, int inner);
// Reads which layers have experts in Qwen's families: decoder_sparse_step, mlp_only_layers.
void read_sparse_layers(const Config& config, DecoderSpec& spec);
// Reads the groups that experts are chosen from: n_group, topk_group.
void read_expert_groups(const Config& config, MoeSpec& moe, int groups = 1, int top_groups = 1);
// Reads DeepSeek-V3's routing, which other families adopted: sigmoid scores with corrections, groups, shared experts,
// dense first layers.
struct DeepseekExpertKeys {
  const char* experts = "n_routed_experts";
  const char* shared = "n_shared_experts";
  int default_shared = 0;
  int default_dense = 0;
  float default_scale = 1.0f;
  int default_groups = 1, default_top_groups = 1;
};
void read_deepseek_experts(const Config& config, DecoderSpec& spec, bool normalize,
                           const DeepseekExpertKeys& keys = {});
// Reads "mlp_layer_types" if given: "sparse" layers have experts, "dense" ones do not.
void read_mlp_layer_types(const Config& config, DecoderSpec& spec);
// Ignores the tensors of the num_nextn_predict_layers layers after the last one. They predict further tokens for
// speculative decoding; results are the same without them.
void ignore_prediction_layers(const Config& config, LoadContext& context, const DecoderSpec& spec);

}  // namespace sluice
