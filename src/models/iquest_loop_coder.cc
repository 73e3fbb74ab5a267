// IQuest Coder Loop: Llama whose layers run several times. From the second loop on, a layer attends twice: to the first
// loop's keys and values, and within a window to those of the loop itself. A gate per head mixes both results.
#include <fmt/core.h>

#include "nn/decoder_config.h"

namespace sluice::models::iquest_loop_coder {
namespace {

// One output per head, each from its own head's query: sigmoid(weight[h] . q[h] + bias[h]).
class HeadGate {
 public:
  HeadGate(const Weights& w, int heads, int head_dim)
      : weight_(w.context(), w.context().dtype, heads, int64_t{heads} * head_dim),
        bias_(w.context(), w.vector("bias", heads)) {
    const std::vector<float> rows = w.vector("weight", Shape{heads, head_dim});
    if (rows.empty()) return;
    // One matmul serves all heads: row h is zero except for the columns of head h.
    const int64_t columns = int64_t{heads} * head_dim;
    std::vector<float> matrix(static_cast<size_t>(heads * columns), 0.0f);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(rows.begin() + h * head_dim, head_dim, matrix.begin() + h * columns + h * head_dim);
    }
    weight_.pack(w.context(), 0, Tensor(reinterpret_cast<std::byte*>(matrix.data()), &kFloat32, {heads, columns}));
  }

  // The gates' logits [tokens, heads] of the queries [tokens, heads * head_dim].
  Tensor operator()(ops::Ctx& c, const Tensor& q) const {
    const Tensor logits = c.arena.take(&kFloat32, {q.rows(), weight_.view().n});
    ops::matmul(c, {.out = logits, .x = q, .weight = &weight_.view(), .bias = bias_.data()});
    return logits;
  }

 private:
  PackedWeight weight_;
  Vector bias_;
};

class LoopAttention final : public TokenMixer {
 public:
  // `window`: of the keys of the loop's own, from the second loop on.
  LoopAttention(const Weights& w, const Weights& gate, const AttentionSpec& s, int hidden, int window)
      : spec_(s),
        window_(window),
        qkv_(w, {{"q_proj", s.q_width()}, {"k_proj", s.kv_width()}, {"v_proj", s.kv_width()}}, hidden, false),
        out_(w, {{"o_proj", hidden}}, s.q_width(), false),
        gate_(gate, s.heads, s.head_dim) {
    w.context().note_attention(s.heads, s.head_dim);
  }

  DType input_type(const ops::Ctx& c, int64_t rows) const override { return qkv_.input_type(c, rows); }
  std::optional<KvShape> kv_shape() const override {
    return KvShape{.kv_heads = spec_.kv_heads, .head_dim = spec_.head_dim, .value_dim = spec_.head_dim};
  }
  int64_t floats_per_token() const override { return 3 * spec_.q_width() + 2 * spec_.kv_width() + spec_.heads; }

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const int64_t q_width = spec_.q_width(), kv_width = spec_.kv_width();
    const Tensor qkv = qkv_(c, x);
    const Tensor q = qkv.slice_columns(0, q_width);
    ops::rope_store(
        c, step.rotation(q, qkv.slice_columns(q_width, kv_width), qkv.slice_columns(q_width + kv_width, kv_width)));
    const Tensor own = c.arena.take(&kFloat32, {x.rows(), q_width});
    attend(c, step, own, q, step.earlier_kv != nullptr ? window_ : 0);
    if (step.earlier_kv == nullptr) return out_.into(c, out, own, accumulate);
    const Tensor first = c.arena.take(&kFloat32, own.shape);
    TokenMixerStep of_first = step;
    of_first.kv = step.earlier_kv;
    attend(c, of_first, first, q, 0);
    mix(c, own, first, q);
    out_.into(c, out, own, accumulate);
  }

 private:
  void attend(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& q, int window) const {
    ops::AttentionArgs args = step.attention(out, q);
    args.heads = spec_.heads, args.scale = spec_.scale, args.window = window;
    ops::attention(c, args);
  }

  // own = gate * first + (1 - gate) * own, for each head. Changes `first`.
  void mix(ops::Ctx& c, const Tensor& own, const Tensor& first, const Tensor& q) const {
    const auto by_head = [&](const Tensor& x, int64_t width) {
      return Tensor(x.data, &kFloat32, {x.rows() * spec_.heads, width});
    };
    const Tensor gate = gate_(c, q);
    ops::unary(c, gate, ops::Activation::kSigmoid);
    ops::add(c, first, own, -1.0f);
    ops::combine(c, {.out = by_head(own, spec_.head_dim),
                     .x = by_head(first, spec_.head_dim),
                     .weights = by_head(gate, 1),
                     .places = {},
                     .accumulate = true});
  }

  AttentionSpec spec_;
  int window_;
  Linear qkv_, out_;
  HeadGate gate_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "iquest_loop_coder");
  const int per_loop = s.depth();
  const int loops = read_positive(config, "loop_num", config.get("loop_num", 2));
  constexpr int kMostLoops = 64;
  if (loops > kMostLoops) config.refuse("loop_num", fmt::format("must be at most {}", kMostLoops));
  const int window = read_positive(config, "loop_window_size", config.get("loop_window_size", 64));
  for (int i = 0; i < per_loop; ++i) {
    s.layers[i].mixer = [a = s.attention, window, i](const Weights& w, int hidden) {
      const Weights gate = Weights(w.context()) / "model.gate_projections" / std::to_string(i);
      return std::make_unique<LoopAttention>(w / "self_attn", gate, a, hidden, window);
    };
  }
  for (int i = per_loop; i < loops * per_loop; ++i) {
    const int first = i % per_loop;
    s.layers.push_back({.window = window, .kv_from = first, .same_as = first, .mixer = s.layers[first].mixer});
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "iquest_loop_coder", .architectures = {"IQuestLoopCoderForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::iquest_loop_coder
