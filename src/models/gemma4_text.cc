// Gemma 4, text: Gemma 3 with wider heads in full-attention layers, per-layer inputs, and keys and values that layers
// share.
#include <fmt/core.h>

#include <cmath>

#include "models/gemma.h"
#include "nn/per_layer_inputs.h"

namespace sluice::models::gemma4_text {
namespace {

constexpr const char* kRopes = R"({"sliding_attention": {"rope_type": "default", "rope_theta": 10000},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}})";

// Adds a layer's per-layer inputs and scales its whole result.
class LayerInputs final : public AuxiliaryStream {
 public:
  LayerInputs(const Weights& body, const DecoderSpec& s, const PerLayerInputSpec& spec) : has_inputs_(spec.width > 0) {
    if (has_inputs_) inputs_ = PerLayerInputs(body, spec, s.hidden);
    for (int i = 0; i < s.depth(); ++i) {
      const Weights w = body / s.names.layers / std::to_string(i);
      const std::vector<float> scalar = w.vector("layer_scalar", 1);
      scales_.push_back(scalar.empty() ? 1.0f : scalar[0]);
      if (scales_.back() > 0) continue;
      w.context().add_problem(fmt::format("tensor '{}layer_scalar' is not positive", w.prefix()));
    }
  }

  int64_t floats_per_token() const override { return has_inputs_ ? inputs_.floats_kept() + inputs_.floats_taken() : 0; }
  size_t tensors() const override { return 4; }
  bool capturable() const override { return !has_inputs_ || inputs_.capturable(); }
  bool reads_tokens() const override { return has_inputs_; }
  std::vector<Shape> shapes(int64_t tokens) const override {
    return has_inputs_ ? std::vector<Shape>{{tokens, inputs_.floats_kept()}} : std::vector<Shape>{};
  }
  Tensors begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) override {
    return has_inputs_ ? Tensors{inputs_.of(c, batch, x)} : Tensors{};
  }
  void before_layer(ops::Ctx&, int, const Tensors&, const Tensor&) const override {}
  void after_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const override {
    Arena::Scope scope(c.arena);
    if (has_inputs_) ops::add(c, x, inputs_.added(c, layer, auxiliary[0], x));
    if (scales_[layer] != 1.0f) ops::map(c, x, ops::Map::kScale, scales_[layer]);
  }
  void end(ops::Ctx&, const BatchView&, const Tensors&, const Tensor&) const override {}

 private:
  bool has_inputs_;
  PerLayerInputs inputs_;
  std::vector<float> scales_;
};

// An MLP beside experts, each with its own norms before and after it. The router has its own norm of the residual too.
class MlpBesideExperts final : public FeedForward {
 public:
  MlpBesideExperts(const Weights& w, const MlpSpec& mlp, const MoeSpec& moe, const NormSpec& norm, int hidden)
      : mlp_norm_(w, "pre_feedforward_layernorm", hidden, norm),
        mlp_post_norm_(w, "post_feedforward_layernorm_1", hidden, norm),
        moe_norm_(w, "pre_feedforward_layernorm_2", hidden, norm),
        moe_post_norm_(w, "post_feedforward_layernorm_2", hidden, norm),
        router_(w / "router", {{"proj", moe.experts}}, hidden, false),
        mlp_(w / "mlp", mlp, hidden),
        moe_(w, moe, hidden) {
    std::vector<float> scale = (w / "router").vector("scale", hidden);
    for (float& v : scale) v /= std::sqrt(static_cast<float>(hidden));
    router_norm_ = Norm(w.context(), scale, norm);
    floats_ =
        3 * int64_t{hidden} + moe.experts + std::max(Mlp::floats_per_token(mlp), Moe::floats_per_token(moe, hidden));
  }

  void operator()(ops::Ctx& c, std::span<const Tensor>, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const Tensor first = accumulate ? c.arena.take(&kFloat32, x.shape) : out;
    const Tensor second = c.arena.take(&kFloat32, x.shape), in = c.arena.take(&kFloat32, x.shape);
    Arena::Scope scope(c.arena);
    router_norm_.into(c, in, x);
    const Tensor logits = router_(c, in);
    moe_norm_.into(c, in, x);
    {
      Arena::Scope of_experts(c.arena);
      moe_(c, second, in, logits, false);
    }
    moe_post_norm_.in_place(c, second);
    mlp_norm_.into(c, in, x);
    mlp_(c, first, in, false);
    mlp_post_norm_.in_place(c, first);
    ops::add(c, first, second);
    if (accumulate) ops::add(c, out, first);
  }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Norm mlp_norm_, mlp_post_norm_, moe_norm_, moe_post_norm_, router_norm_;
  Linear router_;
  Mlp mlp_;
  Moe moe_;
  int64_t floats_ = 0;
};

void read_experts_beside_mlp(const Config& config, DecoderSpec& s) {
  if (!config.get("enable_moe_block", false)) {
    for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) config.ignore(key);
    return;
  }
  const int inner = read_positive(config, "moe_intermediate_size", config.at<int>("moe_intermediate_size"));
  read_experts(config, s, "num_experts", "top_k_experts", inner);
  MoeSpec moe = s.moe;
  moe.normalize = true;
  moe.router = "";
  moe.expert_scale = "router.per_expert_scale";
  moe.layout = ExpertLayout::kStackedParameters;
  moe.gate = "experts.gate_up_proj";
  moe.down = "experts.down_proj";
  s.names.mlp_norm = "";
  for (LayerSpec& layer : s.layers) {
    layer.moe = false;
    layer.feed_forward = [mlp = layer.mlp.value_or(s.mlp), moe, norm = s.norm](const Weights& w, int hidden) {
      return std::make_unique<MlpBesideExperts>(w, mlp, moe, norm, hidden);
    };
  }
}

// Reads the head sizes of a layer where they differ: from "per_layer_config" by index, or, in the older spelling, one
// set for full-attention layers.
void read_heads(const Config& config, int layer, bool sliding, AttentionSpec& a) {
  if (config.has("per_layer_config")) {
    const Config own = config.object("per_layer_config").object(std::to_string(layer));
    a.head_dim = read_positive(own, "head_dim", own.get("head_dim", a.head_dim));
    a.kv_heads = read_positive(own, "num_key_value_heads", own.get("num_key_value_heads", a.kv_heads));
    refuse_unread(own);
  } else if (!sliding) {
    a.head_dim = read_positive(config, "global_head_dim", config.get("global_head_dim", 512));
    const int kv_heads = config.get("num_global_key_value_heads", a.kv_heads);
    if (config.get("attention_k_eq_v", false))
      a.kv_heads = read_positive(config, "num_global_key_value_heads", kv_heads);
  }
  if (a.heads % a.kv_heads != 0) {
    config.refuse("num_attention_heads", fmt::format("{} must be a multiple of {} kv heads", a.heads, a.kv_heads));
  }
}

void read_attention(const Config& config, LoadContext& context, DecoderSpec& s, int default_window) {
  AttentionSpec& a = s.attention;
  read_attention_bias(config, s, true);
  a.scale = 1.0f;
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  a.value_norm = true;
  const auto sees = config.get("use_bidirectional_attention", std::string("vision"));
  if (sees != "vision") config.refuse("use_bidirectional_attention", "'" + sees + "' cannot generate");
  const int window = static_cast<int>(read_or_off(config, "sliding_window", default_window));
  auto sliding = read_windows(config, s, window, [](int layer) { return (layer + 1) % 6 != 0; });
  if (sliding.back()) {  // the reference gives the last layer full attention
    sliding.back() = false;
    s.layers.back().window = 0;
  }
  share_gemma_kv(config, context, s, sliding, 0);
  const bool keys_are_values = config.get("attention_k_eq_v", false);
  int full_head_dim = 0;
  for (int i = 0; i < s.depth(); ++i) {
    AttentionSpec own = a;
    read_heads(config, i, sliding[i], own);
    own.window = s.layers[i].window;
    own.shared_kv = s.layers[i].kv_from >= 0;
    if (keys_are_values && !sliding[i]) own.qkv[2] = own.qkv[1];
    int& expected = sliding[i] ? a.head_dim : full_head_dim;
    if (expected == 0) expected = own.head_dim;
    if (own.head_dim != expected)
      config.refuse("per_layer_config", "gives layers of one kind different heads, which is not supported");
    s.layers[i].rope = sliding[i] ? 0 : 1;
    s.layers[i].mixer = [own](const Weights& w, int hidden) {
      return std::make_unique<Attention>(w / "self_attn", own, hidden);
    };
  }
  s.ropes.push_back(read_rope(config, full_head_dim, s.max_positions,
                              {.theta = 1e6, .layer_type = "full_attention", .parameters = kRopes}));
  // The reference reads partial_rotary_factor only for scaled rotations.
  if (s.ropes[0].type == "default") s.ropes[0].rotary_dim = a.head_dim;
  if (s.ropes[1].type == "default") s.ropes[1].rotary_dim = full_head_dim;
}

void read_layer_inputs(const Config& config, DecoderSpec& s, const LoadContext& context, int width) {
  PerLayerInputSpec p;
  p.layers = s.depth();
  p.width = width;
  if (p.width < 0) config.refuse("hidden_size_per_layer_input", "must not be negative");
  const char* vocab = "vocab_size_per_layer_input";
  p.vocab = read_positive(config, vocab, config.get(vocab, 262144));
  p.clips = p.vocab < s.vocab;
  p.table_scale = gemma_factor(context, std::sqrt(static_cast<double>(p.width)));
  p.sum_scale = static_cast<float>(std::sqrt(0.5));
  p.activation = s.mlp.activation;
  p.norm = s.norm;
  p.layer_path = s.names.layers;
  s.auxiliary_stream = [p](const Weights& body, const DecoderSpec& spec) {
    return std::make_unique<LayerInputs>(body, spec, p);
  };
}

// Reads what all sizes of Gemma 4 have.
DecoderSpec gemma4_like(const Config& config, LoadContext& context, std::string family, int default_window) {
  DecoderSpec s = llama_like(config, std::move(family),
                             {.head_dim = 256,
                              .activation_key = "hidden_activation",
                              .activation = "gelu_pytorch_tanh",
                              .tied_head = true,
                              .rope = {.layer_type = "sliding_attention", .parameters = kRopes}});
  read_attention(config, context, s, default_window);
  s.embedding_scale = gemma_factor(context, std::sqrt(static_cast<double>(s.hidden)));
  s.scaled_vectors = true;
  s.names.attention_post_norm = "post_attention_layernorm";
  s.names.mlp_norm = "pre_feedforward_layernorm";
  s.names.mlp_post_norm = "post_feedforward_layernorm";
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "final_logit_softcapping", 0.0));
  if (config.get("use_double_wide_mlp", false)) {
    for (LayerSpec& layer : s.layers) {
      if (layer.kv_from < 0) continue;
      layer.mlp = s.mlp;
      layer.mlp->inner *= 2;
    }
  }
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma4_like(config, context, "gemma4_text", 512);
  read_experts_beside_mlp(config, s);
  read_layer_inputs(config, s, context, config.get("hidden_size_per_layer_input", 256));
  return decoder_lm(std::move(s), context, max_len);
}

// The size without encoders (12B). It has neither experts nor per-layer inputs, and the reference reads none of their
// keys.
std::unique_ptr<Model> build_unified(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gemma4_like(config, context, "gemma4_unified_text", 1024);
  for (const char* key :
       {"enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size", "hidden_size_per_layer_input"}) {
    config.ignore(key);
  }
  read_layer_inputs(config, s, context, 0);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gemma4_text", .architectures = {"Gemma4ForCausalLM"}, .build = build};
const ModelFamily unified{
    .name = "gemma4_unified_text", .architectures = {"Gemma4UnifiedForCausalLM"}, .build = build_unified};
const Registry<ModelFamily> registered{family}, registered_unified{unified};

}  // namespace
}  // namespace sluice::models::gemma4_text
