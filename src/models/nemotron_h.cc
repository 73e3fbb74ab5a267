// Nemotron-H: layers with one sublayer each: Mamba 2, attention or an MLP (arXiv:2504.03624).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/mamba.h"

namespace sluice::models::nemotron_h {
namespace {

constexpr Mamba2Keys kKeys{.heads = "mamba_num_heads",
                           .head_dim = "mamba_head_dim",
                           .groups = "n_groups",
                           .state = "ssm_state_size",
                           .conv = "conv_kernel",
                           .conv_bias = "use_conv_bias",
                           .bias = "use_bias",
                           .activation = "mamba_hidden_act",
                           .expand = nullptr,
                           .default_groups = 8,
                           .default_state = 128};

// Reads the kinds of layers from "layers_block_type", or from "hybrid_override_pattern", which has one letter per
// layer.
std::vector<std::string> read_kinds(const Config& config) {
  if (config.has("layers_block_type")) {
    config.ignore("hybrid_override_pattern");
    return config.at<std::vector<std::string>>("layers_block_type");
  }
  std::vector<std::string> kinds;
  for (const char letter : config.at<std::string>("hybrid_override_pattern")) {
    const char* kind = letter == 'M'   ? "mamba"
                       : letter == '*' ? "attention"
                       : letter == '-' ? "mlp"
                       : letter == 'E' ? "moe"
                                       : nullptr;
    if (kind == nullptr)
      config.refuse("hybrid_override_pattern",
                    fmt::format("unknown letter '{}' (expected one of: M, *, -, E)", letter));
    kinds.emplace_back(kind);
  }
  return kinds;
}

void read_layers(const Config& config, DecoderSpec& s, const Mamba2Spec& mamba) {
  const std::vector<std::string> kinds = read_kinds(config);
  for (const std::string& kind : kinds) {
    LayerSpec layer;
    layer.sublayers = Sublayers::kTokenMixer;
    if (kind == "mlp" || kind == "moe") {
      layer.sublayers = Sublayers::kMlp;
      layer.moe = kind == "moe";
    } else if (kind == "mamba" || kind == "linear_attention") {
      layer.mixer = mixer_of<Mamba2>("mixer", mamba);
    } else if (kind != "attention" && kind != "full_attention") {
      config.refuse("layers_block_type",
                    fmt::format("unknown type '{}' (expected one of: mamba, attention, mlp, moe)", kind));
    }
    s.layers.push_back(std::move(layer));
  }
  if (kinds.empty() || config.get("num_hidden_layers", s.depth()) != s.depth()) {
    config.refuse("num_hidden_layers", fmt::format("contradicts the kinds of {} layers", s.depth()));
  }
}

// Experts that work on a narrower stream: a projection before them and one after their sum. The router and the shared
// expert see the full width (Nemotron 3, arXiv:2512.20856).
class LatentExperts final : public FeedForward {
 public:
  LatentExperts(const Weights& w, MoeSpec spec, int latent, int hidden)
      : latent_(latent),
        spec_(std::move(spec)),
        router_(w, {{spec_.router, spec_.experts}}, hidden, false),
        narrow_(w, {{"fc1_latent_proj", latent}}, hidden, spec_.shared_bias),
        wide_(w, {{"fc2_latent_proj", hidden}}, latent, spec_.shared_bias),
        shared_spec_{.inner = spec_.shared_inner,
                     .gated = false,
                     .bias = spec_.shared_bias,
                     .activation = spec_.activation,
                     .in = spec_.shared_in} {
    if (shared_spec_.inner > 0) shared_ = Mlp(w / spec_.shared, shared_spec_, hidden);
    spec_.shared_inner = 0;
    spec_.router = "";
    experts_ = Moe(w, spec_, latent);
  }

  int64_t floats_per_token() const override {
    const int64_t routed = spec_.experts + 2 * int64_t{latent_} + Moe::floats_per_token(spec_, latent_);
    return std::max(routed, Mlp::floats_per_token(shared_spec_));
  }

  void operator()(ops::Ctx& c, std::span<const Tensor>, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    if (shared_spec_.inner > 0) {
      Arena::Scope scope(c.arena);
      shared_(c, out, x, accumulate);
    }
    const Tensor logits = router_(c, x), inputs = narrow_(c, x);
    const Tensor sum = c.arena.take(&kFloat32, {x.rows(), latent_});
    experts_(c, sum, inputs, logits, false);
    wide_.into(c, out, sum, accumulate || shared_spec_.inner > 0);
  }

 private:
  int latent_;
  MoeSpec spec_;
  Linear router_, narrow_, wide_;
  MlpSpec shared_spec_;
  Mlp shared_;
  Moe experts_;
};

// Reads DeepSeek-V3's routing with ungated experts and a shared expert of its own width.
void read_moe(const Config& config, DecoderSpec& s) {
  const bool used = std::any_of(s.layers.begin(), s.layers.end(), [](const LayerSpec& layer) { return layer.moe; });
  if (used) {
    std::vector<LayerSpec> layers = s.layers;
    read_deepseek_experts(config, s, true);
    s.layers = std::move(layers);
    s.moe.gated = false;
    s.moe.shared_in = {"up_proj"};
    // total width, whatever the number of shared experts
    s.moe.shared_inner = config.get("moe_shared_expert_intermediate_size", 7688);
    s.moe.shared_bias = s.mlp.bias;
    if (config.has("moe_latent_size")) {
      const int latent = read_positive(config, "moe_latent_size", config.at<int>("moe_latent_size"));
      for (LayerSpec& layer : s.layers) {
        if (!layer.moe) continue;
        layer.feed_forward = [spec = s.moe, latent](const Weights& w, int hidden) {
          return std::make_unique<LatentExperts>(w / "mixer", spec, latent, hidden);
        };
      }
    }
  }
  for (const char* key : {"moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size",
                          "moe_shared_expert_overlap", "n_group", "n_routed_experts", "n_shared_experts",
                          "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "topk_group"}) {
    config.ignore(key);  // read only by models with experts
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "nemotron_h", {.layers = nullptr, .default_max_positions = 4096});
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = static_cast<float>(config.get("layer_norm_epsilon", 1e-5));
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  s.mlp.bias = config.get("mlp_bias", false);
  s.mlp.activation = read_activation(config, "mlp_hidden_act", "relu2");
  // The reference always has a separate head, whatever the file says.
  s.tied_head = config.get("tie_word_embeddings", false) && !context.checkpoint.tensors().contains("lm_head.weight");
  Mamba2Spec mamba = read_mamba2(config, s, kKeys);
  mamba.norm_groups = mamba.groups;
  // The reference clamps step sizes to at least time_step_min, which elsewhere only initializes them, and ignores
  // time_step_limit.
  mamba.dt_low = config.get("time_step_min", 0.001f);
  mamba.dt_high = std::numeric_limits<float>::infinity();
  read_layers(config, s, mamba);
  read_moe(config, s);
  s.names.body = "backbone";
  s.names.embedding = "embeddings";
  s.names.norm = "norm_f";
  s.names.attention = s.names.mlp = "mixer";
  s.names.attention_norm = s.names.mlp_norm = "norm";
  ignore_tensors(context, "mtp.");
  // The reference has no windows and reads only "use_bias". Other biases would be reported as unused tensors.
  for (const char* key : {"attention_bias", "mamba_proj_bias", "sliding_window", "mtp_layers_block_type",
                          "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "num_logits_to_keep",
                          "mamba_ssm_cache_dtype", "residual_in_fp32", "rescale_prenorm_residual", "time_step_floor",
                          "time_step_max", "use_mamba_kernels", "hidden_dropout", "expand"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "nemotron_h",
    .architectures = {"NemotronHForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attention_head_dim"},
            {"norm_eps"},  // layer_norm_epsilon is read instead
            {"num_query_groups"},
            {"partial_rotary_factor"},  // the family rotates nothing
            {"rms_norm_eps"},
            {"rope_theta"},
            {"time_step_rank"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::nemotron_h
