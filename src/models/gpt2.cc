// GPT-2: learned positions, LayerNorms, matrices stored as [inputs, outputs] (Radford et al. 2019).
#include "models/gpt2.h"

namespace sluice {

DecoderNames gpt2_names() {
  return {.body = "transformer",
          .embedding = "wte",
          .layers = "h",
          .norm = "ln_f",
          .attention = "attn",
          .attention_norm = "ln_1",
          .mlp_norm = "ln_2"};
}

DecoderSpec gpt2_like(const Config& config, std::string family, const SizeKeys& keys, const char* activation) {
  DecoderSpec s = read_sizes(config, std::move(family), keys);
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kLearned;
  s.mlp.activation = read_activation(config, "activation_function", activation);
  s.mlp.gated = false;
  s.mlp.bias = true;
  s.mlp.in = {"c_fc"};
  s.mlp.out = "c_proj";
  s.names = gpt2_names();
  s.names.position_table = "wpe";
  return s;
}

void read_gpt2_attention(const Config& config, DecoderSpec& s) {
  s.attention.qkv = {"c_attn"};
  s.attention.out = "c_proj";
  s.attention.qkv_bias = s.attention.out_bias = true;
  if (!config.get("scale_attn_weights", true)) s.attention.scale = 1.0f;
  // These keys concern an older cache's size and classification heads.
  for (const char* key : {"n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                          "summary_type", "summary_use_proj"}) {
    config.ignore(key);
  }
}

}  // namespace sluice

namespace sluice::models::gpt2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gpt2_like(config, "gpt2", kGpt2Keys, "gelu_new");
  read_gpt2_attention(config, s);
  s.attention.transposed = s.mlp.transposed = true;
  if (config.get("scale_attn_by_inverse_layer_idx", false)) {
    for (int i = 0; i < s.depth(); ++i) s.layers[i].attention_scale = 1.0f / static_cast<float>(i + 1);
  }
  config.ignore("reorder_and_upcast_attn");  // only the order of a matmul
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gpt2", .architectures = {"GPT2LMHeadModel"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gpt2
