// nanochat (github.com/karpathy/nanochat): norms without weights, also on the embeddings; rotates backward, before the
// norms of queries and keys; squared ReLU.
#include "nn/decoder_config.h"

namespace sluice::models::nanochat {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "nanochat", {.activation = "relu2"});
  read_attention_bias(config, s, true);
  s.norm.weight = false;
  s.attention.qk_norm = QkNorm::kHeadAfterRope;
  s.attention.qk_norm_spec = s.norm;
  s.ropes[0].backward = true;
  s.mlp.gated = false;
  s.mlp.in = {"fc1"};
  s.mlp.out = "fc2";
  s.names.embedding_norm = s.names.norm;
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "final_logit_softcapping", 15.0));
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "nanochat", .architectures = {"NanoChatForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::nanochat
