// MiniMax-01 and MiniMax-M1: lightning attention with some softmax-attention layers, experts, and norms that replace
// the residual stream (arXiv:2501.08313, arXiv:2506.13585). Both the published format and transformers' are read.
#include <fmt/core.h>

#include <cmath>

#include "models/mamba.h"
#include "models/mixtral.h"
#include "nn/recurrent/lightning.h"

namespace sluice::models::minimax {
namespace {

float read_factor(const Config& config, const char* key) {
  const float value = config.get(key, 1.0f);
  if (!(value > 0)) config.refuse(key, fmt::format("must be positive, not {}", value));
  return value;
}

// The reference stores the decay factors of its work blocks beside the weights. They follow from the sizes; checkpoints
// with other factors are refused.
class StoredDecays {
 public:
  StoredDecays(const Weights& w, const std::vector<float>& rates, int block)
      : w_(w), rates_(rates), heads_(static_cast<int64_t>(rates.size())), block_(block) {
    check("slope_rate", {heads_, 1, 1}, [](double rate, int64_t) { return -rate; });
    check("query_decay", {heads_, block_, 1}, [](double rate, int64_t i) { return std::exp(rate * (i + 1)); });
    check("key_decay", {heads_, block_, 1}, [&](double rate, int64_t i) { return std::exp(rate * (block_ - 1 - i)); });
    check("diagonal_decay", {1, heads_, block_, block_}, [&](double rate, int64_t i) {
      const int64_t distance = i / block_ - i % block_;
      return distance < 0 ? 0.0 : std::exp(rate * distance);
    });
  }

 private:
  // Checks each value against expected(rate of the head, index within the head).
  template <class F>
  void check(const char* name, const Shape& shape, F&& expected) {
    if (!w_.has(name)) return;
    const TensorEntry* entry = w_.tensor(name, shape);
    if (entry == nullptr || w_.context().dry) return;
    const int64_t each = shape.elements() / heads_;
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    to_float(entry->dtype, entry->data, values.data(), values.size());
    constexpr double kRounding = 0.01;  // tolerance for 16-bit types
    for (size_t i = 0; i < values.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      if (std::abs(values[i] - expected(rates_[index / each], index % each)) <= kRounding) continue;
      w_.context().add_problem(fmt::format(
          "tensor '{}' does not match the decays that follow from the sizes; other decays are not supported",
          entry->name));
      return;
    }
  }

  const Weights& w_;
  const std::vector<float>& rates_;
  int64_t heads_, block_;
};

MakeTokenMixer make_lightning(LightningSpec spec, int block) {
  return [spec = std::move(spec), block](const Weights& layer, int hidden) {
    const Weights w = layer / "self_attn";
    StoredDecays(w, spec.rates, block);
    return std::make_unique<Lightning>(w, spec, hidden);
  };
}

// Keys of the blends: transformers' and those of the code that was published with the models.
struct BlendKeys {
  const char *full_kept, *full_added, *linear_kept, *linear_added, *mlp_kept, *mlp_added;
};
constexpr BlendKeys kKeys{"full_attn_alpha_factor",  "full_attn_beta_factor", "linear_attn_alpha_factor",
                          "linear_attn_beta_factor", "mlp_alpha_factor",      "mlp_beta_factor"};
constexpr BlendKeys kPublishedKeys{
    "layernorm_full_attention_alpha",  "layernorm_full_attention_beta", "layernorm_linear_attention_alpha",
    "layernorm_linear_attention_beta", "layernorm_mlp_alpha",           "layernorm_mlp_beta"};

// Makes the layers from mixtral_like()'s; `block` is the size of the reference's work blocks.
void set_layers(const Config& config, DecoderSpec& s, const std::vector<bool>& recurrent, const BlendKeys& keys,
                int block) {
  const Blend full{read_factor(config, keys.full_kept), read_factor(config, keys.full_added)};
  const Blend linear{read_factor(config, keys.linear_kept), read_factor(config, keys.linear_added)};
  const Blend mlp{read_factor(config, keys.mlp_kept), read_factor(config, keys.mlp_added)};
  const AttentionSpec& a = s.attention;
  for (int i = 0; i < s.depth(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.mixer_blend = recurrent[i] ? linear : full;
    layer.mlp_blend = mlp;
    if (!recurrent[i]) continue;
    const LightningSpec lightning{.heads = a.heads,
                                  .head_dim = a.head_dim,
                                  .activation = s.mlp.activation,
                                  .rates = lightning_rates(a.heads, i, s.depth())};
    layer.mixer = make_lightning(lightning, block);
  }
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mixtral_like(config, "minimax");
  s.normed_residual = true;
  std::vector<std::string> kinds;
  for (int i = 0; i < s.depth(); ++i) kinds.emplace_back(i % 2 == 0 ? "full_attention" : "linear_attention");
  kinds = config.get("layer_types", kinds);
  const std::vector<bool> recurrent = read_recurrent_layers(config, kinds, "layer_types", s.depth());
  set_layers(config, s, recurrent, kKeys, read_positive(config, "block_size", config.get("block_size", 256)));
  return decoder_lm(std::move(s), context, max_len);
}

// Reads "attn_type_list": 0 for lightning attention, 1 for softmax attention.
std::vector<bool> read_published_layers(const Config& config, int depth) {
  const auto kinds = config.get("attn_type_list", std::vector<int>(static_cast<size_t>(depth), 1));
  if (kinds.size() != static_cast<size_t>(depth)) {
    config.refuse("attn_type_list", fmt::format("has {} entries for {} layers", kinds.size(), depth));
  }
  std::vector<bool> recurrent;
  for (const int kind : kinds) {
    if (kind != 0 && kind != 1) config.refuse("attn_type_list", fmt::format("unknown type {} (expected 0 or 1)", kind));
    recurrent.push_back(kind == 0);
  }
  return recurrent;
}

// The format in which MiniMax-Text-01 and MiniMax-M1 were published.
std::unique_ptr<Model> build_published(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mixtral_like(config, "minimax_text_01");
  const int heads = s.attention.heads, head_dim = s.attention.head_dim;
  if ((heads & (heads - 1)) != 0) config.refuse("num_attention_heads", "must be a power of two");
  const int rotary_dim = config.get("rotary_dim", head_dim);
  if (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0) {
    config.refuse("rotary_dim", fmt::format("must be even and at most {}, not {}", head_dim, rotary_dim));
  }
  s.ropes = {read_rope(config, rotary_dim, s.max_positions)};
  s.normed_residual = config.get("postnorm", false);
  if (config.get("shared_intermediate_size", 0) != 0) {
    config.refuse("shared_intermediate_size", "must be 0: shared experts are not supported");
  }
  config.ignore("shared_moe_mode");
  constexpr int kBlock = 256;
  set_layers(config, s, read_published_layers(config, s.depth()), kPublishedKeys, kBlock);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "minimax", .architectures = {"MiniMaxForCausalLM"}, .build = build};
const ModelFamily published{.name = "minimax_text_01",
                            .architectures = {"MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"},
                            .build = build_published};
const Registry<ModelFamily> registered[] = {Registry<ModelFamily>{family}, Registry<ModelFamily>{published}};

}  // namespace
}  // namespace sluice::models::minimax
