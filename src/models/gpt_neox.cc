// GPT-NeoX and Pythia: LayerNorms; rotates a quarter of each head; parallel blocks by default (arXiv:2204.06745).
#include "nn/decoder_config.h"

namespace sluice::models::gpt_neox {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "gpt_neox", {.kv_heads = nullptr});
  s.norm = read_layer_norm(config, "layer_norm_eps");
  s.tied_head = config.get("tie_word_embeddings", false);
  s.parallel = config.get("use_parallel_residual", true);
  // Files of some versions of transformers repeat the two keys under the names of other families; nobody reads these.
  const RopeDefaults rope{
      .partial = 0.25, .stray_theta = true, .theta_key = "rotary_emb_base", .partial_key = "rotary_pct"};
  s.ropes = {read_rope(config, s.attention.head_dim, s.max_positions, rope)};
  s.attention.qkv = {"query_key_value"};
  s.attention.qkv_rows = grouped_qkv_rows(s.attention);
  s.attention.out = "dense";
  read_attention_bias(config, s, true, true);
  s.mlp.activation = read_activation(config, "hidden_act", "gelu");
  s.mlp.gated = false;
  s.mlp.bias = true;
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  s.names = {.body = "gpt_neox",
             .embedding = "embed_in",
             .norm = "final_layer_norm",
             .head = "embed_out",
             .attention = "attention"};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gpt_neox",
                         .architectures = {"GPTNeoXForCausalLM"},
                         .build = build,
                         .ignored = {{"rope_theta"}, {"partial_rotary_factor"}}};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gpt_neox
