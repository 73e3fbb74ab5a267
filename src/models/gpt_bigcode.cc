// StarCoder 1 and SantaCoder: GPT-2 with one kv head for all heads (arXiv:2305.06161).
#include "models/gpt2.h"

namespace sluice::models::gpt_bigcode {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gpt2_like(config, "gpt_bigcode", kGpt2Keys, "gelu_pytorch_tanh");
  read_gpt2_attention(config, s);
  AttentionSpec& a = s.attention;
  const bool multi_query = config.get("multi_query", true);
  if (multi_query) a.kv_heads = 1;
  if (config.get("num_key_value_heads", a.kv_heads) != a.kv_heads) {
    config.refuse("num_key_value_heads", "contradicts multi_query");
  }
  if (!multi_query) a.qkv_rows = grouped_qkv_rows(a);
  // These keys set the precision and memory use of the reference.
  for (const char* key : {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner",
                          "validate_runner_input", "pre_allocate_kv_cache", "max_sequence_length", "max_batch_size"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "gpt_bigcode",
    .architectures = {"GPTBigCodeForCausalLM"},
    .build = build,
    .ignored = {{"pad_key_length"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gpt_bigcode
