// Step-3 (arXiv:2507.19427), text: one key head, queries that are projected in two steps, and experts beside a shared
// expert.
#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "base/json.h"
#include "models/step3.h"

namespace sluice {
namespace {

// Layer numbers, as a list or as text with commas.
std::vector<int> read_numbers(const Config& config, const char* key) {
  const Json* value = config.find(key);
  if (value == nullptr || !value->is_string()) return config.get(key, std::vector<int>{});
  std::vector<int> numbers;
  const auto text = value->get<std::string>();
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    while (at < end && text[at] == ' ') ++at;
    int number = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, number);
    if (error != std::errc() || text.find_first_not_of(' ', static_cast<size_t>(stop - text.data())) < end)
      config.refuse(key, fmt::format("'{}' is not a list of numbers", text));
    numbers.push_back(number);
    at = end + 1;
  }
  return numbers;
}

}  // namespace

DecoderSpec read_step(const Config& config, std::string family, const char* kv_heads) {
  DecoderSpec s = read_sizes(config, std::move(family), {.kv_heads = kv_heads});
  AttentionSpec& a = s.attention;
  if (kv_heads == nullptr) a.kv_heads = 1;
  a.head_dim = read_positive(config, "head_dim", config.get("head_dim", a.head_dim));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  s.norm.eps = config.get("rms_norm_eps", 1e-5f);
  s.tied_head = config.get("tie_word_embeddings", false);
  s.mlp.activation = read_activation(config, "hidden_act", "silu");
  return s;
}

void read_step_experts(const Config& config, DecoderSpec& s, int first) {
  const int inner = read_positive(config, "moe_intermediate_size", config.at<int>("moe_intermediate_size"));
  read_experts(config, s, "moe_num_experts", "moe_top_k", inner);
  MoeSpec& m = s.moe;
  m.normalize = true;
  m.layout = ExpertLayout::kStackedApart;
  m.router = "moe.gate";
  m.gate = "moe.gate_proj";
  m.up = "moe.up_proj";
  m.down = "moe.down_proj";
  m.shared = "share_expert";
  m.shared_inner = read_positive(config, "share_expert_dim", config.at<int>("share_expert_dim"));
  for (int i = 0; i < s.depth(); ++i) s.layers[i].moe = i >= first;
  if (!config.has("moe_layers_enum")) return;
  for (LayerSpec& layer : s.layers) layer.moe = false;
  for (const int i : read_numbers(config, "moe_layers_enum")) {
    if (i >= 0 && i < s.depth()) s.layers[i].moe = true;  // numbers beyond are those of prediction layers
  }
}

}  // namespace sluice

namespace sluice::models::step3_text {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_step(config, "step3_text", nullptr);
  AttentionSpec& a = s.attention;
  a.q_rank = read_positive(config, "share_q_dim", config.get("share_q_dim", a.head_dim));
  a.qk_norm_spec = s.norm;
  a.q_inner_norm = "inter_norm";
  a.q_up = "wq";
  // the published spelling
  s.max_positions =
      read_positive(config, "max_position_embedding", config.get("max_position_embedding", s.max_positions));
  s.ropes = {read_rope(config, a.head_dim, s.max_positions, {.theta = 500000.0})};
  read_step_experts(config, s, 1);
  s.moe.normalize = config.get("norm_expert_weight", false);
  for (LayerSpec& layer : s.layers) {
    if (layer.moe) layer.feed_forward = experts_of("", s.moe);
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "step3_text",
    .architectures = {"Step3TextForCausalLM"},
    .build = build,
    .ignored =
        {
            {"max_seq_len"},
            {"num_attention_groups", "1"},
            {"share_expert_dims"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::step3_text
