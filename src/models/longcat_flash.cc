// LongCat-Flash (Meituan, arXiv:2509.01322): a layer has two blocks of latent attention and an MLP. Its experts take
// the input of the first MLP, and their result is added at the end of the second block (shortcut-connected experts).
// Some experts return their input.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "models/deepseek.h"
#include "nn/side_rows.h"

namespace sluice::models::longcat_flash {
namespace {

constexpr std::pair<const char*, const char*> kAliases[] = {{"num_layers", "num_hidden_layers"},
                                                            {"ffn_hidden_size", "intermediate_size"},
                                                            {"expert_ffn_hidden_size", "moe_intermediate_size"},
                                                            {"moe_topk", "num_experts_per_tok"}};

// transformers stores the number of blocks as num_hidden_layers beside the published num_layers.
Config with_own_depth(const Config& config) {
  Json values = config.values();
  const int layers = config.at<int>("num_layers");
  if (config.has("num_hidden_layers")) {
    const int blocks = config.at<int>("num_hidden_layers");
    if (blocks != layers && blocks != 2 * layers)
      config.refuse("num_hidden_layers", fmt::format("{} contradicts num_layers {}", blocks, layers));
    values.erase("num_hidden_layers");
  }
  return Config(std::move(values), config.origin());
}

// The first block's MLP. Its input also goes to the experts, whose result the side rows take to the second block.
class MlpAndExperts final : public FeedForward {
 public:
  MlpAndExperts(const Weights& w, const MlpSpec& mlp, const MoeSpec& moe, int hidden)
      : mlp_(w / "mlps.0", mlp, hidden),
        moe_(w / "mlp", moe, hidden),
        floats_(std::max(Mlp::floats_per_token(mlp), Moe::floats_per_token(moe, hidden))) {}
  void operator()(ops::Ctx& c, std::span<const Tensor> auxiliary, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    {
      Arena::Scope scope(c.arena);
      moe_(c, auxiliary[0], x, false);
    }
    mlp_(c, out, x, accumulate);
  }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Mlp mlp_;
  Moe moe_;
  int64_t floats_;
};

// The second block's MLP, to which the result of the layer's experts is added.
class MlpAfterExperts final : public FeedForward {
 public:
  MlpAfterExperts(const Weights& w, const MlpSpec& mlp, int hidden)
      : mlp_(w / "mlps.1", mlp, hidden), floats_(Mlp::floats_per_token(mlp)) {}
  void operator()(ops::Ctx& c, std::span<const Tensor> auxiliary, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    mlp_(c, out, x, accumulate);
    ops::add(c, out, auxiliary[0]);
  }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Mlp mlp_;
  int64_t floats_;
};

void read_routing(const Config& config, DecoderSpec& s) {
  const int inner = read_positive(config, "moe_intermediate_size", config.at<int>("moe_intermediate_size"));
  read_experts(config, s, "n_routed_experts", "num_experts_per_tok", inner);
  MoeSpec& m = s.moe;
  m.identities = config.get("zero_expert_num", 0);
  if (m.identities < 0) config.refuse("zero_expert_num", "must not be negative");
  const auto kind = config.get("zero_expert_type", std::string("identity"));
  if (kind != "identity") config.refuse("zero_expert_type", "must be identity, not '" + kind + "'");
  m.scale = config.get("routed_scaling_factor", 6.0f);
  m.router = "router.classifier";
  m.router_bias = config.get("router_bias", false);
  m.correction = "router.e_score_correction_bias";
  m.correction_shape = {m.choices()};
}

void read_blocks(const LatentAttentionSpec& attention, DecoderSpec& s) {
  std::vector<LayerSpec> blocks;
  for (int i = 0; i < 2 * s.depth(); ++i) {
    const int half = i % 2;
    LayerSpec block;
    block.path = fmt::format("layers.{}", i / 2);
    block.names = s.names;
    block.names->attention_norm = fmt::format("input_layernorm.{}", half);
    block.names->mlp_norm = fmt::format("post_attention_layernorm.{}", half);
    block.mixer = [attention, half](const Weights& w, int hidden) {
      return std::make_unique<LatentAttention>(w / fmt::format("self_attn.{}", half), attention, hidden);
    };
    block.feed_forward = [mlp = s.mlp, moe = s.moe, half](const Weights& w,
                                                          int hidden) -> std::unique_ptr<FeedForward> {
      if (half == 0) return std::make_unique<MlpAndExperts>(w, mlp, moe, hidden);
      return std::make_unique<MlpAfterExperts>(w, mlp, hidden);
    };
    blocks.push_back(std::move(block));
  }
  s.layers = std::move(blocks);
  s.auxiliary_stream = [](const Weights&, const DecoderSpec& spec) {
    return std::make_unique<SideRows>(spec.hidden, false);
  };
}

// transformers also stores matrices of experts that return their input, which nobody reads.
void ignore_identities(LoadContext& context, const MoeSpec& moe) {
  constexpr std::string_view before = ".mlp.experts.";
  for (const auto& [name, entry] : context.checkpoint.tensors()) {
    const size_t at = name.find(before);
    if (at == std::string::npos) continue;
    const int expert = std::atoi(name.c_str() + at + before.size());
    if (expert >= moe.experts && expert < moe.choices()) context.used.insert(name);
  }
}

std::unique_ptr<Model> build(const Config& published, LoadContext& context, int max_len) {
  const Config config = with_usual_names(with_own_depth(published), kAliases);
  DecoderSpec s = read_sizes(config, "longcat_flash", {.heads_divide_hidden = false});
  s.norm.eps = config.get("rms_norm_eps", 1e-5f);
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  s.tied_head = config.get("tie_word_embeddings", false);
  LatentAttentionSpec a = read_latent_attention(config, s, {.rope = {.theta = 10000000.0}});
  if (a.q_rank < 1) config.refuse("q_lora_rank", "must be positive");
  for (const char* key : {"mla_scale_q_lora", "mla_scale_kv_lora"}) {
    if (!config.get(key, true)) config.refuse(key, "false is not supported: the reference always scales");
  }
  a.scale *= std::sqrt(static_cast<float>(s.hidden) / static_cast<float>(a.q_rank));
  a.latent_scale = std::sqrt(static_cast<float>(s.hidden) / static_cast<float>(a.kv_rank));
  read_routing(config, s);
  ignore_identities(context, s.moe);
  read_blocks(a, s);
  ignore_tensors(context, "model.mtp.");
  note_reads(published, config, kAliases);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "longcat_flash",
    .architectures = {"LongcatFlashForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attention_method", "\"MLA\""},
            {"nextn_use_scmoe"},  // of the prediction layers
            {"norm_topk_prob", "false"},
            {"num_nextn_predict_layers"},
            {"router_dtype"},  // routing is always computed in fp32
            {"topk_method"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::longcat_flash
