// Mamba (Gu and Dao 2023, arXiv:2312.00752).
#include "models/mamba.h"

#include <fmt/core.h>

#include "base/json.h"

namespace sluice {

DecoderSpec mamba_like(const Config& config, std::string family, bool tied_head) {
  DecoderSpec s;
  s.family = std::move(family);
  s.vocab = read_positive(config, "vocab_size", config.at<int>("vocab_size"));
  s.hidden = read_positive(config, "hidden_size", config.at<int>("hidden_size"));
  s.layers.resize(static_cast<size_t>(read_positive(config, "num_hidden_layers", config.at<int>("num_hidden_layers"))));
  s.max_positions = kNoPositionLimit;
  s.norm.eps = static_cast<float>(config.get("layer_norm_epsilon", 1e-5));
  s.tied_head = config.get("tie_word_embeddings", tied_head);
  s.names.body = "backbone";
  s.names.embedding = "embeddings";
  s.names.norm = "norm_f";
  s.names.attention_norm = "norm";
  for (LayerSpec& layer : s.layers) layer.sublayers = Sublayers::kTokenMixer;
  // These keys concern initialization and the choice of kernels.
  for (const char* key : {"residual_in_fp32", "rescale_prenorm_residual", "time_step_floor", "time_step_init_scheme",
                          "time_step_max", "time_step_min", "time_step_scale", "use_associative_scan", "use_mambapy"}) {
    config.ignore(key);
  }
  return s;
}

int read_dt_rank(const Config& config, const char* key, int hidden) {
  const int automatic = (hidden + 15) / 16;
  const Json* value = config.find(key);
  if (value != nullptr && value->is_string() && *value == "auto") return automatic;
  return read_positive(config, key, config.get(key, automatic));
}

int read_conv_width(const Config& config, const char* key, int fallback) {
  const int width = read_positive(config, key, config.get(key, fallback));
  if (width > ops::kMaxConvWidth) config.refuse(key, fmt::format("{} is more than {}", width, ops::kMaxConvWidth));
  return width;
}

MambaSpec read_mamba(const Config& config, const DecoderSpec& spec) {
  MambaSpec m;
  const int expanded = static_cast<int>(config.get("expand", 2.0) * spec.hidden);
  m.inner = read_positive(config, "intermediate_size", config.get("intermediate_size", expanded));
  m.state = read_positive(config, "state_size", config.get("state_size", 16));
  m.dt_rank = read_dt_rank(config, "time_step_rank", spec.hidden);
  m.conv_width = read_conv_width(config, "conv_kernel", 4);
  m.conv_bias = config.get("use_conv_bias", true);
  m.bias = config.get("use_bias", false);
  m.activation = read_activation(config, "hidden_act", "silu");
  return m;
}

Mamba2Spec read_mamba2(const Config& config, const DecoderSpec& spec, const Mamba2Keys& keys) {
  const auto positive = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  Mamba2Spec m;
  m.heads = positive(keys.heads, 128);
  int inner = keys.expand != nullptr ? static_cast<int>(config.get(keys.expand, 2.0) * spec.hidden)
                                     : m.heads * positive(keys.head_dim, 64);
  if (keys.inner != nullptr) inner = config.get(keys.inner, inner);
  const Json* head_dim = config.find(keys.head_dim);
  const bool automatic = head_dim == nullptr || (head_dim->is_string() && *head_dim == "auto");
  m.head_dim = automatic ? inner / m.heads : positive(keys.head_dim, 0);
  if (int64_t{m.heads} * m.head_dim != inner) {
    config.refuse(keys.heads, fmt::format("{} heads of {} must equal {} = {} * hidden_size", m.heads, m.head_dim, inner,
                                          keys.inner != nullptr ? keys.inner : keys.expand));
  }
  m.groups = positive(keys.groups, keys.default_groups);
  if (m.heads % m.groups != 0)
    config.refuse(keys.groups, fmt::format("{} does not divide {} heads", m.groups, m.heads));
  m.state = positive(keys.state, keys.default_state);
  m.conv_width = read_conv_width(config, keys.conv, 4);
  m.conv_bias = config.get(keys.conv_bias, true);
  m.in_bias = m.out_bias = config.get(keys.bias, false);
  m.activation = read_activation(config, keys.activation, "silu");
  m.norm_eps = spec.norm.eps;
  const auto limit = config.get("time_step_limit", std::vector<double>{m.dt_low, m.dt_high});
  if (limit.size() != 2 || !(limit[0] <= limit[1])) config.refuse("time_step_limit", "must be a range [low, high]");
  m.dt_low = static_cast<float>(limit[0]);
  m.dt_high = static_cast<float>(limit[1]);
  for (const char* key : {"chunk_size", "mamba_chunk_size"}) config.ignore(key);  // how the reference splits its work
  return m;
}

std::vector<bool> read_recurrent_layers(const Config& config, const std::vector<std::string>& kinds, const char* key,
                                        int layers) {
  if (static_cast<int>(kinds.size()) != layers) {
    config.refuse(key, fmt::format("has {} entries for {} layers", kinds.size(), layers));
  }
  std::vector<bool> recurrent;
  for (const std::string& kind : kinds) {
    recurrent.push_back(kind == "linear_attention" || kind == "mamba");
    if (!recurrent.back() && kind != "full_attention" && kind != "attention") {
      config.refuse(key, fmt::format("unknown type '{}' (expected linear_attention or full_attention)", kind));
    }
  }
  return recurrent;
}

}  // namespace sluice

namespace sluice::models::mamba {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = mamba_like(config, "mamba", true);
  const MambaSpec mamba = read_mamba(config, s);
  for (LayerSpec& layer : s.layers) layer.mixer = mixer_of<Mamba>("mixer", mamba);
  // The original code's names for the same settings, which conversions kept.
  for (const char* key : {"d_inner", "d_model", "fused_add_norm", "n_layer", "numb_hidden_layers",
                          "pad_vocab_size_multiple", "rms_norm", "ssm_cfg"}) {
    config.ignore(key);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "mamba", .architectures = {"MambaForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::mamba
