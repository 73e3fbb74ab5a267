// DiffLlama: Llama with differential attention (Ye et al. 2024, arXiv:2410.05258). Heads come in pairs, and a share of
// the second head's result is subtracted from the first's.
#include <fmt/core.h>

#include <cmath>

#include "nn/decoder_config.h"

namespace sluice::models::diffllama {
namespace {

struct DifferentialSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;  // even numbers of heads; heads i and i + heads / 2 are a pair
  bool bias = false;
  float eps = 0;       // epsilon of the norm of a pair's result
  double initial = 0;  // share of the second head at the start of training

  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

// The values of both kv heads of a pair side by side, for all pairs.
std::vector<RowRange> paired_rows(const DifferentialSpec& s) {
  const int64_t dim = s.head_dim, half = s.kv_heads / 2;
  std::vector<RowRange> rows;
  for (int64_t i = 0; i < half; ++i) {
    rows.push_back({i * dim, dim});
    rows.push_back({(half + i) * dim, dim});
  }
  return rows;
}

// Both heads of a pair read the values of both kv heads, so the cache stores them for each.
class DifferentialAttention final : public TokenMixer {
 public:
  DifferentialAttention(const Weights& w, const DifferentialSpec& s, int hidden)
      : spec_(s),
        qkv_(w,
             {{"q_proj", s.q_width()},
              {"k_proj", s.kv_width()},
              {"v_proj", s.kv_width(), paired_rows(s)},
              {"v_proj", s.kv_width(), paired_rows(s)}},
             hidden, s.bias),
        out_(w, {{"o_proj", hidden}}, s.q_width(), s.bias),
        share_(static_cast<float>(exponential(w, "1") - exponential(w, "2") + s.initial)) {
    const auto kept = static_cast<float>(1 - s.initial);
    norm_ = Norm(w.context(), std::vector<float>(static_cast<size_t>(2 * s.head_dim), kept), {.eps = s.eps});
    w.context().note_attention(s.heads, 2 * s.head_dim);
  }

  std::optional<KvShape> kv_shape() const override {
    return KvShape{.kv_heads = spec_.kv_heads, .head_dim = spec_.head_dim, .value_dim = 2 * spec_.head_dim};
  }
  int64_t floats_per_token() const override { return 3 * spec_.q_width() + 3 * spec_.kv_width(); }

  void operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const int64_t q_width = spec_.q_width(), kv_width = spec_.kv_width();
    const Tensor qkv = qkv_(c, x);
    const Tensor q = qkv.slice_columns(0, q_width);
    ops::rope_store(
        c, step.rotation(q, qkv.slice_columns(q_width, kv_width), qkv.slice_columns(q_width + kv_width, 2 * kv_width)));
    const Tensor mixed = c.arena.take(&kFloat32, {x.rows(), 2 * q_width});
    ops::AttentionArgs args = step.attention(mixed, q);
    args.heads = spec_.heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
    ops::attention(c, args);
    const Tensor first = mixed.slice_columns(0, q_width);
    ops::add(c, first, mixed.slice_columns(q_width, q_width), -share_);
    Tensor pairs = first;
    pairs.shape = {first.shape[0], spec_.heads / 2, 2 * spec_.head_dim};
    norm_.in_place(c, pairs);
    out_.into(c, out, first, accumulate);
  }

 private:
  double exponential(const Weights& w, const std::string& which) const {
    const std::vector<float> q = w.vector("lambda_q" + which, spec_.head_dim);
    const std::vector<float> k = w.vector("lambda_k" + which, spec_.head_dim);
    double sum = 0;
    for (size_t i = 0; i < std::min(q.size(), k.size()); ++i) sum += double{q[i]} * k[i];
    return std::exp(sum);
  }

  DifferentialSpec spec_;
  Linear qkv_, out_;
  float share_;
  Norm norm_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "diffllama", {.norm_eps = 1e-5});
  read_attention_bias(config, s, true);
  const AttentionSpec& a = s.attention;
  DifferentialSpec d{
      .heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.head_dim, .bias = a.qkv_bias, .eps = s.norm.eps};
  if (d.heads % 2 != 0) config.refuse("num_attention_heads", fmt::format("must be even, not {}", d.heads));
  if (d.kv_heads % 2 != 0) config.refuse("num_key_value_heads", fmt::format("must be even, not {}", d.kv_heads));
  for (int i = 0; i < s.depth(); ++i) {
    d.initial = 0.8 - 0.6 * std::exp(-0.3 * i);
    s.layers[i].mixer = [d](const Weights& w, int hidden) {
      return std::make_unique<DifferentialAttention>(w / "self_attn", d, hidden);
    };
  }
  config.ignore("lambda_std_dev");  // only initializes training
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "diffllama", .architectures = {"DiffLlamaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::diffllama
