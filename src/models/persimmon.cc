// Persimmon: LayerNorms, also of queries and keys; a plain squared-ReLU MLP; rotates half of each head.
#include "models/phi.h"

namespace sluice::models::persimmon {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = phi_like(config, "persimmon", {.kv_heads = nullptr}, true, "relu2");
  s.attention.qkv = {"query_key_value"};
  s.attention.qkv_rows = grouped_qkv_rows(s.attention);
  s.mlp.in = {"dense_h_to_4h"};
  s.mlp.out = "dense_4h_to_h";
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "persimmon", .architectures = {"PersimmonForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::persimmon
