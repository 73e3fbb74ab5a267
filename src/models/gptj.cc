// GPT-J: one LayerNorm for parallel attention and MLP; rotates a part of each head in adjacent pairs.
#include "models/gptj.h"

#include <fmt/core.h>

#include "models/gpt2.h"

namespace sluice {

DecoderSpec gptj_like(const Config& config, std::string family) {
  DecoderSpec s = read_sizes(config, std::move(family),
                             {.hidden = "n_embd",
                              .layers = "n_layer",
                              .heads = "n_head",
                              .kv_heads = nullptr,
                              .inner = "n_inner",
                              .inner_is_four_hidden = true,
                              .max_positions = "n_positions"});
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", false);
  s.head_bias = true;
  s.parallel = true;
  RopeSpec rope;
  rope.rotary_dim = config.get("rotary_dim", 64);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > s.attention.head_dim) {
    config.refuse("rotary_dim",
                  fmt::format("{} is not possible with heads of {} dimensions", rope.rotary_dim, s.attention.head_dim));
  }
  s.ropes = {rope};
  s.attention.interleaved_rope = true;
  s.attention.out = "out_proj";
  s.mlp.activation = read_activation(config, "activation_function", "gelu_new");
  s.mlp.gated = false;
  s.mlp.bias = true;
  s.mlp.in = {"fc_in"};
  s.mlp.out = "fc_out";
  s.names = gpt2_names();
  s.names.mlp_norm = "";
  for (const char* key : {"n_ctx", "scale_attn_weights", "summary_activation", "summary_first_dropout",
                          "summary_proj_to_labels", "summary_type", "summary_use_proj"}) {
    config.ignore(key);  // not read in inference
  }
  return s;
}

}  // namespace sluice

namespace sluice::models::gptj {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gptj_like(config, "gptj");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "gptj",
    .architectures = {"GPTJForCausalLM"},
    .build = build,
    .ignored = {{"rotary", "true"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gptj
