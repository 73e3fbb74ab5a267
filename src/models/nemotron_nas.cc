// Llama Nemotron Super and Ultra (DeciLM): Llama whose layers were individually pruned by architecture search
// (arXiv:2411.19146).
#include <fmt/core.h>

#include "base/json.h"
#include "nn/decoder_config.h"

namespace sluice::models::nemotron_nas {
namespace {

// Returns the settings of block i's sublayer from the array of objects, with a name for errors.
Config block_of(const Config& config, const Json& blocks, size_t i, const char* sublayer) {
  const std::string origin = fmt::format("{}: block_configs[{}].{}", config.origin(), i, sublayer);
  if (!blocks[i].is_object() || !blocks[i].contains(sublayer) || !blocks[i][sublayer].is_object()) {
    config.refuse("block_configs", fmt::format("entry {} has no object '{}'", i, sublayer));
  }
  return Config(blocks[i][sublayer], origin);
}

// Refuses replacements of a sublayer that the search allows but no published model uses.
void refuse_replacements(const Config& block, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const Json* value = block.find(key);
    if (value != nullptr && !(value->is_boolean() && !value->get<bool>())) block.refuse(key, "is not supported");
  }
}

// Converts a multiple of the hidden size to a width: two thirds of it, rounded up to a multiple of 256.
int width_of(double ffn_mult, int hidden) {
  const int inner = static_cast<int>(2 * ffn_mult * hidden / 3);
  return (inner + 255) / 256 * 256;
}

void read_attention(const Config& block, const AttentionSpec& whole, LayerSpec& layer) {
  refuse_replacements(block, {"replace_with_linear", "sparsify", "unshifted_sink", "window_length", "num_sink_tokens",
                              "use_prefill_window_in_sink_attention"});
  if (block.get("no_op", false)) {
    block.ignore("n_heads_in_group");
    layer.sublayers = Sublayers::kMlp;
    return refuse_unread(block);
  }
  AttentionSpec own = whole;
  const int group = read_positive(block, "n_heads_in_group", block.at<int>("n_heads_in_group"));
  if (own.heads % group != 0)
    block.refuse("n_heads_in_group", fmt::format("{} does not divide {} heads", group, own.heads));
  own.kv_heads = own.heads / group;
  layer.mixer = [own](const Weights& w, int hidden) {
    return std::make_unique<Attention>(w / "self_attn", own, hidden);
  };
  refuse_unread(block);
}

void read_mlp(const Config& block, const MlpSpec& whole, int hidden, LayerSpec& layer) {
  refuse_replacements(block, {"replace_with_linear", "sparsify"});
  if (block.get("no_op", false)) {
    for (const char* key : {"ffn_mult", "intermediate_size", "hidden_act"}) block.ignore(key);
    if (layer.sublayers == Sublayers::kMlp) block.refuse("no_op", "is true for both sublayers of the layer");
    layer.sublayers = Sublayers::kTokenMixer;
    return refuse_unread(block);
  }
  MlpSpec own = whole;
  own.inner =
      block.has("ffn_mult") ? width_of(block.at<double>("ffn_mult"), hidden) : block.at<int>("intermediate_size");
  read_positive(block, "intermediate_size", own.inner);
  if (block.has("hidden_act")) own.activation = read_activation(block, "hidden_act", "silu");
  layer.mlp = own;
  refuse_unread(block);
}

std::unique_ptr<Model> build(const Config& published, LoadContext& context, int max_len) {
  // Sizes that each block sets are null or absent at the top level.
  Json values = published.values();
  values.erase("num_key_value_heads");
  if (!values.contains("intermediate_size") || values["intermediate_size"].is_null()) values["intermediate_size"] = 1;
  for (const auto& [key, value] : published.values().items()) published.ignore(key);
  const Config config(std::move(values), published.origin());
  DecoderSpec s = llama_like(config, "nemotron_nas");
  read_attention_bias(config, s, true);
  s.mlp.bias = config.get("mlp_bias", false);
  const Json* blocks = config.find("block_configs");
  if (blocks == nullptr || !blocks->is_array() || blocks->size() != s.layers.size()) {
    config.refuse("block_configs", fmt::format("must be a list of {} objects", s.layers.size()));
  }
  for (size_t i = 0; i < s.layers.size(); ++i) {
    read_attention(block_of(config, *blocks, i, "attention"), s.attention, s.layers[i]);
    read_mlp(block_of(config, *blocks, i, "ffn"), s.mlp, s.hidden, s.layers[i]);
  }
  refuse_unread(config);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "nemotron_nas", .architectures = {"DeciLMForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::nemotron_nas
