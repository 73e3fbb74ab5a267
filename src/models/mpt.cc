// MPT: ALiBi, LayerNorms without bias, no biases at all.
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::mpt {
namespace {

// ALiBi slopes for the next power of two: every second one first.
std::vector<float> mpt_slopes(int heads) {
  int power = 1;
  while (power < heads) power *= 2;
  const auto slope = [&](int i) { return static_cast<float>(std::exp2(-8.0 * (i + 1) / power)); };
  std::vector<float> slopes;
  if (power != heads) {
    for (int i = 1; i < power; i += 2) slopes.push_back(slope(i));
  }
  for (int i = 0; i < power; i += power == heads ? 1 : 2) slopes.push_back(slope(i));
  slopes.resize(static_cast<size_t>(heads));
  return slopes;
}

void read_attention(const Config& config, AttentionSpec& a) {
  const auto only = [&](const char* key, bool wanted) {
    if (config.get(key, wanted) != wanted) config.refuse(key, "is not supported");
  };
  only("qk_ln", false);
  only("prefix_lm", false);
  only("attn_uses_sequence_id", false);
  if (config.get("attn_type", std::string("multihead_attention")) != "multihead_attention") {
    config.refuse("attn_type", "must be multihead_attention");
  }
  a.clip = config.get("clip_qkv", 0.0f);
  a.scale = config.get("softmax_scale", a.scale);
  a.alibi_slopes = mpt_slopes(a.heads);
  // The reference always uses ALiBi with slopes from 2^-8, whatever the file says. A model without ALiBi would have a
  // position table, which would be reported as an unused tensor.
  for (const char* key : {"alibi", "alibi_bias_max", "attn_impl"}) config.ignore(key);
  refuse_unread(config);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "mpt",
                             {.hidden = "d_model",
                              .layers = "n_layers",
                              .heads = "n_heads",
                              .kv_heads = nullptr,
                              .inner = nullptr,
                              .max_positions = "max_seq_len"});
  if (!config.get("no_bias", true)) config.refuse("no_bias", "false is not supported");
  if (config.has("logit_scale")) config.refuse("logit_scale", "is not supported");
  s.norm = read_layer_norm(config, "layer_norm_epsilon", false);
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kAlibi;
  read_attention(config.object("attn_config"), s.attention);
  s.attention.qkv = {"Wqkv"};
  s.attention.out = "out_proj";
  s.mlp.inner = 4 * s.hidden;  // the reference ignores "expansion_ratio"
  s.mlp.activation = ops::Activation::kGelu;
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  s.names = {.body = "transformer",
             .embedding = "wte",
             .layers = "blocks",
             .norm = "norm_f",
             .attention = "attn",
             .mlp = "ffn",
             .attention_norm = "norm_1",
             .mlp_norm = "norm_2"};
  // These keys concern initialization, or are switches of the training code that the reference ignores too.
  for (const char* key : {"expansion_ratio", "init_device", "init_config", "verbose", "norm_type", "learned_pos_emb",
                          "embedding_fraction"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mpt", .architectures = {"MptForCausalLM", "MPTForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mpt
