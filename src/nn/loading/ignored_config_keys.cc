// Decides which unread configuration keys of a checkpoint are harmless.
#include "nn/loading/ignored_config_keys.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace sluice {
namespace {

constexpr IgnoredKey kOfEveryFamily[] = {
    // Only generate() of transformers, tokenizers and trainers read these.
    {"cache_implementation"},
    {"class_num"},
    {"im_end_id"},
    {"im_newline_id"},
    {"im_start_id"},
    {"init_method"},
    {"is_llama_config"},
    {"logits_to_keep"},
    {"mask_init_id"},
    {"max_sequence_length"},
    {"max_tokenizer_truncation"},
    {"model_max_length"},
    {"n_ctx"},
    {"num_logits_to_keep"},
    {"org_vocab_size"},
    {"pad_id"},
    {"pool_type"},
    {"sep_id"},
    {"text_end_id"},
    {"text_start_id"},
    {"tokenizer_name"},
    // These switch on something that no family has; "off" is accepted.
    {"add_classification_head", "false"},
    {"attention_bias", "false"},
    {"lm_head_bias", "false"},
    {"mlp_bias", "false"},
    {"mlp_only_layers", "[]"},
    {"qkv_bias", "false"},
    {"rope_interleaved", "false"},
    {"use_mrope", "false"},
    {"use_sliding_window", "false"},
};

const IgnoredKey* find(std::span<const IgnoredKey> keys, std::string_view key) {
  const auto found = std::ranges::find(keys, key, &IgnoredKey::key);
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> unknown_config_keys(const Config& config, std::span<const IgnoredKey> of_family) {
  std::vector<std::string> out;
  for (const std::string& key : config.unread()) {
    const IgnoredKey* ignored = find(kOfEveryFamily, key);
    if (ignored == nullptr) ignored = find(of_family, key);
    if (ignored == nullptr) {
      out.push_back(fmt::format("'{}'", key));
    } else if (const Json& value = config.values()[key];
               !ignored->value.empty() && value != parse_json(ignored->value)) {
      out.push_back(fmt::format("'{}' ({}; {} is supported)", key, dump_json(value), ignored->value));
    }
  }
  return out;
}

}  // namespace sluice
