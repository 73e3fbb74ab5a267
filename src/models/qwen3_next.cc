// Qwen3-Next: three gated delta nets for every gated attention layer, and experts.
#include "models/qwen3_next.h"

#include <fmt/core.h>

#include "models/mamba.h"

namespace sluice {

DecoderSpec qwen3_next_like(const Config& config, LoadContext& context, std::string family, DeltaNetLayout layout,
                            bool only_experts) {
  DecoderSpec s =
      llama_like(config, std::move(family), {.head_dim = 256, .only_experts = only_experts, .rope = {.partial = 0.25}});
  read_attention_bias(config, s, true);
  s.norm.offset = 1.0f;
  s.attention.output_gate = true;
  s.attention.qk_norm = QkNorm::kHead;
  s.attention.qk_norm_spec = s.norm;
  const auto positive = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  DeltaNetSpec delta;
  delta.heads = positive("linear_num_value_heads", 32);
  delta.key_heads = positive("linear_num_key_heads", 16);
  if (delta.heads % delta.key_heads != 0) {
    config.refuse("linear_num_key_heads",
                  fmt::format("{} does not divide linear_num_value_heads {}", delta.key_heads, delta.heads));
  }
  delta.key_dim = positive("linear_key_head_dim", 128);
  delta.value_dim = positive("linear_value_head_dim", 128);
  delta.conv_width = read_conv_width(config, "linear_conv_kernel_dim", 4);
  delta.activation = s.mlp.activation;
  delta.norm_eps = s.norm.eps;
  delta.layout = layout;
  ignore_tensors(context, "mtp.");
  const int interval = positive("full_attention_interval", 4);
  std::vector<std::string> kinds;
  for (int i = 0; i < s.depth(); ++i) {
    kinds.emplace_back((i + 1) % interval == 0 ? "full_attention" : "linear_attention");
  }
  kinds = config.get("layer_types", kinds);
  const std::vector<bool> recurrent = read_recurrent_layers(config, kinds, "layer_types", s.depth());
  for (int i = 0; i < s.depth(); ++i) {
    if (recurrent[i]) s.layers[i].mixer = mixer_of<DeltaNet>("linear_attn", delta);
  }
  return s;
}

void read_qwen3_next_experts(const Config& config, DecoderSpec& s, bool normalize) {
  const auto positive = [&](const char* key) { return read_positive(config, key, config.get(key, 512)); };
  read_experts(config, s, "num_experts", "num_experts_per_tok", positive("moe_intermediate_size"));
  s.moe.normalize = normalize;
  s.moe.shared_inner = positive("shared_expert_intermediate_size");
  s.moe.shared = "shared_expert";
  s.moe.shared_gate = true;
}

}  // namespace sluice

namespace sluice::models::qwen3_next {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = qwen3_next_like(config, context, "qwen3_next", DeltaNetLayout::kByKeyHeads);
  read_qwen3_next_experts(config, s, config.get("norm_topk_prob", true));
  read_sparse_layers(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "qwen3_next", .architectures = {"Qwen3NextForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::qwen3_next
