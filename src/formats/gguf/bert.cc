// GGUF architectures of encoders: BERT, Nomic BERT, ModernBERT, EuroBERT and Jina's. The converter writes RoBERTa and
// XLM-R as BERT too; their positions start at 0 in the file. Embedding files lack poolers and heads, which embeddings
// do not need. Reranker files (pooling_type 4) have heads, and pool by the first token.
#include <fmt/core.h>

#include "formats/gguf/architecture.h"

namespace sluice::gguf::bert {
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

constexpr TensorRule kModern[] = {
    {"token_embd", "embeddings.tok_embeddings"},
    {"token_embd_norm", "embeddings.norm"},
    {"output_norm", "final_norm"},
    {"blk.{}.attn_norm", "layers.{}.attn_norm"},
    {"blk.{}.attn_qkv", "layers.{}.attn.Wqkv"},
    {"blk.{}.attn_output", "layers.{}.attn.Wo"},
    {"blk.{}.ffn_norm", "layers.{}.mlp_norm"},
    {"blk.{}.ffn_up", "layers.{}.mlp.Wi"},
    {"blk.{}.ffn_down", "layers.{}.mlp.Wo"},
    {"cls", "head.dense"},
    {"cls.norm", "head.norm"},
    {"cls.output", "classifier"},
};
constexpr TensorRule kJina3[] = {
    {"token_embd_norm", "emb_ln"},
    {"blk.{}.attn_qkv", "encoder.layers.{}.mixer.Wqkv"},
    {"blk.{}.attn_output", "encoder.layers.{}.mixer.out_proj"},
    {"blk.{}.attn_output_norm", "encoder.layers.{}.norm1"},
    {"blk.{}.ffn_up", "encoder.layers.{}.mlp.fc1"},
    {"blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"},
    {"blk.{}.layer_output_norm", "encoder.layers.{}.norm2"},
};
constexpr TensorRule kHead[] = {{"cls", "pooler.dense"}, {"cls.output", "classifier"}};

// Reads a reranker's labels and sets its `architecture`. Returns whether the file is a reranker.
bool read_labels(GgufConfig& c, const char* architecture, const char* model_type) {
  constexpr int64_t kRank = 4;
  if (c.integer_or("pooling_type", 0) != kRank) return false;
  const TensorEntry* scores = c.tensor("cls.output.weight");
  if (scores == nullptr || scores->shape.rank() < 1) {
    c.refuse("pooling_type", "4 requires the tensor cls.output.weight");
  }
  const int64_t labels = scores->shape.rank() == 1 ? 1 : scores->shape[0];
  c.architecture(architecture, model_type);
  Json names = Json::object();
  for (int64_t i = 0; i < labels; ++i) names[std::to_string(i)] = fmt::format("LABEL_{}", i);
  c.hf["id2label"] = std::move(names);
  c.ignore({"classifier.output_labels"});
  return true;
}

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
  if (read_labels(c, "BertForSequenceClassification", "bert")) c.tensors.push_back(kHead);
}

void configure_nomic_bert(GgufConfig& c) {
  configure_encoder(c, "NomicBertModel", "nomic_bert");
  c.rope();
  c.rename("rope_theta", "rotary_emb_base");
  c.tensors = {kNomic, kEmbeddings};
}

void configure_modern_bert(GgufConfig& c) {
  c.architecture("ModernBertModel", "modernbert");
  c.sizes(Causal::kNo);
  c.heads();
  c.rope();
  c.integer("feed_forward_length", "intermediate_size");
  c.layer_norm("norm_eps");
  c.rename("rope_theta", "global_rope_theta");
  c.hf["local_rope_theta"] = c.number_or("rope.freq_base_swa", 10000.0);
  c.integer("attention.sliding_window", "local_attention");
  c.hf["global_attn_every_n_layers"] = c.integer_or("attention.sliding_window_pattern", 3);
  for (const char* key : {"num_key_value_heads", "head_dim", "tie_word_embeddings", "partial_rotary_factor"}) {
    c.rename(key, "");
  }
  read_labels(c, "ModernBertForSequenceClassification", "modernbert");
  c.tensors = {kModern};
}

void configure_eurobert(GgufConfig& c) {
  c.architecture("EuroBertModel", "eurobert");
  c.sizes(Causal::kNo);
  c.heads();
  c.rope();
  c.integer("feed_forward_length", "intermediate_size");
  c.rms_norm();
  c.tensors = {kLlamaTensors};
}

// The file holds the weights with one task's adapters merged, or with none.
void configure_jina3(GgufConfig& c) {
  configure_encoder(c, "JinaEmbeddingsV3Model", "jina_embeddings_v3");
  c.rope();
  c.tensors = {kJina3, kEmbeddings};
}

constexpr GgufArchitecture kArchitectures[] = {{"bert", configure_bert},
                                               {"nomic-bert", configure_nomic_bert},
                                               {"modern-bert", configure_modern_bert},
                                               {"eurobert", configure_eurobert},
                                               {"jina-bert-v3", configure_jina3}};
const RegisterArchitectures registered{kArchitectures};

}  // namespace
}  // namespace sluice::gguf::bert
