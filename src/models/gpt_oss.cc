// gpt-oss (OpenAI 2025, arXiv:2508.10925): attention sinks, a window in every other layer, experts with biases and a
// clamped gate. Published with the experts in MXFP4.
#include "nn/decoder_config.h"

namespace sluice::models::gpt_oss {
namespace {

constexpr const char* kRope = R"({"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
    "truncate": false, "original_max_position_embeddings": 4096})";

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "gpt_oss",
                             {.head_dim = 64, .norm_eps = 1e-5, .rope = {.theta = 150000.0, .parameters = kRope}});
  read_attention_bias(config, s, true, true);
  s.attention.sinks = true;
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 128));
  read_windows(config, s, window, [](int layer) { return layer % 2 == 0; });
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = true;  // softmax over the chosen experts
  s.moe.router = "router";
  s.moe.router_bias = true;
  s.moe.layout = ExpertLayout::kTransposed;
  s.moe.gate = "experts.gate_up_proj";
  s.moe.down = "experts.down_proj";
  s.moe.bias = ExpertBias::kEach;
  s.moe.glu_alpha = config.get("swiglu_alpha", 1.702f);
  s.moe.glu_limit = config.get("swiglu_limit", 7.0f);
  if (!(s.moe.glu_limit > 0)) config.refuse("swiglu_limit", "must be positive");
  // Published files contain both keys.
  if (config.get("experts_per_token", s.moe.top_k) != s.moe.top_k) {
    config.refuse("experts_per_token", "contradicts num_experts_per_tok");
  }
  config.ignore("initial_context_length");
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gpt_oss", .architectures = {"GptOssForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gpt_oss
