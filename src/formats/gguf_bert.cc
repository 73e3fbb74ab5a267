// GGUF architectures of encoders: BERT, as which the converter writes RoBERTa and XLM-R as well (their positions begin
// at 0 in the file), and Nomic BERT. What the files lack (poolers, heads) no vector needs.
#include "formats/gguf_architecture.h"

namespace sluice {
namespace {

using enum TensorForm;

constexpr TensorRule kEmbeddings[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"token_types", "embeddings.token_type_embeddings", kOneRow},
};
constexpr TensorRule kBert[] = {
    {"position_embd", "embeddings.position_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"blk.{}.attn_q", "encoder.layer.{}.attention.self.query"},
    {"blk.{}.attn_k", "encoder.layer.{}.attention.self.key"},
    {"blk.{}.attn_v", "encoder.layer.{}.attention.self.value"},
    {"blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"},
    {"blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {"blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"},
    {"blk.{}.ffn_down", "encoder.layer.{}.output.dense"},
    {"blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"},
};
constexpr TensorRule kNomic[] = {
    {"token_embd_norm", "emb_ln"},
    {"blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv"},
    {"blk.{}.attn_output", "encoder.layers.{}.attn.out_proj"},
    {"blk.{}.attn_output_norm", "encoder.layers.{}.norm1"},
    {"blk.{}.ffn_gate", "encoder.layers.{}.mlp.fc12"},
    {"blk.{}.ffn_up", "encoder.layers.{}.mlp.fc11"},
    {"blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"},
    {"blk.{}.layer_output_norm", "encoder.layers.{}.norm2"},
};

void configure_encoder(GgufConfig& c, const char* architecture, const char* model_type) {
  c.architecture(architecture, model_type);
  c.sizes(Causal::kNo);
  c.heads();
  c.integer("feed_forward_length", "intermediate_size");
  c.layer_norm("layer_norm_eps");
  const TensorEntry* types = c.tensor("token_types.weight");
  c.hf["type_vocab_size"] = types == nullptr ? 0 : types->shape.rank() == 1 ? 1 : types->shape[0];
  for (const char* key : {"num_key_value_heads", "head_dim", "tie_word_embeddings"}) c.rename(key, "");
}

void configure_bert(GgufConfig& c) {
  configure_encoder(c, "BertModel", "bert");
  c.tensors = {kBert, kEmbeddings};
}

void configure_nomic_bert(GgufConfig& c) {
  configure_encoder(c, "NomicBertModel", "nomic_bert");
  c.rope();
  c.rename("rope_theta", "rotary_emb_base");
  c.tensors = {kNomic, kEmbeddings};
}

constexpr GgufArchitecture kArchitectures[] = {{"bert", configure_bert}, {"nomic-bert", configure_nomic_bert}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice
