// Sarvam 105B (Sarvam AI, 2026): DeepSeek-V3 with queries that are projected in one step.
#include "models/deepseek.h"

namespace sluice::models::sarvam_mla {
namespace {

constexpr std::pair<const char*, const char*> kAliases[] = {{"num_experts", "n_routed_experts"},
                                                            {"num_shared_experts", "n_shared_experts"},
                                                            {"score_function", "scoring_func"}};

std::unique_ptr<Model> build(const Config& published, LoadContext& context, int max_len) {
  const Config config = with_usual_names(published, kAliases);
  // Implementations disagree on what a file without these keys means.
  for (const char* key : {"n_group", "topk_group"}) {
    if (!config.has(key)) config.refuse(key, "must be given");
  }
  if (!config.has("rope_scaling") && !config.has("rope_parameters")) config.refuse("rope_scaling", "must be given");
  DecoderSpec s = latent_llama_like(config, "sarvam_mla", {.q_rank = 0});
  const auto scoring = config.get("scoring_func", std::string("sigmoid"));
  if (scoring != "sigmoid") config.refuse("score_function", "must be sigmoid, not '" + scoring + "'");
  read_deepseek_experts(config, s, true, {.default_shared = 1, .default_dense = 1, .default_scale = 2.5f});
  const int width = config.get("moe_shared_expert_intermediate_size", s.moe.inner);
  s.moe.shared_inner = s.moe.shared_inner / s.moe.inner * width;
  if (!config.get("moe_router_enable_expert_bias", true)) s.moe.correction = "";
  if (config.get("moe_layer_freq", 1) != 1) config.refuse("moe_layer_freq", "must be 1");
  config.ignore("q_head_dim");  // follows from other keys
  note_reads(published, config, kAliases);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "sarvam_mla",
    .architectures = {"SarvamMLAForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attn_implementation"},
            {"default_theta"},  // rope_theta is read
            {"embedding_dropout"},
            {"output_dropout"},
            {"router_dtype"},         // routing is always computed in fp32
            {"use_qk_norm", "true"},  // the norm of the latent vectors
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::sarvam_mla
