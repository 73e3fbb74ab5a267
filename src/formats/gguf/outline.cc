// Reads the sizes of transformers under their usual keys.
#include "formats/gguf/outline.h"

#include <fmt/core.h>

#include <cstring>
#include <initializer_list>

#include "base/json.h"

namespace sluice::gguf::outline {
namespace {

using Keys = std::initializer_list<const char*>;

// The first of the keys that is a number; 0: none is.
int64_t first_of(const Json& config, Keys keys) {
  for (const char* key : keys) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_number_integer()) return found->get<int64_t>();
  }
  return 0;
}

}  // namespace
}  // namespace sluice::gguf::outline

namespace sluice {

GgufOutline::GgufOutline(const Config& config, std::string_view architecture)
    : prefix_(fmt::format("{}.", architecture)) {
  using gguf::outline::first_of;
  file_.metadata.file = config.origin();
  const Json& c = config.values();
  const int64_t layers = first_of(c, {"num_hidden_layers", "n_layer", "num_layers", "n_layers"});
  const int64_t hidden = first_of(c, {"hidden_size", "n_embd", "d_model"});
  const int64_t heads = first_of(c, {"num_attention_heads", "n_head", "n_heads"});
  const int64_t experts = first_of(c, {"num_local_experts", "num_experts", "n_routed_experts"});
  int64_t head_dim = first_of(c, {"head_dim"});
  if (head_dim == 0 && heads > 0) head_dim = hidden / heads;
  set("block_count", layers);
  set("context_length", int64_t{1});
  set("embedding_length", hidden);
  const int64_t inner = first_of(c, {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"});
  set("feed_forward_length", inner != 0 ? inner : 4 * hidden);
  set("attention.head_count", heads);
  set("attention.head_count_kv", first_of(c, {"num_key_value_heads", "n_head_kv", "num_kv_heads"}));
  set("attention.key_length", head_dim);
  set("attention.value_length", head_dim);
  set("attention.layer_norm_rms_epsilon", 1e-5);
  set("attention.layer_norm_epsilon", 1e-5);
  set("logit_scale", 1.0);
  set("attention.sliding_window", first_of(c, {"sliding_window"}));
  set("expert_count", experts);
  if (experts > 0) {
    set("expert_used_count", first_of(c, {"num_experts_per_tok"}));
    set("expert_feed_forward_length", first_of(c, {"moe_intermediate_size", "intermediate_size"}));
    set("expert_shared_feed_forward_length", first_of(c, {"shared_expert_intermediate_size"}));
    set("expert_shared_count", first_of(c, {"n_shared_experts", "num_shared_experts"}));
    set("leading_dense_block_count", first_of(c, {"first_k_dense_replace"}));
  }
  add_tensor("token_embd.weight", {std::max(first_of(c, {"vocab_size"}), int64_t{1}), std::max(hidden, int64_t{1})});
  for (int64_t i = 0; i < layers; ++i) add_tensor(fmt::format("blk.{}.attn_norm.weight", i), {1});
}

template <class T>
void GgufOutline::add(std::string_view key, GgufValue::Type type, T value) {
  std::array<std::byte, 8>& memory = values_.emplace_back();
  std::memcpy(memory.data(), &value, sizeof value);
  file_.metadata.values.emplace(prefix_ + std::string(key), GgufValue{.type = type, .data = memory.data()});
}

void GgufOutline::set(std::string_view key, int64_t value) {
  if (value != 0) add(key, GgufValue::Type::kInt64, value);
}

void GgufOutline::set(std::string_view key, double value) { add(key, GgufValue::Type::kFloat64, value); }

void GgufOutline::add_tensor(std::string name, const Shape& shape) {
  file_.tensors.push_back({.name = std::move(name), .dtype = &kFloat32, .shape = shape});
}

}  // namespace sluice
