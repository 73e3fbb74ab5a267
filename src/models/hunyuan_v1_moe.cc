// Hunyuan A13B: norms of queries and keys after the rotation, routed experts and one shared expert.
#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "models/hunyuan.h"

namespace sluice::models::hunyuan_v1_moe {
namespace {

// Reads a number, or a list with one number per layer.
std::vector<int> read_per_layer(const Config& config, const char* key, int layers) {
  const Json* value = config.find(key);
  if (value == nullptr || !value->is_array()) return std::vector<int>(static_cast<size_t>(layers), config.get(key, 1));
  auto list = config.at<std::vector<int>>(key);
  if (std::ssize(list) != layers) config.refuse(key, fmt::format("has {} entries for {} layers", list.size(), layers));
  return list;
}

// Reads a number, or a list that repeats it for every layer, as in published files.
int read_uniform(const Config& config, const char* key, int fallback) {
  const Json* value = config.find(key);
  if (value == nullptr || !value->is_array()) return config.get(key, fallback);
  const auto list = config.at<std::vector<int>>(key);
  if (list.empty() || std::ranges::count(list, list.front()) != std::ssize(list)) {
    config.refuse(key, "differs between layers, which is not supported");
  }
  return list.front();
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = hunyuan_like(config, "hunyuan_v1_moe");
  MoeSpec& m = s.moe;
  m.experts = read_positive(config, "num_experts", config.at<int>("num_experts"));
  const std::vector<int> top_k = read_per_layer(config, "moe_topk", s.depth());
  m.inner = s.mlp.inner;
  m.activation = s.mlp.activation;
  for (int i = 0; i < s.depth(); ++i) {
    s.layers[i].moe = true;
    s.layers[i].top_k = read_positive(config, "moe_topk", top_k[i]);
    if (top_k[i] > m.experts)
      config.refuse("moe_topk", fmt::format("{} is more than the {} experts", top_k[i], m.experts));
  }
  if (read_uniform(config, "moe_intermediate_size", m.inner) != m.inner) {
    config.refuse("moe_intermediate_size", "must equal intermediate_size");
  }
  if (read_uniform(config, "num_shared_expert", 1) != 1) config.refuse("num_shared_expert", "must be 1");
  s.moe.normalize = true;
  s.moe.router = "gate.wg";
  s.moe.shared = "shared_mlp";
  s.moe.shared_inner = s.mlp.inner;
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "hunyuan_v1_moe",
    .architectures = {"HunYuanMoEV1ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"attention_head_dim"},
            {"cla_share_factor"},
            {"dense_list"},
            {"group_limited_greedy", "false"},
            {"image_token_id"},
            {"moe_drop_tokens"},
            {"moe_layer_num_skipped", "0"},
            {"moe_random_routing_dropped_token", "false"},
            {"n_group", "false"},
            {"norm_topk_prob", "true"},
            {"norm_type", "\"rms\""},
            {"num_media_embeds"},
            {"position_embedding_xdrope", "false"},
            {"routed_scaling_factor", "false"},
            {"skip_cls_token"},
            {"topk_group", "false"},
            {"use_cla", "false"},
            {"use_mixed_mlp_moe", "true"},
            {"use_mla", "false"},
            {"use_qk_norm", "true"},
            {"use_recompute"},
            {"use_rotary_pos_emb", "true"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::hunyuan_v1_moe
