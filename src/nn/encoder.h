// The encoder that BERT and its relatives share: embeddings of words, positions and token types, then blocks of
// bidirectional attention and an MLP (BERT: Devlin et al. 2018, arXiv:1810.04805). A family fills in EncoderSpec.
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

// Where a block's norms are: kAfter is x = norm(x + sublayer(x)), kBefore is x += sublayer(norm(x)).
enum class NormPlacement { kAfter, kBefore };

struct EncoderLayerSpec {
  std::string name{};      // below body; layers with equal names share their weights
  int window = 0;          // > 0: a row sees only positions less than this far away
  int rope = 0;            // index into EncoderSpec::ropes; ignored if that is empty
  bool first_norm = true;  // kBefore: norm of the attention's input
};

// Tensor names. An empty name means that the part does not exist.
struct EncoderNames {
  std::string body{};  // prefix of all tensors; see below_body()
  std::string words = "embeddings.word_embeddings";
  std::string positions = "embeddings.position_embeddings";
  std::string types = "embeddings.token_type_embeddings";
  std::string embedding_norm = "embeddings.LayerNorm";
  std::string projection{};      // projection from embedding_width to hidden
  std::string attention_norm{};  // below a layer
  std::string mlp_norm{};        // below a layer
  std::string final_norm{};      // kBefore
};

struct EncoderSpec {
  std::string family{};
  int vocab = 0;
  int hidden = 0;
  int embedding_width = 0;  // width of the embeddings; used if there is a projection
  int max_positions = 0;
  int position_offset = 0;  // position table row of the first token
  int types = 0;            // number of token types
  NormPlacement placement = NormPlacement::kAfter;
  NormSpec norm{};
  AttentionSpec attention{};  // not causal; its tensor names, like the MLP's, are below a layer
  MlpSpec mlp{};
  std::vector<EncoderLayerSpec> layers{};
  std::vector<RopeSpec> ropes{};
  EncoderNames names{};
  // Table of biases by bucket of distance, shared by all layers (T5: Raffel et al. 2019, arXiv:1910.10683); empty:
  // none.
  std::string relative_bias{};  // tensor [buckets, heads], below body
  int relative_buckets = 0;
};

// Builds a model that returns the hidden states of every row.
std::unique_ptr<Model> encoder(EncoderSpec spec, LoadContext& context, int max_len);

// Returns `prefix` if the checkpoint stores the bare model below it, else an empty string. Both kinds are published.
std::string below_body(const LoadContext& context, const std::string& prefix, const std::string& tensor);

// Builds the model for context.task: hidden states for Task::kEmbed, label scores for kScore. `head` lists the dense
// layers of the classifier, with names from the top of the checkpoint; its last layer gets its outputs from the
// configuration. Tensors below `unused` belong to pretraining heads and poolers and are ignored.
std::unique_ptr<Model> encoder_for_task(EncoderSpec spec, LoadContext& context, int max_len, ops::Pooling pooling,
                                        std::vector<DenseSpec> head, const std::vector<std::string>& unused);

}  // namespace sluice
