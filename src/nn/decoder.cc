// The decoder on the op table.
#include "nn/decoder.h"

#include <fmt/core.h>

#include <cmath>

#include "nn/layers.h"
#include "sluice/error.h"

namespace sluice {
namespace {

struct Attention {
  Linear qkv, out;
  Attention(const Weights& w, const DecoderSpec& s)
      : qkv(w, {{"q_proj", int64_t{s.heads} * s.head_dim}, {"k_proj", int64_t{s.kv_heads} * s.head_dim},
                {"v_proj", int64_t{s.kv_heads} * s.head_dim}}, s.hidden, s.qkv_bias),
        out(w, {{"o_proj", s.hidden}}, int64_t{s.heads} * s.head_dim, s.attention_out_bias) {}
};

struct Mlp {
  Linear gate_up, down;
  Mlp(const Weights& w, const DecoderSpec& s)
      : gate_up(w, {{"gate_proj", s.inner}, {"up_proj", s.inner}}, s.hidden, s.mlp_bias),
        down(w, {{"down_proj", s.hidden}}, s.inner, s.mlp_bias) {}
};

struct Layer {
  RmsNorm attention_norm, mlp_norm;
  Attention attention;
  Mlp mlp;
  Layer(const Weights& w, const DecoderSpec& s)
      : attention_norm(w, "input_layernorm", s.hidden, s.norm_eps),
        mlp_norm(w, "post_attention_layernorm", s.hidden, s.norm_eps),
        attention(w / "self_attn", s),
        mlp(w / "mlp", s) {}
};

class DecoderLm final : public Model {
 public:
  DecoderLm(DecoderSpec spec, LoadContext& context, int max_len) : spec_(std::move(spec)) {
    const int positions = max_len > 0 ? max_len : spec_.max_positions;
    shape_ = {.family = spec_.family, .vocab = spec_.vocab, .max_positions = spec_.max_positions, .kv = {}, .rope_class = {}};
    shape_.rope_class = [rope = spec_.rope](int prompt_len) { return rope_class(rope, prompt_len); };
    shape_.kv.assign(spec_.layers, {spec_.kv_heads, spec_.head_dim, spec_.head_dim});
    const Weights w(context);
    embedding_ = Embedding(w / "model", "embed_tokens", spec_.vocab, spec_.hidden);
    for (int i = 0; i < spec_.layers; ++i) layers_.emplace_back(w / "model" / "layers" / std::to_string(i), spec_);
    norm_ = RmsNorm(w / "model", "norm", spec_.hidden, spec_.norm_eps);
    const bool tied = spec_.tied_head;
    head_ = Linear(tied ? w / "model" : w, {{tied ? "embed_tokens" : "lm_head", spec_.vocab}}, spec_.hidden, false);
    if (tied && w.has("lm_head.weight")) context.used.insert("lm_head.weight");  // some checkpoints store the copy
    rope_ = Rope(spec_.rope, positions, context.pool, context.dry);
    context.weight_bytes += rope_.bytes();
  }

  const ModelShape& shape() const override { return shape_; }

  size_t activation_bytes(int tokens, int rows) const override {
    const int64_t qkv = int64_t{spec_.heads + 2 * spec_.kv_heads} * spec_.head_dim;
    const int64_t attention = spec_.hidden + qkv + int64_t{spec_.heads} * spec_.head_dim;
    const int64_t mlp = spec_.hidden + 3 * int64_t{spec_.inner};
    const int64_t per_token = spec_.hidden + std::max(attention, mlp);
    const int64_t per_row = 2 * int64_t{spec_.hidden} + spec_.vocab;
    return (tokens * per_token + rope_.step_floats(tokens) + rows * per_row) * sizeof(float) + 16 * 64;
  }

  Tensor forward(ops::Ctx& c, const Batch& batch, KvCache& kv) override {
    const Rope::Rows rope = rope_.rows(c.arena, batch);
    Tensor x = embedding_(c, batch.tokens);
    for (int i = 0; i < spec_.layers; ++i) {
      const Layer& layer = layers_[i];
      {
        Arena::Scope scope(c.arena);
        attend(c, batch, rope, kv.layer(i), i, x, layer.attention_norm(c, x));
      }
      Arena::Scope scope(c.arena);
      const Tensor gate_up = layer.mlp.gate_up(c, layer.mlp_norm(c, x));
      const Tensor inner = c.arena.take(&kFloat32, {x.rows(), spec_.inner});
      ops::glu(c, inner, gate_up, spec_.activation);
      layer.mlp.down.add_to(c, x, inner);
    }
    const Tensor rows = c.arena.take(&kFloat32, {static_cast<int64_t>(batch.sample_rows.size()), spec_.hidden});
    ops::gather_rows(c, rows, x, batch.sample_rows);
    return head_(c, norm_(c, rows));
  }

 private:
  // residual += attention(x)
  void attend(ops::Ctx& c, const Batch& batch, const Rope::Rows& rope, const KvCache::Layer& cache, int i,
              const Tensor& residual, const Tensor& x) {
    const Attention& attention = layers_[i].attention;
    const Tensor qkv = attention.qkv(c, x);
    const int64_t q_width = int64_t{spec_.heads} * spec_.head_dim;
    const int64_t kv_width = int64_t{spec_.kv_heads} * spec_.head_dim;
    const Tensor q = qkv.slice_columns(0, q_width);
    ops::rope_store(c, {.q = q,
                        .k = qkv.slice_columns(q_width, kv_width),
                        .v = qkv.slice_columns(q_width + kv_width, kv_width),
                        .cos_sin = rope.cos_sin,
                        .interleaved = spec_.rope.interleaved,
                        .k_cache = cache.k,
                        .v_cache = cache.v,
                        .positions = rope.rows,
                        .slots = batch.slots});
    const Tensor out = c.arena.take(&kFloat32, {x.rows(), q_width});
    ops::attention(c, {.out = out,
                       .q = q,
                       .k_cache = cache.k,
                       .v_cache = cache.v,
                       .query_start = batch.query_start,
                       .kv_len = batch.kv_len,
                       .block_table = batch.block_table,
                       .block_table_stride = batch.block_table_stride,
                       .heads = spec_.heads,
                       .scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim)),
                       .window = spec_.windows[i]});
    attention.out.add_to(c, residual, out);
  }

  DecoderSpec spec_;
  ModelShape shape_;
  Embedding embedding_;
  std::vector<Layer> layers_;
  RmsNorm norm_;
  Linear head_;
  Rope rope_;
};

int positive(const Config& config, const char* key, int value) {
  if (value < 1) config.refuse(key, fmt::format("{} is not positive", value));
  return value;
}

}  // namespace

DecoderSpec llama_like(const Config& c, std::string family) {
  DecoderSpec s;
  s.family = std::move(family);
  s.vocab = positive(c, "vocab_size", c.at<int>("vocab_size"));
  s.hidden = positive(c, "hidden_size", c.at<int>("hidden_size"));
  s.layers = positive(c, "num_hidden_layers", c.at<int>("num_hidden_layers"));
  s.heads = positive(c, "num_attention_heads", c.at<int>("num_attention_heads"));
  s.kv_heads = positive(c, "num_key_value_heads", c.get("num_key_value_heads", s.heads));
  s.inner = positive(c, "intermediate_size", c.at<int>("intermediate_size"));
  s.max_positions = positive(c, "max_position_embeddings", c.get("max_position_embeddings", 2048));
  if (s.heads % s.kv_heads != 0) {
    c.refuse("num_key_value_heads", fmt::format("{} does not divide num_attention_heads {}", s.kv_heads, s.heads));
  }
  if (!c.has("head_dim") && s.hidden % s.heads != 0) {
    c.refuse("num_attention_heads", fmt::format("{} does not divide hidden_size {}", s.heads, s.hidden));
  }
  s.head_dim = positive(c, "head_dim", c.get("head_dim", s.hidden / s.heads));
  s.norm_eps = static_cast<float>(c.get("rms_norm_eps", 1e-6));
  const auto activation = c.get("hidden_act", std::string("silu"));
  s.activation = ops::parse_activation(activation);
  s.tied_head = c.get("tie_word_embeddings", false);
  s.rope = read_rope(c, s.head_dim, s.max_positions);
  s.windows.assign(static_cast<size_t>(s.layers), 0);
  return s;
}

std::unique_ptr<Model> decoder_lm(DecoderSpec spec, LoadContext& context, int max_len) {
  return std::make_unique<DecoderLm>(std::move(spec), context, max_len);
}

}  // namespace sluice
