// Hunyuan, dense: Llama's graph with norms of queries and keys after the rotation.
#include "models/hunyuan.h"

namespace sluice {

DecoderSpec hunyuan_like(const Config& config, std::string family) {
  DecoderSpec s = llama_like(config, std::move(family), {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHeadAfterRope;
  s.attention.q_norm = "query_layernorm";
  s.attention.k_norm = "key_layernorm";
  config.ignore("eod_token_id");
  return s;
}

}  // namespace sluice

namespace sluice::models::hunyuan_v1_dense {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return decoder_lm(hunyuan_like(config, "hunyuan_v1_dense"), context, max_len);
}

const ModelFamily family{
    .name = "hunyuan_v1_dense",
    .architectures = {"HunYuanDenseV1ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attention_head_dim"},
            {"cla_share_factor"},
            {"dense_list"},
            {"norm_type", "\"rms\""},
            {"routed_scaling_factor"},
            {"use_cla", "false"},
            {"use_qk_norm", "true"},
            {"use_recompute"},
            {"use_rotary_pos_emb", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::hunyuan_v1_dense
