// InternLM 2 and 2.5 (arXiv:2403.17297): Llama's graph; a fused projection stores the rows of each kv head's group
// together. In Mono-InternVL (arXiv:2410.08202) image tokens have MLPs of their own, which text does not use.
#include <fmt/core.h>

#include "nn/decoder_config.h"

namespace sluice::models::internlm2 {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "internlm2");
  s.attention.qkv_bias = s.attention.out_bias = config.get("bias", true);
  s.attention.qkv = {"wqkv"};
  s.attention.qkv_rows = grouped_qkv_rows(s.attention);
  s.attention.out = "wo";
  s.mlp.in = {"w1", "w3"};
  s.mlp.out = "w2";
  s.names.embedding = "tok_embeddings";
  s.names.head = "output";
  s.names.attention = "attention";
  s.names.mlp = "feed_forward";
  s.names.attention_norm = "attention_norm";
  s.names.mlp_norm = "ffn_norm";
  for (int i = 0; i < s.depth(); ++i) ignore_tensors(context, fmt::format("model.layers.{}.feed_forward_ve.", i));
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "internlm2", .architectures = {"InternLM2ForCausalLM", "InternLM2VEForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::internlm2
