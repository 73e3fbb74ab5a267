// K-EXAONE: EXAONE 4's attention with norms before it, and DeepSeek-V3's experts (arXiv:2601.01739).
#include "nn/decoder_config.h"

namespace sluice::models::exaone_moe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "exaone_moe", {.norm_eps = 1e-5});
  s.attention.qk_norm = QkNorm::kHead;
  read_exaone_windows(config, s);
  read_deepseek_experts(config, s, true,
                        {.experts = "num_experts",
                         .shared = "num_shared_experts",
                         .default_shared = 1,
                         .default_dense = 1,
                         .default_scale = 2.5f});
  s.moe.correction = "e_score_correction_bias";
  read_mlp_layer_types(config, s);
  config.ignore("num_nextn_predict_layers");
  ignore_tensors(context, "mtp.");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "exaone_moe", .architectures = {"ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::exaone_moe
