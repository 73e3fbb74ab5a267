// Nomic BERT (arXiv:2402.01613): BERT with rotations, a gated MLP and no biases. Reads the keys of transformers, or
// GPT-2's keys, which the published checkpoints use.
#include <fmt/core.h>

#include "models/bert.h"

namespace sluice::models::nomic_bert {
namespace {

// Refuses published settings that have only one supported value.
void refuse_variants(const Config& config) {
  const auto only = [&](const char* key, auto value) {
    if (config.get(key, value) != value) config.refuse(key, fmt::format("only {} is supported", value));
  };
  only("rotary_emb_fraction", 1.0);
  only("rotary_emb_interleaved", false);
  only("prenorm", false);
  only("causal", false);
  only("parallel_block", false);
  only("use_rms_norm", false);
  only("qkv_proj_bias", false);
  only("mlp_fc1_bias", false);
  only("mlp_fc2_bias", false);
  only("num_experts", 0);
  // Rotations are rescaled only beyond max_trained_positions; texts are limited to that length.
  for (const char* key : {"rotary_scaling_factor",
                          "rotary_emb_scale_base",
                          "rotary_emb_base",
                          "fused_bias_fc",
                          "fused_dropout_add_ln",
                          "use_flash_attn",
                          "use_xentropy",
                          "pad_vocab_size_multiple",
                          "scale_attn_weights",
                          "scale_attn_by_inverse_layer_idx",
                          "reorder_and_upcast_attn",
                          "dense_seq_output",
                          "last_layer_subset",
                          "shard_logits",
                          "summary_type",
                          "summary_activation",
                          "summary_use_proj",
                          "summary_first_dropout",
                          "summary_proj_to_labels",
                          "mlp_fc1_out",
                          "resid_pdrop",
                          "embd_pdrop",
                          "attn_pdrop",
                          "tie_word_embeddings",
                          "tensor_parallel"}) {
    config.ignore(key);
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const bool published = config.has("n_embd");
  const SizeKeys keys = published ? SizeKeys{.hidden = "n_embd",
                                             .layers = "n_layer",
                                             .heads = "n_head",
                                             .kv_heads = nullptr,
                                             .inner = "n_inner",
                                             .max_positions = "max_trained_positions"}
                                  : SizeKeys{.kv_heads = nullptr};
  const DecoderSpec sizes = read_sizes(config, "nomic_bert", keys);
  EncoderSpec s;
  s.family = sizes.family;
  s.vocab = sizes.vocab;
  s.hidden = sizes.hidden;
  s.max_positions = published ? std::min(sizes.max_positions, config.at<int>("n_positions")) : sizes.max_positions;
  s.types = config.get("type_vocab_size", 2);
  const char* eps = published ? "layer_norm_epsilon" : "layer_norm_eps";
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = static_cast<float>(config.get(eps, 1e-12)), .bias = true};
  s.attention = sizes.attention;
  use_fused_qkv(s, "attn.Wqkv", "attn.out_proj", false);
  const char* key = published ? "activation_function" : "hidden_act";
  const bool swiglu = config.get(key, std::string()) == "swiglu";
  s.mlp = {.inner = sizes.mlp.inner,
           .activation = swiglu ? ops::Activation::kSilu : read_activation(config, key, "silu"),
           .in = {"mlp.fc12", "mlp.fc11"},
           .out = "mlp.fc2"};
  s.names.positions = "";
  s.names.embedding_norm = "emb_ln";
  s.names.attention_norm = "norm1";
  s.names.mlp_norm = "norm2";
  for (int i = 0; i < sizes.depth(); ++i) s.layers.push_back({.name = fmt::format("encoder.layers.{}", i)});
  const double theta = config.get("rotary_emb_base", 1000.0);
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, {.theta = theta})};
  refuse_variants(config);
  if (context.task == Task::kScore) config.refuse("architectures", "has no sequence classification");
  return encoder_for_task(std::move(s), context, max_len, ops::Pooling::kMean, {}, {"cls."});
}

const ModelFamily family{.name = "nomic_bert", .architectures = {"NomicBertModel"}, .build = build, .encoder = true};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::nomic_bert
