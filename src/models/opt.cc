// OPT: learned positions that start at 2, LayerNorms, ReLU (Zhang et al. 2022, arXiv:2205.01068).
#include "nn/decoder_config.h"

namespace sluice::models::opt {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "opt", {.kv_heads = nullptr, .inner = "ffn_dim"});
  s.sum_norms = !config.get("do_layer_norm_before", true);
  const int width = read_positive(config, "word_embed_proj_dim", config.get("word_embed_proj_dim", s.hidden));
  if (width != s.hidden) s.embedding_dim = width;
  if (width != s.hidden && context.task != Task::kGenerate) {
    config.refuse("word_embed_proj_dim", "must equal hidden_size for tasks other than generation");
  }
  const bool affine = config.get("layer_norm_elementwise_affine", true);
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = 1e-5f, .weight = affine, .bias = affine};
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kLearned;
  s.position_offset = 2;
  s.attention.out = "out_proj";
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = config.get("enable_bias", true);
  s.mlp.activation = read_activation(config, "activation_function", "relu");
  s.mlp.gated = false;
  s.mlp.in = {"fc1"};
  s.mlp.out = "fc2";
  s.names = {.body = "model.decoder",
             .position_table = "embed_positions",
             .norm = "final_layer_norm",
             .mlp = "",
             .attention_norm = "self_attn_layer_norm",
             .mlp_norm = "final_layer_norm"};
  if (config.get("_remove_final_layer_norm", false) || s.sum_norms) s.names.norm = "";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "opt", .architectures = {"OPTForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::opt
