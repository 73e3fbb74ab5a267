// MiniMax M3, text: MiniMax M2 with norms of heads, clamped gated units, a shared expert, and layers that see only the
// sparse_topk_blocks blocks of keys that an indexer chooses. A text of at most that many blocks is seen in full.
// Contexts are limited to that length, and indexers are not loaded.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "nn/decoder_config.h"

namespace sluice::models::minimax_m3 {
namespace {

std::vector<int> read_flags(const Config& config, const char* key, int layers, int fallback) {
  auto flags = config.get(key, std::vector<int>(static_cast<size_t>(layers), fallback));
  if (static_cast<int>(flags.size()) != layers)
    config.refuse(key, fmt::format("has {} entries for {} layers", flags.size(), layers));
  return flags;
}

void end_where_choosing_begins(const Config& config, LoadContext& context, DecoderSpec& s) {
  const Config sparse = config.object("sparse_attention_config");
  const std::vector<int> layers = read_flags(sparse, "sparse_attention_freq", s.depth(), 1);
  const std::vector<int> selects_only = read_flags(sparse, "sparse_disable_index_value", s.depth(), 1);
  for (int i = 0; i < s.depth(); ++i) {
    if (layers[i] != 0 && selects_only[i] == 0)
      sparse.refuse("sparse_disable_index_value", fmt::format("must be 1 in layer {}", i));
  }
  // These concern the choice.
  for (const char* key :
       {"sparse_index_dim", "sparse_init_block", "sparse_local_block", "sparse_num_index_heads", "sparse_score_type"}) {
    sparse.ignore(key);
  }
  if (!sparse.get("use_sparse_attention", true) || std::ranges::count(layers, 0) == s.depth()) return;
  const int blocks = read_positive(sparse, "sparse_topk_blocks", sparse.get("sparse_topk_blocks", 16));
  const int block = read_positive(sparse, "sparse_block_size", sparse.get("sparse_block_size", 128));
  const auto chosen = int64_t{blocks} * block;
  if (s.max_positions > chosen && context.dry) {
    log::warning("{}: sparse attention is not supported; the context is limited to {} tokens (sparse_topk_blocks)",
                 config.origin(), chosen);
  }
  refuse_unread(sparse);
  s.max_positions = static_cast<int>(std::min<int64_t>(s.max_positions, chosen));
  for (int i = 0; i < s.depth(); ++i) {
    ignore_tensors(context, fmt::format("{}.{}.{}.self_attn.index_", s.names.body, s.names.layers, i));
  }
}

void read_experts(const Config& config, DecoderSpec& s) {
  const int inner = read_positive(config, "intermediate_size", config.at<int>("intermediate_size"));
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", inner);
  MoeSpec& m = s.moe;
  m.score = ops::Routing::Score::kSigmoid;
  m.normalize = true;
  m.scale = config.get("routed_scaling_factor", 2.0f);
  m.correction = "e_score_correction_bias";
  m.correction_shape = {m.experts};
  m.gate = "w1";
  m.up = "w3";
  m.down = "w2";
  m.glu_alpha = s.mlp.glu_alpha;
  m.glu_limit = s.mlp.glu_limit;
  const int shared = read_positive(config, "shared_intermediate_size", config.get("shared_intermediate_size", 3072));
  m.shared_inner = shared * config.get("n_shared_experts", 1);
  const std::vector<int> sparse = read_flags(config, "moe_layer_freq", s.depth(), 1);
  for (int i = 0; i < s.depth(); ++i) {
    s.layers[i].moe = sparse[i] != 0;
    if (!s.layers[i].moe) continue;
    s.layers[i].names = s.names;
    s.layers[i].names->mlp = "block_sparse_moe";
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "minimax_m3", {.inner = nullptr, .heads_divide_hidden = false});
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", 128));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm = {.eps = config.get("rms_norm_eps", 1e-6f), .offset = 1.0f};
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  const int rotary = read_positive(config, "rotary_dim", config.get("rotary_dim", a.head_dim / 2));
  s.ropes = {read_rope(config, a.head_dim, s.max_positions,
                       {.theta = 5000000.0, .partial = static_cast<double>(rotary) / a.head_dim})};
  if (s.ropes[0].rotary_dim != rotary) config.refuse("rotary_dim", "contradicts partial_rotary_factor");
  s.tied_head = config.get("tie_word_embeddings", false);
  const auto activation = config.get("hidden_act", std::string("swigluoai"));
  if (activation != "swigluoai") config.refuse("hidden_act", "must be swigluoai, not '" + activation + "'");
  s.mlp.inner = read_positive(config, "dense_intermediate_size", config.get("dense_intermediate_size", 12288));
  s.mlp.glu_alpha = config.get("swiglu_alpha", 1.702f);
  s.mlp.glu_limit = config.get("swiglu_limit", 7.0f);
  if (!(s.mlp.glu_limit > 0)) config.refuse("swiglu_limit", "must be positive");
  read_experts(config, s);
  end_where_choosing_begins(config, context, s);
  ignore_prediction_layers(config, context, s);
  ignore_tensors(context, "model.mtp");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "minimax_m3",
    .architectures = {"MiniMaxM3SparseForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attention_output_gate", "false"},
            {"num_mtp_modules"},
            {"qk_norm_type", "\"per_head\""},
            {"scoring_func", "\"sigmoid\""},
            {"use_gemma_norm", "true"},
            {"use_qk_norm", "true"},
            {"use_routing_bias", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::minimax_m3
