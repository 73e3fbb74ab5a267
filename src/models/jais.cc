// Jais (arXiv:2308.16149): GPT-2 with ALiBi, SwiGLU and muP's factors (arXiv:2203.03466).
#include <fmt/core.h>
#include <algorithm>

#include "models/gpt2.h"

namespace sluice::models::jais {
namespace {

// The first models and later ones spell muP's keys differently.
double read_factor(const Config& config, const char* key, const char* older) {
  const double factor = config.get(older, config.get(key, 1.0));
  if (!(factor > 0)) config.refuse(config.has(older) ? older : key, fmt::format("must be positive, not {}", factor));
  return factor;
}

void read_positions(const Config& config, DecoderSpec& s) {
  const auto kind = config.get("position_embedding_type", std::string("learned"));
  if (kind != "alibi" && kind != "learned") {
    config.refuse("position_embedding_type", fmt::format("unknown type '{}' (expected alibi or learned)", kind));
  }
  if (kind == "learned") {
    // The reference scales the sum of both embeddings.
    if (s.embedding_scale != 1.0f) config.refuse("position_embedding_type", "learned positions are not scaled");
    return;
  }
  s.positions = Positions::kAlibi;
  s.names.position_table = "";
  s.attention.alibi_slopes = alibi_slopes(s.attention.heads);
  // Slopes change only in texts that are longer than "train_seq_len".
  if (!config.has("alibi_scaling")) return;
  const Config scaling = config.object("alibi_scaling");
  if (scaling.has("factor")) scaling.refuse("factor", "is not supported");
  scaling.ignore("type");
  const int length = read_positive(scaling, "train_seq_len", scaling.at<int>("train_seq_len"));
  s.max_positions = std::min(s.max_positions, length);
  refuse_unread(scaling);
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const bool swiglu = config.get("activation_function", std::string("gelu_new")) == "swiglu";
  if (!swiglu) config.refuse("activation_function", "must be swiglu");
  DecoderSpec s = read_sizes(config, "jais", kGpt2Keys);
  s.norm = read_layer_norm(config, "layer_norm_epsilon");
  s.tied_head = config.get("tie_word_embeddings", true);
  s.positions = Positions::kLearned;
  s.names = gpt2_names();
  s.names.position_table = "wpe";
  read_gpt2_attention(config, s);
  s.attention.transposed = s.mlp.transposed = true;
  if (config.get("scale_qk_dot_by_d", config.get("mup_scale_qk_dot_by_d", false))) {
    s.attention.scale = 1.0f / static_cast<float>(s.attention.head_dim);
  }
  s.mlp.activation = ops::Activation::kSilu;
  s.mlp.bias = true;
  s.mlp.in = {"c_fc2", "c_fc"};
  s.mlp.out = "c_proj";
  s.embedding_scale = static_cast<float>(read_factor(config, "mup_embeddings_scale", "embeddings_scale"));
  s.logit_scale = static_cast<float>(read_factor(config, "mup_width_scale", "width_scale"));
  if (!config.has("width_scale")) {
    s.logit_scale *= static_cast<float>(read_factor(config, "mup_output_alpha", "mup_output_alpha"));
  }
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}) {
    if (config.get(key, false)) config.refuse(key, "true is not supported");
  }
  read_positions(config, s);
  ignore_tensors(context, "transformer.relative_pe.");  // the slopes
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "jais", .architectures = {"JAISLMHeadModel"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::jais
