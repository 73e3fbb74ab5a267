// Arctic (Snowflake, 2024): layers with experts also have a dense MLP, each with its own norm. The experts take the
// layer's input, the MLP what attention made of it.
#include <fmt/core.h>

#include <algorithm>

#include "nn/decoder_config.h"
#include "nn/side_rows.h"

namespace sluice::models::arctic {
namespace {

class MlpBesideExperts final : public FeedForward {
 public:
  MlpBesideExperts(const Weights& w, const MlpSpec& mlp, const MoeSpec& moe, const NormSpec& norm, int hidden)
      : mlp_(w / "residual_mlp", mlp, hidden),
        moe_norm_(w, "post_attention_layernorm", hidden, norm),
        moe_(w / "block_sparse_moe", moe, hidden),
        floats_(std::max(Mlp::floats_per_token(mlp), hidden + Moe::floats_per_token(moe, hidden))) {}
  void operator()(ops::Ctx& c, std::span<const Tensor> auxiliary, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    {
      Arena::Scope scope(c.arena);
      mlp_(c, out, x, accumulate);
    }
    moe_(c, out, moe_norm_(c, auxiliary[0]), true);
  }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Mlp mlp_;
  Norm moe_norm_;
  Moe moe_;
  int64_t floats_;
};

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = llama_like(config, "arctic", {.norm_eps = 1e-5, .rope = {.theta = 1e6}});
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", s.mlp.inner);
  MoeSpec& m = s.moe;
  m.normalize = m.top_k > 1;
  m.gate = "w1";
  m.up = "w3";
  m.down = "w2";
  s.mlp.in = {"w1", "w3"};
  s.mlp.out = "w2";
  const int every = read_positive(config, "moe_layer_frequency", config.get("moe_layer_frequency", 2));
  const bool residual = config.get("use_residual", true);
  MlpSpec beside = s.mlp;
  beside.inner = s.hidden;
  s.names.mlp = "block_sparse_moe";
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.moe = (i + 1) % every == 0;
    layer.names = s.names;
    if (!layer.moe) {
      layer.names->mlp = "block_sparse_moe.mlp";
    } else if (residual) {
      layer.names->mlp_norm = "residual_layernorm";
      layer.feed_forward = [beside, moe = m, norm = s.norm](const Weights& w, int hidden) {
        return std::make_unique<MlpBesideExperts>(w, beside, moe, norm, hidden);
      };
    }
  }
  if (residual) {
    s.auxiliary_stream = [](const Weights&, const DecoderSpec& spec) {
      return std::make_unique<SideRows>(spec.hidden, true);
    };
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "arctic",
    .architectures = {"ArcticForCausalLM"},
    .build = build,
    .ignored =
        {
            // These concern training and its distribution over machines.
            {"enable_expert_tensor_parallelism"},
            {"moe_eval_capacity_factor"},
            {"moe_min_capacity"},
            {"moe_token_dropping"},
            {"moe_train_capacity_factor"},
            {"parallel_attn_mlp_res"},  // use_residual is read instead
            {"quantization"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::arctic
