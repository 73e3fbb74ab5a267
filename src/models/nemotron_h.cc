// Nemotron-H: layers with one sublayer each: Mamba 2, attention or an MLP (arXiv:2504.03624). In models that were made
// by neural architecture search (Puzzle, arXiv:2411.19146) each layer has its own settings.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/json.h"
#include "models/deepseek.h"
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

// A layer's kind, and the configuration that holds for it.
struct Block {
  std::string kind;
  Config config;
};

std::vector<Block> read_blocks(const Config& config) {
  std::vector<Block> blocks;
  for (std::string& kind : read_kinds(config)) blocks.push_back({std::move(kind), config});
  return blocks;
}

// Reads "block_configs": the kind and the own keys of each layer.
std::vector<Block> read_puzzle_blocks(const Config& config) {
  const Json* list = config.find("block_configs");
  if (list == nullptr || !list->is_array()) config.refuse("block_configs", "must be a list of objects");
  std::vector<Block> blocks;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& own = (*list)[i];
    if (!own.is_object()) config.refuse("block_configs", "must be a list of objects");
    Json values = config.values();
    values.erase("sliding_window");  // only the layers' own windows count
    values.update(own);
    Config merged(std::move(values), fmt::format("{}: block_configs[{}]", config.origin(), i));
    blocks.push_back({merged.at<std::string>("block_type"), merged});
  }
  return blocks;
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
MakeFeedForward read_moe(const Config& config, const DecoderSpec& s) {
  DecoderSpec own = s;
  read_deepseek_experts(config, own, true);
  MoeSpec& moe = own.moe;
  moe.gated = false;
  moe.shared_in = {"up_proj"};
  // total width, whatever the number of shared experts
  moe.shared_inner = config.get("moe_shared_expert_intermediate_size", 7688);
  moe.shared_bias = s.mlp.bias;
  if (!config.has("moe_latent_size")) return experts_of("mixer", moe);
  const int latent = read_positive(config, "moe_latent_size", config.at<int>("moe_latent_size"));
  return [moe, latent](const Weights& w, int hidden) {
    return std::make_unique<LatentExperts>(w / "mixer", moe, latent, hidden);
  };
}

Mamba2Spec read_mixer(const Config& config, const DecoderSpec& s) {
  Mamba2Spec mamba = read_mamba2(config, s, kKeys);
  mamba.norm_groups = mamba.groups;
  // The reference clamps step sizes to at least time_step_min, which elsewhere only initializes them, and ignores
  // time_step_limit.
  mamba.dt_low = config.get("time_step_min", 0.001f);
  mamba.dt_high = std::numeric_limits<float>::infinity();
  return mamba;
}

// `own`: the layers have their own settings.
void read_layers(const Config& config, DecoderSpec& s, const std::vector<Block>& blocks, bool own) {
  for (const auto& [kind, block] : blocks) {
    LayerSpec layer;
    layer.sublayers = Sublayers::kTokenMixer;
    if (kind == "mlp") {
      layer.sublayers = Sublayers::kMlp;
      layer.mlp = s.mlp;
      layer.mlp->inner = read_positive(block, "intermediate_size", block.at<int>("intermediate_size"));
    } else if (kind == "moe") {
      layer.sublayers = Sublayers::kMlp;
      layer.feed_forward = read_moe(block, s);
    } else if (kind == "mamba" || kind == "linear_attention") {
      layer.mixer = mixer_of<Mamba2>("mixer", read_mixer(block, s));
    } else if (kind != "attention" && kind != "full_attention") {
      block.refuse(own ? "block_type" : "layers_block_type",
                   fmt::format("unknown type '{}' (expected one of: mamba, attention, mlp, moe)", kind));
    } else if (own) {
      layer.window = block.get("sliding_window", 0);
      if (layer.window < 0) block.refuse("sliding_window", "must not be negative");
    }
    s.layers.push_back(std::move(layer));
  }
  if (blocks.empty() || config.get("num_hidden_layers", s.depth()) != s.depth()) {
    config.refuse("num_hidden_layers", fmt::format("contradicts the kinds of {} layers", s.depth()));
  }
}

// Refuses keys of a layer that nobody has read.
void check_blocks(const Config& config, const std::vector<Block>& blocks) {
  const Json& list = *config.find("block_configs");
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const std::string& key : blocks[i].config.unread()) {
      if (list[i].contains(key)) blocks[i].config.refuse(key, "is not supported");
    }
    note_reads(config, blocks[i].config, {});
  }
}

DecoderSpec read_model(const Config& config, LoadContext& context, std::string family, bool own) {
  const SizeKeys keys{.layers = nullptr, .inner = own ? nullptr : "intermediate_size", .default_max_positions = 4096};
  DecoderSpec s = read_sizes(config, std::move(family), keys);
  AttentionSpec& a = s.attention;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = static_cast<float>(config.get("layer_norm_epsilon", 1e-5));
  s.mlp.gated = false;
  s.mlp.in = {"up_proj"};
  s.mlp.bias = config.get("mlp_bias", false);
  s.mlp.activation = read_activation(config, "mlp_hidden_act", "relu2");
  // The reference always has a separate head, whatever the file says.
  s.tied_head = config.get("tie_word_embeddings", false);
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
  return s;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_model(config, context, "nemotron_h", false);
  const std::vector<Block> blocks = read_blocks(config);
  read_layers(config, s, blocks, false);
  for (const Block& block : blocks) note_reads(config, block.config, {});
  // read only by models with such layers
  for (const char* key : {"moe_intermediate_size", "moe_latent_size", "moe_shared_expert_intermediate_size",
                          "moe_shared_expert_overlap", "n_group", "n_routed_experts", "n_shared_experts",
                          "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "topk_group"}) {
    config.ignore(key);
  }
  for (const char* key :
       {"chunk_size", "conv_kernel", "mamba_head_dim", "mamba_hidden_act", "mamba_num_heads", "n_groups",
        "ssm_state_size", "time_step_limit", "time_step_min", "use_bias", "use_conv_bias"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

std::unique_ptr<Model> build_puzzle(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_model(config, context, "nemotron_h_puzzle", true);
  const std::vector<Block> blocks = read_puzzle_blocks(config);
  read_layers(config, s, blocks, true);
  check_blocks(config, blocks);
  return decoder_lm(std::move(s), context, max_len);
}

const std::vector<IgnoredKey> kIgnored{
    {"attention_head_dim"},
    {"norm_eps"},  // layer_norm_epsilon is read instead
    {"num_query_groups"},
    {"partial_rotary_factor"},  // the family rotates nothing
    {"rms_norm_eps"},
    {"rope_theta"},
    {"time_step_rank"},
    // Of models whose layers have their own settings:
    {"blockwise_members"},
    {"hybrid_override_pattern"},  // block_configs is read instead
    {"intermediate_size"},
    {"layers_block_type"},
    {"moe_shared_expert_overlap"},
    {"mtp_block_configs"},
    {"n_shared_experts"},
};
const ModelFamily family{
    .name = "nemotron_h", .architectures = {"NemotronHForCausalLM"}, .build = build, .ignored = kIgnored};
const ModelFamily puzzle{.name = "nemotron_h_puzzle",
                         .architectures = {"NemotronHPuzzleForCausalLM"},
                         .build = build_puzzle,
                         .ignored = kIgnored};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{family}, Registry<ModelFamily>{puzzle}};

}  // namespace
}  // namespace sluice::models::nemotron_h
