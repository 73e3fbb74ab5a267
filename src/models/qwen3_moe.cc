// Qwen 3 with experts (arXiv:2505.09388), on its own and inside Qwen 3 VL.
#include "nn/decoder_config.h"

namespace sluice::models::qwen3_moe {
namespace {

DecoderSpec qwen3_moe_like(const Config& config, bool normalize) {
  DecoderSpec s = llama_like(config, "qwen3_moe");
  read_attention_bias(config, s, true);
  s.attention.qk_norm = QkNorm::kHead;
  // Unlike in its relatives, all layers have one window.
  if (config.get("use_sliding_window", false)) {
    read_one_window(config, s, 4096);
  } else {
    config.ignore("sliding_window");
  }
  config.ignore("max_window_layers");
  const int inner = read_positive(config, "moe_intermediate_size", config.get("moe_intermediate_size", 768));
  read_experts(config, s, config.has("num_experts") ? "num_experts" : "num_local_experts", "num_experts_per_tok",
               inner);
  read_sparse_layers(config, s);
  s.moe.normalize = config.get("norm_topk_prob", normalize);
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  return decoder_lm(qwen3_moe_like(config, false), context, max_len);
}

// For Qwen 3 VL: all experts of a layer are in one tensor, [inputs, outputs] as published, transposed as transformers
// writes it today.
std::unique_ptr<Model> build_vl(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = qwen3_moe_like(config, true);
  MoeSpec& m = s.moe;
  m.layout = ExpertLayout::kTransposedHalves;
  m.gate = "experts.gate_up_proj";
  m.down = "experts.down_proj";
  for (const auto& [name, entry] : context.checkpoint.tensors()) {
    if (name.ends_with("mlp.experts.down_proj") && entry.shape == Shape{m.experts, s.hidden, m.inner}) {
      m.layout = ExpertLayout::kStackedParameters;
    }
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "qwen3_moe",
    .architectures = {"Qwen3MoeForCausalLM"},
    .build = build,
    .ignored =
        {
            {"shared_expert_intermediate_size", "0"},
            {"use_qk_norm", "true"},
        },
};
const ModelFamily vl{.name = "qwen3_vl_moe_text", .architectures = {"Qwen3VLMoeTextForCausalLM"}, .build = build_vl};
const Registry<ModelFamily> registered{family}, registered_vl{vl};

}  // namespace
}  // namespace sluice::models::qwen3_moe
