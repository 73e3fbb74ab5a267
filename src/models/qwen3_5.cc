// Qwen 3.5, the text models: Qwen3-Next's layers with separate projections, dense or with experts.
#include "models/qwen3_next.h"

namespace sluice::models::qwen3_5 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return decoder_lm(qwen3_next_like(config, context, "qwen3_5", DeltaNetLayout::kSeparate), context, max_len);
}

std::unique_ptr<Model> build_moe(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = qwen3_next_like(config, context, "qwen3_5_moe", DeltaNetLayout::kSeparate, true);
  read_qwen3_next_experts(config, s, true);
  return decoder_lm(std::move(s), context, max_len);
}

const std::vector<IgnoredKey> kIgnored{
    {"attn_output_gate", "true"}, {"mamba_ssm_dtype"}, {"mtp_num_hidden_layers"}, {"mtp_use_dedicated_embeddings"}};
const ModelFamily dense{
    .name = "qwen3_5", .architectures = {"Qwen3_5ForCausalLM"}, .build = build, .ignored = kIgnored};
const ModelFamily experts{
    .name = "qwen3_5_moe", .architectures = {"Qwen3_5MoeForCausalLM"}, .build = build_moe, .ignored = kIgnored};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{dense}, Registry<ModelFamily>{experts}};

}  // namespace
}  // namespace sluice::models::qwen3_5
