// PLaMo 2 (Preferred Networks, arXiv:2509.04897): Mamba with one decay per head in most layers, attention with normed
// queries and keys in the others, and norms before and after both sublayers.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/mamba.h"
#include "models/plamo.h"

namespace sluice {

DecoderSpec plamo_like(const Config& config, std::string family, const char* head_dim) {
  DecoderSpec s = read_sizes(config, std::move(family), {.heads_divide_hidden = false});
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, head_dim, config.get(head_dim, 128));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  a.qkv = {"qkv_proj"};
  s.norm = {.eps = config.get("rms_norm_eps", 1e-6f), .offset = 1.0f};
  s.attention_post_norm = s.mlp_post_norm = s.norm;
  s.attention_post_norm->offset = 1.0f / 5;
  s.mlp_post_norm->offset = 1.0f / std::pow(5.0f, 1.5f);
  s.tied_head = config.get("tie_word_embeddings", true);
  s.mlp.in = {"gate_up_proj"};
  s.names.layers = "layers.layers";
  s.names.attention = "mixer";
  s.names.attention_norm = "pre_mixer_norm";
  s.names.attention_post_norm = "post_mixer_norm";
  s.names.mlp_norm = "pre_mlp_norm";
  s.names.mlp_post_norm = "post_mlp_norm";
  return s;
}

}  // namespace sluice

namespace sluice::models::plamo2 {
namespace {

struct MixerSpec {
  int heads = 0;
  int head_dim = 0;
  int state = 0;    // values per channel
  int dt_rank = 0;  // rank of the step-size projection
  int conv_width = 4;
  float norm_eps = 1e-6f;

  int64_t inner() const { return int64_t{heads} * head_dim; }
  CausalConvSpec conv() const { return {inner(), conv_width, false, ops::Activation::kSilu}; }
};

// Mamba 2's scan, whose step sizes and state projections are projected from the convolution's result and normed.
class Mixer final : public TokenMixer {
 public:
  Mixer(const Weights& w, const MixerSpec& spec, int hidden)
      : Mixer(w, spec, hidden, even_part(w.context().ranks, spec.heads)) {}

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const int64_t inner = spec_.inner(), n = spec_.state, conv_values = spec_.conv().state_values();
    const Tensor projected = in_(c, x);
    const Tensor y = conv_(c, step, projected.slice_columns(inner, inner), step.state.slice_columns(0, conv_values));
    const Tensor parameters = parameters_(c, y);
    const Tensor b = parameters.slice_columns(0, n), read = parameters.slice_columns(n, n);
    const Tensor rank = parameters.slice_columns(2 * n, spec_.dt_rank);
    b_norm_.in_place(c, b);
    c_norm_.in_place(c, read);
    dt_norm_.in_place(c, rank);
    const Tensor dt = dt_(c, rank);
    ops::softplus(c, dt, dt_bias_.data(), 0.0f, std::numeric_limits<float>::infinity());
    ops::head_scan(c, {.out = y,
                       .x = y,
                       .dt = dt,
                       .b = b,
                       .c = read,
                       .a = a_.data(),
                       .d = d_.data(),
                       .heads = spec_.heads,
                       .groups = 1,
                       .state = step.state.slice_columns(conv_values, inner * n),
                       .sequences = step.sequences()});
    ops::multiply(c, y, projected.slice_columns(0, inner), ops::Activation::kSilu);
    out_.into(c, out, y, accumulate);
  }
  int64_t floats_per_token() const override {
    return 3 * spec_.inner() + 2 * int64_t{spec_.state} + spec_.dt_rank + spec_.heads;
  }
  int64_t state_values() const override { return spec_.conv().state_values() + spec_.inner() * spec_.state; }

 private:
  using Part = std::optional<RowRange>;  // this rank's heads; nullopt: all

  // The tensor stores each head's gate and input together.
  static std::vector<RowRange> in_rows(const MixerSpec& s) {
    std::vector<RowRange> rows;
    rows.reserve(2 * static_cast<size_t>(s.heads));
    for (int i = 0; i < 2 * s.heads; ++i)
      rows.push_back({(2 * (i % s.heads) + i / s.heads) * int64_t{s.head_dim}, s.head_dim});
    return rows;
  }
  // The channels of the part in `copies` runs of all channels. Empty: all.
  static std::vector<RowRange> channels(const MixerSpec& s, const Part& part, int copies) {
    std::vector<RowRange> kept;
    for (int i = 0; part && i < copies; ++i) kept.push_back(scaled(*part, s.head_dim, i * s.inner()));
    return kept;
  }
  static LinearSplit inputs(const MixerSpec& s, const Part& part) {
    if (!part) return {};
    return {.inputs = scaled(*part, s.head_dim)};
  }
  static std::vector<RowRange> heads(const Part& part) { return part ? std::vector{*part} : std::vector<RowRange>{}; }

  Mixer(const Weights& w, const MixerSpec& s, int hidden, const Part& part)
      : spec_(s),
        in_(w, {{"in_proj", 2 * s.inner(), in_rows(s)}}, hidden, false, {.outputs = channels(s, part, 2)}),
        parameters_(w, {{"bcdt_proj", s.dt_rank + 2 * int64_t{s.state}}}, s.inner(), false, inputs(s, part)),
        dt_(w, {{"dt_proj", s.heads}}, s.dt_rank, false, {.outputs = heads(part)}),
        out_(w, {{"out_proj", hidden}}, s.inner(), false, inputs(s, part)),
        conv_(w, "conv1d", s.conv(), channels(s, part, 1)) {
    LoadContext& context = w.context();
    if (part) spec_.heads = static_cast<int>(part->count);
    a_ = Vector(context, decay_rates(picked(w.vector("A_log", s.heads), heads(part))));
    d_ = Vector(context, picked(w.vector("D", s.heads), heads(part)));
    dt_bias_ = Vector(context, picked(w.vector("dt_bias", s.heads), heads(part)));
    const NormSpec norm{.eps = s.norm_eps};
    b_norm_ = Norm(context, w.vector("B_norm_weight", s.state), norm);
    c_norm_ = Norm(context, w.vector("C_norm_weight", s.state), norm);
    dt_norm_ = Norm(context, w.vector("dt_norm_weight", s.dt_rank), norm);
  }

  MixerSpec spec_;  // of this rank's heads
  Linear in_, parameters_, dt_, out_;
  CausalConv conv_;
  Norm b_norm_, c_norm_, dt_norm_;
  Vector a_, d_, dt_bias_;
};

MixerSpec read_mixer(const Config& config, const DecoderSpec& s) {
  MixerSpec m;
  m.heads = read_positive(config, "mamba_num_heads", config.get("mamba_num_heads", 64));
  m.head_dim = s.attention.head_dim;
  m.state = read_positive(config, "mamba_d_state", config.get("mamba_d_state", 64));
  m.dt_rank = std::max(64, s.hidden / 16);
  m.conv_width = read_conv_width(config, "mamba_d_conv", 4);
  m.norm_eps = s.norm.eps;
  return m;
}

// Which layers have attention: one of every mamba_step, or only the last one of a model with fewer layers.
std::vector<bool> read_attention_layers(const Config& config, int layers) {
  std::vector<bool> attends(static_cast<size_t>(layers), true);
  if (!config.get("mamba_enabled", true)) return attends;
  const int step = config.get("mamba_step", 2);
  if (step < 2) config.refuse("mamba_step", "must be at least 2");
  for (int i = 0; i < layers; ++i) attends[i] = layers <= step / 2 ? i == layers - 1 : i % step == step / 2;
  return attends;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = plamo_like(config, "plamo2", "hidden_size_per_head");
  AttentionSpec& a = s.attention;
  a.qk_norm = QkNorm::kEachHead;
  a.qk_norm_spec.eps = 1e-6f;
  a.q_norm = "q_weight";
  a.k_norm = "k_weight";
  const MixerSpec mixer = read_mixer(config, s);
  const std::vector<bool> attends = read_attention_layers(config, s.depth());
  const auto full = config.get("full_attention_idx", std::vector<int>{});
  bool windows = false;
  for (int i = 0; i < s.depth(); ++i) {
    if (!attends[i]) s.layers[i].mixer = mixer_of<Mixer>("mixer", mixer);
    windows |= attends[i] && std::ranges::count(full, i) == 0;
  }
  // Implementations disagree on whether these layers see more than their window, so texts end at it.
  const int window = read_positive(config, "attention_window_size", config.get("attention_window_size", 2048));
  if (windows) s.max_positions = std::min(s.max_positions, window);
  s.ropes = {read_rope(config, a.head_dim, s.max_positions)};
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "plamo2",
    .architectures = {"Plamo2ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"capacity_factor"},  // of experts, which the family does not have
            {"eval_attention_n_bit"},
            {"eval_mlp_n_bit"},
            {"fp8_accum_dtype"},
            {"linear_type", "\"normal\""},
            {"mamba_chunk_size"},  // of the reference's kernel
            {"use_mamba_ssm"},
            {"use_predefined_initial_state", "false"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::plamo2
