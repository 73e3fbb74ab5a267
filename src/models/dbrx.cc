// DBRX: LayerNorms without bias, clamped projections, all experts of a layer stacked in one tensor.
#include "nn/decoder_config.h"

namespace sluice::models::dbrx {
namespace {

void read_attention(const Config& config, DecoderSpec& s) {
  const Config inner = config.object("attn_config");
  AttentionSpec& a = s.attention;
  a.kv_heads = read_positive(inner, "kv_n_heads", inner.get("kv_n_heads", 1));
  if (a.heads % a.kv_heads != 0) inner.refuse("kv_n_heads", "does not divide n_heads");
  a.clip = inner.get("clip_qkv", 0.0f);
  a.qkv = {"Wqkv"};
  a.out = "out_proj";
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = inner.get("rope_theta", 10000.0)})};
  refuse_unread(inner);
}

void read_ffn(const Config& config, DecoderSpec& s) {
  const Config activation = config.object("ffn_act_fn");
  s.mlp.activation = read_activation(activation, "name", "silu");
  refuse_unread(activation);
  if (config.get("hidden_size", s.hidden) != s.hidden) config.refuse("hidden_size", "must equal d_model");
  const int inner = read_positive(config, "ffn_hidden_size", config.get("ffn_hidden_size", 3584));
  read_experts(config, s, "moe_num_experts", "moe_top_k", inner);
  const double norm = config.get("moe_normalize_expert_weights", 0.0);
  if (norm != 0.0 && norm != 1.0) config.refuse("moe_normalize_expert_weights", "must be 1 or null");
  s.moe.normalize = norm == 1.0;
  s.moe.layout = ExpertLayout::kFlat;
  s.moe.router = "router.layer";
  s.moe.gate = "experts.mlp.w1";
  s.moe.up = "experts.mlp.v1";
  s.moe.down = "experts.mlp.w2";
  config.ignore("moe_jitter_eps");  // training only
  config.ignore("moe_loss_weight");
  refuse_unread(config);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "dbrx",
                             {.hidden = "d_model",
                              .layers = "n_layers",
                              .heads = "n_heads",
                              .inner = nullptr,
                              .max_positions = "max_seq_len"});
  s.norm = {.kind = NormSpec::Kind::kLayer, .eps = 1e-5f};
  s.tied_head = config.get("tie_word_embeddings", false);
  s.names = {.body = "transformer",
             .embedding = "wte",
             .layers = "blocks",
             .norm = "norm_f",
             .attention = "norm_attn_norm.attn",
             .mlp = "ffn",
             .attention_norm = "norm_attn_norm.norm_1",
             .mlp_norm = "norm_attn_norm.norm_2"};
  read_attention(config, s);
  read_ffn(config.object("ffn_config"), s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "dbrx", .architectures = {"DbrxForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::dbrx
