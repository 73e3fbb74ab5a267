// Grouped-query attention over the paged KV cache, in every variant that the families in src/models use. AttentionSpec
// is data: one table of sizes and kinds per model, no code per family.
// Fields that one family alone sets (value_scale, chunk, q_rank, softplus_gate, sub_norm, norm_per_head_tensors) act
// inside the layer, so a family that kept them would have to copy it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/layers.h"
#include "nn/token_mixer.h"

namespace sluice {

// Which norms are applied to queries and keys.
enum class QkNorm {
  kNone,
  kHead,           // each head is normed separately; all heads share one weight
  kHeadAfterRope,  // like kHead, but after the rotation
  kEachHead,       // each head is normed separately with a weight per head
  kProjection,     // all heads of a row are normed together
};

struct AttentionSpec {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;         // width of a head's values; 0: head_dim
  float scale = 1.0f;        // multiplies the scores
  float value_scale = 1.0f;  // multiplies the values
  bool causal = true;
  int window = 0;         // > 0: a row sees only positions less than this far away
  int chunk = 0;          // > 0: a row sees only positions of its own chunk; see ops::AttentionArgs
  float soft_cap = 0.0f;  // > 0: soft cap on the scores
  float clip = 0.0f;      // > 0: q, k and v are clamped to [-clip, clip], after norms
  bool qkv_bias = false;
  bool out_bias = false;
  bool interleaved_rope = false;
  bool transposed = false;  // weights are [inputs, outputs]
  // the sigmoid of a gate scales the heads' results: tensor `gate`, or rows of q_proj after each head's query
  bool output_gate = false;
  bool head_gates = false;     // one gate per head: tensor `gate` is [heads, hidden]
  bool gate_bias = true;       // tensor `gate` has a bias if the queries have one
  bool softplus_gate = false;  // softplus of the gate instead of its sigmoid
  int q_rank = 0;              // > 0: rank of a two-step query projection (qkv[0], norm `q_inner_norm`, `q_up`)
  bool value_norm = false;     // each head's values are normed by qk_norm_spec without a weight
  bool shared_kv = false;      // reads keys and values that another layer cached (LayerSpec::kv_from)
  bool sinks = false;          // a learned logit per head in the softmax's denominator (tensor `sink`)
  QkNorm qk_norm = QkNorm::kNone;
  NormSpec qk_norm_spec{};
  bool sub_norm = false;  // norms the heads' results before the output projection (tensor "attn_sub_norm")
  NormSpec sub_norm_spec{};
  std::vector<float> alibi_slopes{};  // [heads] or empty; ALiBi (Press et al. 2021, arXiv:2108.12409)
  // [heads, 2 * relative_reach + 1] or empty: bias added to the scores by distance; see ops::AttentionArgs.
  std::vector<float> relative_bias{};
  int relative_reach = 0;

  // Tensor names. Three names: q, k and v. Two names: q, and keys fused with values. One name: a fused projection.
  // `qkv_rows` lists the rows of the fused tensor in the order all queries (if it has them), all gates (if one name has
  // everything), all keys, all values; empty: the tensor is stored in that order.
  std::vector<std::string> qkv{"q_proj", "k_proj", "v_proj"};
  std::vector<RowRange> qkv_rows{};
  std::string q_inner_norm{}, q_up{};
  std::string gate{};  // [heads * head_dim, hidden]; used if output_gate
  std::string out = "o_proj";
  std::string q_norm = "q_norm", k_norm = "k_norm";
  std::string sink = "sinks";
  // kEachHead: the tensors are q_norm.norms.0.weight, ... instead of q_norm.weight or q_norm [heads, head_dim]
  bool norm_per_head_tensors = false;

  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  int64_t value_columns() const { return value_dim > 0 ? value_dim : head_dim; }
  int64_t v_width() const { return kv_heads * value_columns(); }
  int64_t out_width() const { return heads * value_columns(); }
};

// Rows of a fused projection that is stored by group: the queries of one kv head, its key, its value (GPT-NeoX,
// Falcon).
std::vector<RowRange> grouped_qkv_rows(const AttentionSpec& spec);

// ALiBi slopes for any number of heads. For a power of two, slope i is 2^(-8 i / heads).
std::vector<float> alibi_slopes(int heads);

// The heads of one rank. If there are more ranks than key heads, several ranks have the same key head.
struct HeadPart {
  RowRange queries, keys;
};
// nullopt: this rank has all heads.
std::optional<HeadPart> head_part(const Ranks& ranks, const AttentionSpec& spec);

// Norms queries or keys in place, on their columns of the fused projection's result.
class HeadNorm {
 public:
  HeadNorm() = default;
  // Reads the norm of `heads` heads, of which the layer has those of `part`.
  HeadNorm(const Weights& w, const std::string& name, int heads, RowRange part, const AttentionSpec& spec);
  void operator()(ops::Ctx& c, const Tensor& x) const;  // [tokens, heads * head_dim]
  // The norm in the form that a fused rotation takes. Without weights unless each head is normed separately with shared
  // weights (kHead).
  ops::HeadNorm of_heads() const { return kind_ == QkNorm::kHead ? norms_[0].of_heads() : ops::HeadNorm{}; }

 private:
  QkNorm kind_ = QkNorm::kNone;
  int heads_ = 0;            // those of this rank
  int64_t whole_ = 0;        // columns of all heads
  std::vector<Norm> norms_;  // one norm, or one per head
};

class Attention final : public TokenMixer {
 public:
  Attention(const Weights& w, const AttentionSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    with_norm(c, step, out, x, accumulate, nullptr);
  }
  void with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                 const NextNorm* next) const override;
  DType input_type(const ops::Ctx& c, int64_t rows) const override { return qkv_.input_type(c, rows); }
  int64_t floats_per_token() const override {
    const int64_t gates = spec_.head_gates ? spec_.heads + spec_.out_width() : spec_.output_gate ? spec_.q_width() : 0;
    return spec_.q_rank + spec_.q_width() + gates + spec_.out_width() + spec_.kv_width() + spec_.v_width() +
           attend_floats_;
  }
  std::optional<KvShape> kv_shape() const override {
    if (spec_.shared_kv) return std::nullopt;
    return KvShape{.kv_heads = spec_.kv_heads,
                   .head_dim = spec_.head_dim,
                   .value_dim = static_cast<int>(spec_.value_columns()),
                   .window = spec_.chunk > 0 ? spec_.chunk : spec_.window,
                   .copies = copies_};
  }
  const char* needs_places() const override;

 private:
  // The type of queries, keys and values. bf16 only if nothing but rotation and attention reads them and the cache has
  // no more bits.
  DType rows_type(const ops::Ctx& c, const TokenMixerStep& step, int64_t rows) const;
  // True if the rotation op also applies the norms of queries and keys.
  bool rotation_normalizes(const TokenMixerStep& step) const;
  // Gates the heads' results. Returns `mixed`, or new rows.
  Tensor gated(ops::Ctx& c, const Tensor& mixed, const Tensor& qkv, const Tensor& x) const;
  void rotate_and_store(ops::Ctx& c, const TokenMixerStep& step, const Tensor& q, const Tensor& k,
                        const Tensor& v) const;

  Attention(const Weights& w, const AttentionSpec& spec, int hidden, const std::optional<HeadPart>& part);

  AttentionSpec spec_;  // of this rank's heads
  int64_t whole_ = 0;   // width of the results of all heads
  int copies_ = 1;      // KvShape::copies
  int64_t attend_floats_ = 0;
  Linear qkv_, q_up_, gate_, out_;
  HeadNorm q_norm_, k_norm_;
  Norm q_inner_norm_, value_norm_, sub_norm_;
  Vector sinks_, slopes_, relative_bias_;
};

}  // namespace sluice
