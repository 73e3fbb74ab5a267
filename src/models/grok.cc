// Grok 1 and 2 (xAI): norms around both sublayers, soft caps on scores, router and logits, experts with GELU. Grok 2
// has an MLP beside the experts, and scales the queries of far positions.
#include <fmt/core.h>

#include <cmath>
#include <numbers>

#include "nn/decoder_config.h"

namespace sluice::models::grok {
namespace {

struct GrokMoeSpec {
  MoeSpec moe{};
  std::string experts;  // name of the experts and their router
  MlpSpec mlp{};        // inner > 0: its results are added to the experts', and the sum is multiplied by sqrt(1/2)
};

class GrokMoe final : public FeedForward {
 public:
  GrokMoe(const Weights& layer, const GrokMoeSpec& s, int hidden)
      : spec_(s), hidden_(hidden), moe_(layer / s.experts, s.moe, hidden) {
    if (s.mlp.inner > 0) mlp_ = Mlp(layer / "mlp", s.mlp, hidden);
  }

  int64_t floats_per_token() const override {
    const int64_t mlp = spec_.mlp.inner > 0 ? Mlp::floats_per_token(spec_.mlp) : 0;
    return std::max(Moe::floats_per_token(spec_.moe, hidden_), mlp);
  }

  void operator()(ops::Ctx& c, std::span<const Tensor>, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    if (spec_.mlp.inner == 0) return moe_(c, out, x, accumulate);
    CHECK(!accumulate, "the norm of the sum follows");
    moe_(c, out, x, false);
    mlp_(c, out, x, true);
    ops::map(c, out, ops::Map::kScale, std::numbers::sqrt2_v<float> / 2);
  }

 private:
  GrokMoeSpec spec_;
  int64_t hidden_;
  Moe moe_;
  Mlp mlp_;
};

float read_factor(const Config& config, const char* key, double fallback) {
  const double value = config.get(key, fallback);
  if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
  return static_cast<float>(value);
}

// A soft cap; null, 0 and negative values mean none.
float read_cap(const Config& config, const char* key, double fallback) {
  return static_cast<float>(std::max(read_or_off(config, key, fallback), 0.0));
}

GrokMoeSpec read_moe(const Config& config, DecoderSpec& s, bool second) {
  GrokMoeSpec spec;
  const int inner = second ? config.at<int>("moe_intermediate_size") : s.mlp.inner;
  read_experts(config, s, config.has("num_local_experts") ? "num_local_experts" : "num_experts", "num_experts_per_tok",
               read_positive(config, "moe_intermediate_size", inner));
  MoeSpec& m = s.moe;
  m.router = "gate";
  m.logit_cap = read_cap(config, "router_logit_softcapping", 0.0);
  // The weights of the chosen experts are their shares of all experts' probability. They do not add up to one.
  m.normalize = false;
  m.gate = second ? "w1" : "linear";
  m.up = second ? "w3" : "linear_v";
  m.down = second ? "w2" : "linear_1";
  spec.moe = m;
  spec.experts = second ? "block_sparse_moe" : "moe_block";
  if (second) spec.mlp = s.mlp;
  return spec;
}

// Reads "attn_temperature_len": queries at positions p beyond it are scaled by log(p) / log(length).
void read_temperature(const Config& config, DecoderSpec& s) {
  const int length = config.get("attn_temperature_len", -1);
  if (length <= 0) return;
  if (length == 1) config.refuse("attn_temperature_len", "must be above 1");
  RopeSpec of_queries = s.ropes[0];
  of_queries.log_length = length;
  s.ropes.push_back(of_queries);
  for (LayerSpec& layer : s.layers) layer.query_rope = 1;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  const bool second = config.get("residual_moe", false);
  // Unless "tie_word_embeddings" says so, a stored head is the only sign that the head is not tied.
  const bool stores_head = context.checkpoint.find("lm_head.weight") != nullptr;
  DecoderSpec s = llama_like(config, "grok", {.norm_eps = 1e-5, .activation = "gelu", .tied_head = !stores_head});
  if (!second) s.norm.weight_name = "scale";
  s.embedding_scale = read_factor(config, "embedding_multiplier_scale", 78.38367176906169);
  s.logit_scale = read_factor(config, "output_multiplier_scale", 0.5773502691896257);
  s.logit_soft_cap = read_cap(config, "final_logit_softcapping", 0.0);
  // Despite its name, this multiplies the scores.
  s.attention.scale = read_factor(config, "attn_output_multiplier", s.attention.scale);
  s.attention.soft_cap = config.has("max_attn_value") ? read_cap(config, "max_attn_value", 30.0)
                                                      : read_cap(config, "attn_logit_softcapping", 30.0);
  s.names.attention = second ? "self_attn" : "attn";
  s.names.attention_norm = "pre_attn_norm";
  s.names.attention_post_norm = "post_attn_norm";
  s.names.mlp_norm = "pre_moe_norm";
  s.names.mlp_post_norm = "post_moe_norm";
  const GrokMoeSpec moe = read_moe(config, s, second);
  for (LayerSpec& layer : s.layers) {
    layer.feed_forward = [moe](const Weights& w, int hidden) { return std::make_unique<GrokMoe>(w, moe, hidden); };
  }
  read_temperature(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "grok",
    .architectures = {"Grok1ForCausalLM", "Grok1ModelForCausalLM"},
    .build = build,
    .ignored = {{"sliding_window_size", "-1"}, {"global_attn_every_n", "1"}},
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::grok
