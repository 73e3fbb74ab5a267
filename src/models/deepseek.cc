// DeepSeek MoE, first generation (arXiv:2401.06066): Llama's attention, experts chosen by softmax, shared experts.
#include "models/deepseek.h"

namespace sluice::models::deepseek {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "deepseek");
  read_attention_bias(config, s, true);
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 1407));
  read_experts(config, s, "n_routed_experts", "num_experts_per_tok", inner);
  const auto scoring = config.get("scoring_func", std::string("softmax"));
  if (scoring != "softmax") config.refuse("scoring_func", "must be softmax, not '" + scoring + "'");
  s.moe.normalize = config.get("norm_topk_prob", false);
  s.moe.shared_inner = inner * config.get("n_shared_experts", 0);
  read_deepseek_layers(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "deepseek", .architectures = {"DeepseekForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::deepseek
