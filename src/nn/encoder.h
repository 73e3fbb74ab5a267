// The encoder that BERT and its relatives are: embeddings of words, positions and token types, blocks of attention over
// the whole text and an MLP (BERT: Devlin et al. 2018, arXiv:1810.04805). A family fills in EncoderSpec.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/attention/attention.h"
#include "nn/attention/rope.h"
#include "nn/mlp.h"
#include "nn/model.h"
#include "nn/pooled.h"

namespace sluice {

// Where norms are in a block: x = norm(x + half(x)), or x += half(norm(x)).
enum class NormPlacement { kAfter, kBefore };

struct EncoderLayerSpec {
  std::string name{};      // below body; layers of equal name share their weights
  int window = 0;          // > 0: a row sees only positions less than that far away
  int rope = 0;            // index into EncoderSpec::ropes, if there are any
  bool first_norm = true;  // kBefore: of the attention's input
};

// Where tensors are. An empty name: there is no such part.
struct EncoderNames {
  std::string body{};  // the checkpoint's own, see below_body()
  std::string words = "embeddings.word_embeddings";
  std::string positions = "embeddings.position_embeddings";
  std::string types = "embeddings.token_type_embeddings";
  std::string embedding_norm = "embeddings.LayerNorm";
  std::string projection{};      // from the embeddings' width to the hidden one
  std::string attention_norm{};  // below a layer
  std::string mlp_norm{};        // below a layer
  std::string final_norm{};      // kBefore
};

struct EncoderSpec {
  std::string family{};
  int vocab = 0;
  int hidden = 0;
  int embedding_width = 0;  // with a projection
  int max_positions = 0;
  int position_offset = 0;  // row of the table of positions for the first token
  int types = 0;            // token types
  NormPlacement placement = NormPlacement::kAfter;
  NormSpec norm{};
  AttentionSpec attention{};  // not causal; tensor names are below a layer, as are the MLP's
  MlpSpec mlp{};
  std::vector<EncoderLayerSpec> layers{};
  std::vector<RopeSpec> ropes{};
  EncoderNames names{};
  // A table of biases by buckets of distances, for all layers (T5: Raffel et al. 2019, arXiv:1910.10683); empty: none.
  std::string relative_bias{};  // tensor [buckets, heads], below body
  int relative_buckets = 0;
};

// The hidden states of every row.
std::unique_ptr<Model> encoder(EncoderSpec spec, LoadContext& context, int max_len);

// `prefix` when the checkpoint stores the bare model below it, else nothing: both are published.
std::string below_body(const LoadContext& context, const std::string& prefix, const std::string& tensor);

// What a family does with its spec: the hidden states for Task::kEmbed, and for kScore the labels' scores by `head`
// (names from the top of the checkpoint), whose last layer gets its outputs from the configuration. Tensors below
// `unused` belong to pretraining heads and poolers, and are left alone.
std::unique_ptr<Model> encoder_for_task(EncoderSpec spec, LoadContext& context, int max_len, ops::Pooling pooling,
                                        std::vector<DenseSpec> head, const std::vector<std::string>& unused);

}  // namespace sluice
