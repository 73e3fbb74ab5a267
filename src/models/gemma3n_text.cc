// Gemma 3n, text. AltUp (Baykal et al. 2023, arXiv:2301.13310) keeps several copies of the residual stream: a layer
// runs on one, and predicts and corrects the others. Laurel (Menghani et al. 2024, arXiv:2411.07501) is a low-rank
// branch beside attention. Layers also have per-layer inputs, sparse gates, and shared keys and values.
#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "models/gemma.h"
#include "nn/per_layer_inputs.h"

namespace sluice::models::gemma3n_text {
namespace {

// smallest mean square that a row is scaled with, so tiny rows are not blown up
constexpr float kSmallestSquare = 1e-5f;

struct AltupSpec {
  int streams = 4;
  int active = 0;  // the stream that layers run on
  NormSpec norm{};
};

// Keeps all streams of a layer [tokens * streams, hidden], token by token, twice: as the layer found them, and as it
// predicts and corrects them.
class AltUp final : public AuxiliaryStream {
 public:
  AltUp(const Weights& body, const DecoderSpec& s, const AltupSpec& spec, const PerLayerInputSpec& inputs)
      : spec_(spec), hidden_(s.hidden), inputs_(body, inputs, s.hidden) {
    const int64_t n = spec.streams, hidden = s.hidden;
    for (int i = 1; i < n; ++i) {
      const auto square = [&](const char* name) {
        return Linear(body / name, {{std::to_string(i - 1), hidden}}, hidden, false);
      };
      in_.push_back(square("altup_projections"));
      out_.push_back(square("altup_unembed_projections"));
    }
    for (int i = 0; i < s.depth(); ++i) {
      const Weights w = body / s.names.layers / std::to_string(i) / "altup";
      std::vector<float> weight = w.vector("router_norm.weight", hidden);
      for (float& v : weight) v /= static_cast<float>(hidden);
      layers_.push_back({.norm = Norm(w.context(), weight, spec.norm),
                         .router = Linear(w, {{"modality_router", n}}, hidden, false),
                         .predict = Linear(w, {{"prediction_coefs", n * n}}, n, false),
                         .correct = Linear(w, {{"correction_coefs", n}}, n, false)});
    }
  }

  size_t tensors() const override { return 8; }
  bool capturable() const override { return inputs_.capturable(); }
  bool reads_tokens() const override { return true; }
  int64_t floats_per_token() const override {
    const int64_t n = spec_.streams, coefficients = hidden_ + n + n * n;
    const int64_t besides = std::max(inputs_.floats_taken(), coefficients + inputs_.floats_taken());
    return 2 * n * hidden_ + inputs_.floats_kept() + std::max(besides, 3 * hidden_);
  }

  std::vector<Shape> shapes(int64_t tokens) const override {
    const Shape streams{tokens * spec_.streams, hidden_};
    return {streams, streams, {tokens, inputs_.floats_kept()}};
  }

  Tensors begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) override {
    const int64_t tokens = x.rows(), n = spec_.streams;
    const Tensor found = c.arena.take(&kFloat32, {tokens * n, hidden_});
    const Tensor made = c.arena.take(&kFloat32, {tokens * n, hidden_});
    ops::copy(c, stream(found, 0), x);
    for (int i = 1; i < n; ++i) {
      in_[i - 1].into(c, stream(found, i), x, false);
      ops::match_rms(c, stream(found, i), x, kSmallestSquare);
    }
    return {found, made, inputs_.of(c, batch, x)};
  }

  void before_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const override {
    Arena::Scope scope(c.arena);
    const Tensor found = auxiliary[layer % 2], made = auxiliary[(layer + 1) % 2];
    const Tensor weights = layers_[layer].predict(c, routed(c, layer, stream(found, spec_.active)));
    for (int i = 0; i < spec_.streams; ++i) {
      const Tensor to = stream(made, i);
      ops::combine(c, {.out = to,
                       .x = found,
                       .weights = weights.slice_columns(int64_t{i} * spec_.streams, spec_.streams),
                       .places = {}});
      ops::add(c, to, stream(found, i));
    }
    ops::copy(c, x, stream(made, spec_.active));
  }

  void after_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const override {
    Arena::Scope scope(c.arena);
    const Tensor made = auxiliary[(layer + 1) % 2];
    const Tensor weights = layers_[layer].correct(c, routed(c, layer, x));
    ops::add(c, x, stream(made, spec_.active), -1.0f);  // leaves what the layer changed
    for (int i = 0; i < spec_.streams; ++i) {
      const Tensor to = stream(made, i);
      ops::combine(c, {.out = to, .x = x, .weights = weights.slice_columns(i, 1), .places = {}, .accumulate = true});
      ops::add(c, to, x);
    }
    const Tensor added = inputs_.added(c, layer, auxiliary[2], stream(made, spec_.active));
    for (int i = 1; i < spec_.streams; ++i) ops::add(c, stream(made, i), added);
  }

  void end(ops::Ctx& c, const BatchView& batch, const Tensors& auxiliary, const Tensor& rows) const override {
    const Tensor made = auxiliary[layers_.size() % 2];
    const auto sampled = [&](int i, const Tensor& to) { ops::gather_rows(c, to, stream(made, i), batch.sample_rows); };
    sampled(0, rows);
    Arena::Scope scope(c.arena);
    const Tensor first = c.arena.take(&kFloat32, rows.shape), own = c.arena.take(&kFloat32, rows.shape);
    sampled(0, first);
    for (int i = 1; i < spec_.streams; ++i) {
      Arena::Scope of_stream(c.arena);
      sampled(i, own);
      const Tensor back = out_[i - 1](c, own);
      ops::match_rms(c, back, first, kSmallestSquare);
      ops::add(c, rows, back);
    }
    ops::map(c, rows, ops::Map::kScale, 1.0f / static_cast<float>(spec_.streams));
  }

 private:
  struct Layer {
    Norm norm;  // its weight is divided by the hidden size
    Linear router, predict, correct;
  };

  // The rows of one stream, [tokens, hidden].
  Tensor stream(const Tensor& all, int i) const {
    Tensor one = all.slice_rows(i, all.rows() - i);
    one.shape = {all.rows() / spec_.streams, hidden_};
    one.row_stride = spec_.streams * all.row_stride;
    return one;
  }
  // How a row mixes the streams: [tokens, streams].
  Tensor routed(ops::Ctx& c, int layer, const Tensor& x) const {
    const Tensor modes = layers_[layer].router(c, layers_[layer].norm(c, x));
    ops::unary(c, modes, ops::Activation::kTanh);
    return modes;
  }

  AltupSpec spec_;
  int64_t hidden_;
  PerLayerInputs inputs_;
  std::vector<Linear> in_, out_;  // one per stream except the first
  std::vector<Layer> layers_;
};

// attention's normed result + x + norm(right(left(x))).
class LaurelAttention final : public TokenMixer {
 public:
  LaurelAttention(const Weights& w, const AttentionSpec& attention, int rank, const NormSpec& norm, int hidden)
      : attention_(w / "self_attn", attention, hidden),
        attention_norm_(w, "post_attention_layernorm", hidden, norm),
        left_(w / "laurel", {{"linear_left", rank}}, hidden, false),
        right_(w / "laurel", {{"linear_right", hidden}}, rank, false),
        norm_(w / "laurel", "post_laurel_norm", hidden, norm),
        hidden_(hidden) {}

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const Tensor sum = accumulate ? c.arena.take(&kFloat32, x.shape) : out;
    {
      Arena::Scope scope(c.arena);
      attention_(c, step, sum, x, false);
    }
    attention_norm_.in_place(c, sum);
    ops::add(c, sum, x);
    const Tensor laurel = right_(c, left_(c, x));
    norm_.in_place(c, laurel);
    ops::add(c, sum, laurel);
    if (accumulate) ops::add(c, out, sum);
  }
  int64_t floats_per_token() const override {
    return hidden_ + std::max(attention_.floats_per_token(), hidden_ + left_.outputs());
  }
  std::optional<KvShape> kv_shape() const override { return attention_.kv_shape(); }

 private:
  Attention attention_;
  Norm attention_norm_;
  Linear left_, right_;
  Norm norm_;
  int64_t hidden_;
};

// The quantile of the standard normal distribution, by bisection of its cumulative function.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

// Reads each layer's MLP width and the fraction of its gates that is zeroed.
void read_mlps(const Config& config, DecoderSpec& s) {
  const Json* sizes = config.find("intermediate_size");
  const auto depth = static_cast<size_t>(s.depth());
  const auto inner = sizes != nullptr && sizes->is_array()
                         ? config.at<std::vector<int>>("intermediate_size")
                         : std::vector<int>(depth, config.get("intermediate_size", 16384));
  std::vector<double> sparsity(depth, 0.0);
  if (depth > 10) std::fill_n(sparsity.begin(), 10, 0.95);
  sparsity = config.get("activation_sparsity_pattern", sparsity);
  for (const auto& [key, size] :
       {std::pair{"intermediate_size", inner.size()}, {"activation_sparsity_pattern", sparsity.size()}}) {
    if (size != depth) config.refuse(key, fmt::format("has {} entries for {} layers", size, depth));
  }
  for (size_t i = 0; i < depth; ++i) {
    MlpSpec mlp = s.mlp;
    mlp.inner = read_positive(config, "intermediate_size", inner[i]);
    if (!(sparsity[i] >= 0 && sparsity[i] < 1)) config.refuse("activation_sparsity_pattern", "must be in [0, 1)");
    if (sparsity[i] > 0) mlp.gate_cutoff = static_cast<float>(normal_quantile(sparsity[i]));
    s.layers[i].mlp = mlp;
  }
}

void read_attention(const Config& config, LoadContext& context, DecoderSpec& s) {
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", 256));
  read_attention_bias(config, s, true);
  a.scale = 1.0f;
  a.qk_norm = QkNorm::kHead;
  a.qk_norm_spec = s.norm;
  a.value_norm = true;
  const int window = static_cast<int>(read_or_off(config, "sliding_window", 512));
  const auto sliding = read_windows(config, s, window, [](int layer) { return (layer + 1) % 5 != 0; });
  share_gemma_kv(config, context, s, sliding, s.depth() > 15 ? 15 : 0);
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = 1e6, .layer_type = "full_attention"})};
  s.ropes.push_back(read_sliding_rope(config, s, config.get("rope_local_base_freq", 10000.0)));
  const int rank = read_positive(config, "laurel_rank", config.get("laurel_rank", 64));
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    AttentionSpec own = a;
    own.window = layer.window;
    own.shared_kv = layer.kv_from >= 0;
    layer.rope = sliding[i] ? 1 : 0;
    layer.mixer_blend = {.kept = static_cast<float>(std::sqrt(0.5)), .added = static_cast<float>(std::sqrt(0.5))};
    layer.mixer = [own, rank, norm = s.norm](const Weights& w, int hidden) {
      return std::make_unique<LaurelAttention>(w, own, rank, norm, hidden);
    };
  }
}

void read_streams(const Config& config, LoadContext& context, DecoderSpec& s) {
  AltupSpec altup;
  altup.streams = read_positive(config, "altup_num_inputs", config.get("altup_num_inputs", 4));
  altup.active = config.get("altup_active_idx", 0);
  if (altup.active < 0 || altup.active >= altup.streams)
    config.refuse("altup_active_idx", "must be in [0, altup_num_inputs)");
  altup.norm = s.norm;
  config.ignore("altup_coef_clip");  // training only
  PerLayerInputSpec p;
  p.layers = s.depth();
  p.width = read_positive(config, "hidden_size_per_layer_input", config.get("hidden_size_per_layer_input", 256));
  const char* vocab = "vocab_size_per_layer_input";
  p.vocab = read_positive(config, vocab, config.get(vocab, 262144));
  p.clips = p.vocab < s.vocab;
  p.table_scale = gemma_factor(context, std::sqrt(static_cast<double>(p.width)));
  p.sum_scale = gemma_factor(context, std::sqrt(0.5));
  p.activation = s.mlp.activation;
  p.norm = s.norm;
  p.layer_path = s.names.layers;
  const char* scale = "altup.correct_output_scale";
  if (config.get("altup_correct_scale", true)) {
    p.input_scale = scale;
  } else {
    for (int i = 0; i < s.depth(); ++i) {
      ignore_tensors(context, fmt::format("{}.{}.{}.{}", s.names.body, s.names.layers, i, scale));
    }
  }
  s.auxiliary_stream = [altup, p](const Weights& body, const DecoderSpec& spec) {
    return std::make_unique<AltUp>(body, spec, altup, p);
  };
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "gemma3n_text", {.inner = nullptr, .default_max_positions = 32768});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-6));
  s.mlp.activation = read_activation(config, "hidden_activation", "gelu_pytorch_tanh");
  s.tied_head = config.get("tie_word_embeddings", true);
  s.embedding_scale = gemma_factor(context, std::sqrt(static_cast<double>(s.hidden)));
  s.logit_soft_cap = static_cast<float>(read_or_off(config, "final_logit_softcapping", 30.0));
  s.names.mlp_norm = "pre_feedforward_layernorm";
  s.names.mlp_post_norm = "post_feedforward_layernorm";
  read_attention(config, context, s);
  read_mlps(config, s);
  read_streams(config, context, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "gemma3n_text", .architectures = {"Gemma3nForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::gemma3n_text
