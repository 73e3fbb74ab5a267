// JetMoE (arXiv:2404.07413): experts in attention and in the MLP. Attention experts hold the projections of queries and
// results; all of them share the keys and values.
#include <algorithm>
#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::jetmoe {
namespace {

struct MixtureSpec {
  int experts = 0;
  ops::Routing routing{};
  int kv_heads = 0, head_dim = 0;
  int64_t width() const { return int64_t{kv_heads} * head_dim; }
};

class MixtureOfAttention final : public TokenMixer {
 public:
  MixtureOfAttention(const Weights& w, const MixtureSpec& s, int hidden)
      : spec_(s),
        hidden_(hidden),
        kv_(w, {{"kv_proj", 2 * s.width()}}, hidden, false),
        router_(w / "experts", {{"router.layer", s.experts}}, hidden, false),
        queries_(w / "experts", "input_linear", s.experts, s.width(), hidden),
        results_(w / "experts", "output_linear", s.experts, hidden, s.width()) {
    int64_t& widest = w.context().widest_matmul;
    widest = std::max(widest, s.routing.top_k * std::max<int64_t>(hidden, s.width()));
    results_.set_bias_of_sum(w.context(), (w / "experts").vector("bias", hidden));
  }

  std::optional<KvShape> kv_shape() const override {
    return KvShape{.kv_heads = spec_.kv_heads, .head_dim = spec_.head_dim, .value_dim = spec_.head_dim};
  }

  int64_t floats_per_token() const override {
    return 2 * spec_.width() + spec_.experts + Choice::floats_per_token(spec_.routing, spec_.experts) +
           spec_.routing.top_k * (hidden_ + 3 * spec_.width());
  }

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const int64_t top_k = spec_.routing.top_k, width = spec_.width(), places = x.rows() * top_k;
    const Tensor kv = kv_(c, x);
    const Choice choice(c, router_(c, x), spec_.routing);
    const Tensor by_place = c.arena.take(&kFloat32, {places, hidden_});
    ops::gather_rows(c, by_place, x, choice.rows);
    const Tensor heads_by_place = c.arena.take(&kFloat32, {places, width});
    queries_.experts(c, heads_by_place, by_place, choice.starts);

    // [tokens, top_k * width]: the chosen experts of a token side by side.
    const Tensor q = c.arena.take(&kFloat32, {x.rows(), top_k * width}), mixed = c.arena.take(&kFloat32, q.shape);
    const Tensor q_entries(q.data, &kFloat32, {places, width}), mixed_entries(mixed.data, &kFloat32, {places, width});
    ops::gather_rows(c, q_entries, heads_by_place, choice.places);
    attend(c, step, q, kv, mixed);
    ops::gather_rows(c, heads_by_place, mixed_entries, choice.entries);
    results_.experts(c, by_place, heads_by_place, choice.starts);
    ops::combine(
        c, {.out = out, .x = by_place, .weights = choice.weights, .places = choice.places, .accumulate = accumulate});
  }

 private:
  // Attends separately for each choice, because the heads of each choice meet the kv heads in the same order.
  void attend(ops::Ctx& c, const TokenMixerStep& step, const Tensor& q, const Tensor& kv, const Tensor& mixed) const {
    const int64_t width = spec_.width();
    ops::rope_store(c, step.rotation(q, kv.slice_columns(0, width), kv.slice_columns(width, width)));
    for (int j = 0; j < spec_.routing.top_k; ++j) {
      ops::AttentionArgs args =
          step.attention(mixed.slice_columns(j * width, width), q.slice_columns(j * width, width));
      args.heads = spec_.kv_heads;
      args.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
      ops::attention(c, args);
    }
  }

  MixtureSpec spec_;
  int64_t hidden_;
  Linear kv_, router_;
  StackedLinear queries_, results_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s =
      read_sizes(config, "jetmoe", {.heads = "num_key_value_heads", .kv_heads = nullptr, .heads_divide_hidden = false});
  s.final_norm = NormSpec{.eps = config.get("rms_norm_eps", 1e-6f)};  // does not apply to the layers' norms
  s.tied_head = config.get("tie_word_embeddings", true);
  s.mlp.activation = read_activation(config, "activation_function", "silu");
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = true;  // softmax over the chosen experts
  s.moe.router = "router.layer";
  s.moe.layout = ExpertLayout::kStacked;
  s.moe.gate = "input_linear";
  s.moe.down = "output_linear";
  s.moe.bias = ExpertBias::kSum;

  MixtureSpec m{.experts = s.moe.experts, .routing = s.moe, .kv_heads = s.attention.kv_heads};
  m.head_dim = read_positive(config, "kv_channels", config.get("kv_channels", 128));
  if (config.get("num_attention_heads", m.kv_heads * s.moe.top_k) != m.kv_heads * s.moe.top_k) {
    config.refuse("num_attention_heads", "must equal num_key_value_heads * num_experts_per_tok");
  }
  s.ropes = {read_rope(config, m.head_dim, s.max_positions)};
  for (LayerSpec& layer : s.layers) {
    layer.mixer = [m](const Weights& w, int hidden) {
      return std::make_unique<MixtureOfAttention>(w / "self_attention", m, hidden);
    };
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "jetmoe", .architectures = {"JetMoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::jetmoe
