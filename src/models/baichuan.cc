// Baichuan 1 and 2 (arXiv:2309.10305): Llama's graph with one fused projection for queries, keys and values. The larger
// models use ALiBi instead of a rotation. The second generation's head has unit rows.
#include "nn/decoder_config.h"

namespace sluice::models::baichuan {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  // config.json tells the 13B models' ALiBi only by the name of the key for their length.
  const bool alibi = !config.has("max_position_embeddings");
  const int length = config.get("model_max_length", 4096);
  DecoderSpec s = llama_like(config, "baichuan");
  if (s.attention.kv_heads != s.attention.heads)
    config.refuse("num_key_value_heads", "differs from num_attention_heads");
  s.attention.qkv = {"W_pack"};
  if (alibi) {
    s.max_positions = read_positive(config, "model_max_length", length);
    s.positions = Positions::kAlibi;
    s.ropes.clear();
    s.attention.alibi_slopes = alibi_slopes(s.attention.heads);
  }
  constexpr int kSecondVocab = 125696;  // the unit-row head has no key either; this vocabulary identifies it
  s.unit_head = s.vocab == kSecondVocab;
  config.ignore("z_loss_weight");  // training only
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "baichuan", .architectures = {"BaichuanForCausalLM", "BaiChuanForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::baichuan
