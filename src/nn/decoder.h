// The decoder that most families share: embedding, blocks of a token mixer (usually causal attention) and an MLP, a
// final norm and a head (Llama: Touvron et al. 2023, arXiv:2302.13971). A family fills in DecoderSpec. A field enters
// the spec when two families need it, or when one line of data saves a family its own layer code.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention/attention.h"
#include "nn/attention/rope.h"
#include "nn/auxiliary_stream.h"
#include "nn/feed_forward.h"
#include "nn/hidden_input.h"
#include "nn/mlp.h"
#include "nn/model.h"
#include "nn/moe/moe.h"
#include "nn/token_mixer.h"

namespace sluice {

// A layer has two sublayers: the token mixer, which mixes the tokens of a sequence, and the MLP, which treats each
// token separately. Some families have layers with only one of them.
enum class Sublayers { kBoth, kTokenMixer, kMlp };

// How a sublayer's result joins the residual stream: x = kept * x + added * sublayer(x). With kept 0, the result
// replaces the stream, and the sublayer's input has a norm.
struct Blend {
  float kept = 1.0f;
  float added = 1.0f;
};

// Tensor names. An empty norm name means that the norm does not exist.
struct DecoderNames {
  std::string body = "model";
  std::string embedding = "embed_tokens";  // below `body`
  std::string embedding_norm{};
  std::string position_table{};  // below `body`; learned positions
  std::string layers = "layers";
  std::string norm = "norm";
  std::string head = "lm_head";
  // Below a layer:
  std::string attention = "self_attn";             // LayerSpec::mixer ignores this and finds its own tensors
  std::string mlp = "mlp";                         // the MLP or the experts
  std::string attention_norm = "input_layernorm";  // norm of the token mixer's input
  std::string attention_post_norm{};               // norm of the token mixer's result, before it is added
  std::string mlp_norm = "post_attention_layernorm";
  std::string mlp_post_norm{};
};

// Settings that differ between layers.
struct LayerSpec {
  int window = 0;                // sliding window in tokens, 0 for all
  int rope = 0;                  // index into DecoderSpec::ropes; -1: no rotation; ignored if `ropes` is empty
  int query_rope = -1;           // index of the queries' own rotation; -1: the same as for keys
  int kv_from = -1;              // earlier layer whose keys and values the mixer reads; -1: only the layer's own
  bool follows = false;          // reads what the layer before it left in TokenMixerStep::selected
  int same_as = -1;              // earlier layer whose weights this one uses again, with its own cache; -1: none
  float attention_scale = 1.0f;  // multiplies AttentionSpec::scale
  bool moe = false;              // experts instead of the MLP
  int top_k = 0;                 // > 0: replaces MoeSpec::top_k
  Sublayers sublayers = Sublayers::kBoth;
  Blend mixer_blend{}, mlp_blend{};
  MakeTokenMixer mixer{};               // replaces DecoderSpec::attention
  std::optional<MlpSpec> mlp{};         // replaces DecoderSpec::mlp
  MakeFeedForward feed_forward{};       // replaces the MLP and the experts
  std::optional<DecoderNames> names{};  // names below the layer; replaces DecoderSpec::names
  std::string path{};  // where its tensors are, below DecoderNames::body; empty: `layers` and its index
};

enum class Positions { kRope, kLearned, kSinusoidal, kAlibi };

struct DecoderSpec {
  std::string family;
  int vocab = 0;
  int hidden = 0;
  int max_positions = 0;
  NormSpec norm{};
  std::optional<NormSpec> final_norm{};                            // norm after the last layer; empty: `norm`
  std::optional<NormSpec> attention_post_norm{}, mlp_post_norm{};  // norms of results; empty: `norm`
  AttentionSpec attention{};
  MlpSpec mlp{};
  MoeSpec moe{};
  std::vector<LayerSpec> layers{};
  // Attention and MLP read the same residual, and their results are added together (GPT-J). Without an MLP norm they
  // share one norm.
  bool parallel = false;
  // Post-norm: each sublayer norms its sum with the residual, x = norm(x + sublayer(x)) (the original transformer).
  bool sum_norms = false;
  // A sublayer's norm replaces the residual stream: x = kept * norm(x) + added * sublayer(norm(x)).
  bool normed_residual = false;
  // > 0: width of embedding and head; projections (project_in, project_out) connect it to `hidden`
  int embedding_dim = 0;
  bool tied_head = false;  // the head is the embedding table
  bool head_bias = false;
  bool unit_head = false;  // rows of the head are scaled to unit length
  float embedding_scale = 1.0f;
  bool scaled_vectors = false;  // vectors of Batch::given are embeddings that are scaled already
  float residual_scale = 1.0f;  // multiplies the results of a block's sublayers
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  // > 0: soft cap on the logits
  Positions positions = Positions::kRope;
  int position_offset = 0;  // learned or sinusoidal positions: table row of the first token
  std::vector<RopeSpec> ropes{};
  DecoderNames names{};
  MakeAuxiliaryStream auxiliary_stream{};         // may be null
  std::optional<HiddenInputSpec> hidden_input{};  // the decoder continues a model; empty: it begins with the tokens
  TokenTables tables{};                           // with hidden_input: those of that model

  int depth() const { return static_cast<int>(layers.size()); }
  const DecoderNames& names_of(const LayerSpec& layer) const { return layer.names ? *layer.names : names; }
};

std::unique_ptr<Model> decoder_lm(DecoderSpec spec, LoadContext& context, int max_len);

}  // namespace sluice
