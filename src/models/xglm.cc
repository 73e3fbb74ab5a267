// XGLM: sinusoidal positions that start at 2, scaled embeddings, LayerNorms (arXiv:2112.10668).
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::xglm {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "xglm",
                             {.hidden = "d_model",
                              .layers = "num_layers",
                              .heads = "attention_heads",
                              .kv_heads = nullptr,
                              .inner = "ffn_dim"});
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = 1e-5f, .bias = true};
  s.tied_head = config.get("tie_word_embeddings", true);
  if (s.hidden % 2 != 0 || s.hidden < 4) config.refuse("d_model", "must be even and at least 4");
  if (config.get("scale_embedding", true)) s.embedding_scale = std::sqrt(static_cast<float>(s.hidden));
  s.scaled_vectors = true;
  s.positions = Positions::kSinusoidal;
  s.position_offset = 2;
  s.attention.out = "out_proj";
  s.attention.qkv_bias = s.attention.out_bias = s.mlp.bias = true;
  s.mlp.activation = read_activation(config, "activation_function", "gelu");
  s.mlp.gated = false;
  s.mlp.in = {"fc1"};
  s.mlp.out = "fc2";
  s.names = {.norm = "layer_norm", .mlp = "", .attention_norm = "self_attn_layer_norm", .mlp_norm = "final_layer_norm"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "xglm", .architectures = {"XGLMForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::xglm
