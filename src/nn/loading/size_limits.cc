// The table of keys that are sizes, for all families.
#include "nn/loading/size_limits.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/json.h"

namespace sluice {
namespace {

// Counts of parts that have tensors of their own, or, as shared experts, lie together in one. Sorted.
constexpr auto kCounts = std::to_array<std::string_view>({
    "altup_num_inputs",
    "inner_group_num",
    "moe_num_shared_experts",
    "n_layer",
    "n_layers",
    "n_shared_experts",
    "num_dense_layers",
    "num_hidden_groups",
    "num_hidden_layers",
    "num_layers",
    "num_mem_blocks",
    "num_nextn_predict_layers",
    "num_shared_experts",
});
static_assert(std::ranges::is_sorted(kCounts));

// Sizes that are a dimension of some tensor, or a factor of one. Sorted.
constexpr auto kWidths = std::to_array<std::string_view>({
    "adapter_rank",
    "attention_head_dim",
    "attention_heads",
    "attention_hidden_size",
    "block_multiple_of",
    "conv1d_width",
    "conv_L_cache",
    "conv_kernel",
    "d_model",
    "dense_intermediate_size",
    "dim",
    "embedding_size",
    "expert_ffn_hidden_size",
    "expert_hidden_dim",
    "ffn_dim",
    "ffn_hidden_size",
    "global_head_dim",
    "hc_mult",
    "head_dim",
    "hidden_dim",
    "hidden_size",
    "hidden_size_per_head",
    "hidden_size_per_layer_input",
    "index_head_dim",
    "index_n_heads",
    "intermediate_size",
    "intermediate_size_mlp",
    "kv_channels",
    "kv_lora_rank",
    "kv_n_heads",
    "laurel_rank",
    "linear_conv_kernel_dim",
    "linear_head_dim",
    "linear_key_head_dim",
    "linear_num_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "lru_width",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_ssm",
    "mamba_d_state",
    "mamba_dt_rank",
    "mamba_head_dim",
    "mamba_headdim",
    "mamba_n_groups",
    "mamba_n_heads",
    "mamba_ngroups",
    "mamba_num_heads",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_num_experts",
    "moe_shared_expert_intermediate_size",
    "multi_query_group_num",
    "n_embd",
    "n_groups",
    "n_head",
    "n_heads",
    "n_inner",
    "n_mamba_heads",
    "n_routed_experts",
    "num_attention_groups",
    "num_attention_heads",
    "num_experts",
    "num_heads",
    "num_key_value_heads",
    "num_kv_heads",
    "num_kv_heads_for_linear_attn",
    "num_local_experts",
    "o_groups",
    "o_lora_rank",
    "padded_vocab_size",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "rotary_dim",
    "share_expert_dim",
    "share_q_dim",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "short_conv_kernel_size",
    "ssm_state_size",
    "state_size",
    "swa_head_dim",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_v_head_dim",
    "time_step_rank",
    "true_head_dim",
    "type_vocab_size",
    "v_head_dim",
    "vocab_size",
    "vocab_size_per_layer_input",
    "word_embed_proj_dim",
    "zero_expert_num",
});
static_assert(std::ranges::is_sorted(kWidths));

// Values up to these cost little, and small checkpoints have keys that their family does not use.
constexpr int64_t kSmallCount = 64;
constexpr int64_t kSmallWidth = 1 << 16;

struct Limits {
  int64_t tensors = 0;
  int64_t widest = 0;  // largest dimension
  std::string widest_name;
};

// Nested objects that describe no layers, or layers that are not loaded. Their sizes have checks of their own.
bool skipped(std::string_view key) {
  for (const std::string_view part : {"vision", "audio", "quantization", "label", "image"}) {
    if (key.find(part) != std::string_view::npos) return true;
  }
  return false;
}

void check_object(const Config& config, const Json& object, const std::string& path, const Limits& limits) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object() && !skipped(key)) check_object(config, value, path + key + ".", limits);
    if (!value.is_number()) continue;
    const bool is_count = std::ranges::binary_search(kCounts, key);
    if (!is_count && !std::ranges::binary_search(kWidths, key)) continue;
    const int64_t most = is_count ? std::max(limits.tensors, kSmallCount) : std::max(limits.widest, kSmallWidth);
    if (value.get<double>() <= static_cast<double>(most)) continue;
    config.refuse(path + key, is_count ? fmt::format("{} is impossible: the checkpoint has only {} tensors",
                                                     dump_json(value), limits.tensors)
                                       : fmt::format("{} is impossible: the largest dimension in the checkpoint is {}, "
                                                     "of tensor '{}'",
                                                     dump_json(value), limits.widest, limits.widest_name));
  }
}

}  // namespace

void check_sizes(const Checkpoint& checkpoint) {
  Limits limits;
  limits.tensors = static_cast<int64_t>(checkpoint.tensors().size());
  for (const auto& [name, entry] : checkpoint.tensors()) {
    for (int i = 0; i < entry.shape.rank(); ++i) {
      if (entry.shape[i] <= limits.widest) continue;
      limits.widest = entry.shape[i];
      limits.widest_name = name;
    }
  }
  check_object(checkpoint.config, checkpoint.config.values(), "", limits);
}

}  // namespace sluice
