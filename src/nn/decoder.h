// The decoder that most families are: embedding, blocks of a mixer (causal attention as a rule) and an MLP, a final
// norm and a head (Llama: Touvron et al. 2023, arXiv:2302.13971). A family fills in DecoderSpec; a field enters the
// spec when two families need it or when a line of data saves a family code of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention/attention.h"
#include "nn/attention/rope.h"
#include "nn/auxiliary_stream.h"
#include "nn/feed_forward.h"
#include "nn/mlp.h"
#include "nn/model.h"
#include "nn/moe/moe.h"
#include "nn/token_mixer.h"

namespace sluice {

// A layer mixes tokens, then feeds every one of them forward; in some families it only does one of these.
enum class Sublayers { kBoth, kTokenMixer, kMlp };

// How a half's result joins the residual stream: x = kept * x + added * half(x).
struct Blend {
  float kept = 1.0f;
  float added = 1.0f;
};

// Where tensors are. An empty norm name: that norm does not exist.
struct DecoderNames {
  std::string body = "model";
  std::string embedding = "embed_tokens";  // below body
  std::string embedding_norm{};
  std::string position_table{};  // below body; learned positions
  std::string layers = "layers";
  std::string norm = "norm";
  std::string head = "lm_head";
  // Below a layer:
  std::string attention = "self_attn";             // a mixer of LayerSpec finds its own tensors
  std::string mlp = "mlp";                         // or experts
  std::string attention_norm = "input_layernorm";  // of the mixer's input
  std::string attention_post_norm{};               // of its result, before it is added
  std::string mlp_norm = "post_attention_layernorm";
  std::string mlp_post_norm{};
};

// What differs from layer to layer.
struct LayerSpec {
  int window = 0;                // sliding window in tokens, 0 for all
  int rope = 0;                  // index into DecoderSpec::ropes if there are any, -1 for no rotation
  int query_rope = -1;           // the same of the queries where they have their own, -1 for that of the keys
  int kv_from = -1;              // an earlier layer, whose keys and values the mixer reads; -1: its own
  float attention_scale = 1.0f;  // times AttentionSpec::scale
  bool moe = false;              // experts in place of the MLP
  int top_k = 0;                 // > 0: in place of MoeSpec::top_k
  Sublayers sublayers = Sublayers::kBoth;
  Blend mixer_blend{}, mlp_blend{};
  MakeTokenMixer mixer{};               // in place of DecoderSpec::attention
  std::optional<MlpSpec> mlp{};         // in place of DecoderSpec::mlp
  MakeFeedForward feed_forward{};       // in place of that
  std::optional<DecoderNames> names{};  // below the layer, in place of DecoderSpec::names
};

enum class Positions { kRope, kLearned, kSinusoidal, kAlibi };

struct DecoderSpec {
  std::string family;
  int vocab = 0;
  int hidden = 0;
  int max_positions = 0;
  NormSpec norm{};
  std::optional<NormSpec> final_norm{};  // behind the last layer, in place of that
  AttentionSpec attention{};
  MlpSpec mlp{};
  MoeSpec moe{};
  std::vector<LayerSpec> layers{};
  // Attention and MLP read the same residual and are added together (GPT-J). Without an MLP norm they share one.
  bool parallel = false;
  // A half's norm is of its sum with the residual: x = norm(x + half(x)) (the first transformers).
  bool sum_norms = false;
  bool normed_residual =
      false;               // a half's norm replaces the residual stream: x = kept * norm(x) + added * half(norm(x))
  int embedding_dim = 0;   // > 0: width of embedding and head, with projections (project_in, project_out) between
  bool tied_head = false;  // the head is the embedding table
  bool head_bias = false;
  bool unit_head = false;  // rows of the head are scaled to length one
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  // of what a block's halves add
  float logit_scale = 1.0f;
  float logit_soft_cap = 0.0f;  // > 0
  Positions positions = Positions::kRope;
  int position_offset = 0;  // learned, sinusoidal: row of the table for the first token
  std::vector<RopeSpec> ropes{};
  DecoderNames names{};
  MakeAuxiliaryStream auxiliary_stream{};  // may be null

  int depth() const { return static_cast<int>(layers.size()); }
  const DecoderNames& names_of(const LayerSpec& layer) const { return layer.names ? *layer.names : names; }
};

std::unique_ptr<Model> decoder_lm(DecoderSpec spec, LoadContext& context, int max_len);

}  // namespace sluice
