// Translates GGUF metadata to Hugging Face's configuration: the part that all architectures share.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "formats/gguf/architecture.h"
#include "sluice/error.h"

namespace sluice {

GgufConfig::GgufConfig(const GgufFile& file, std::string_view architecture)
    : file_(file), prefix_(fmt::format("{}.", architecture)) {}

std::string GgufConfig::full(std::string_view key) const { return fmt::format("{}{}", prefix_, key); }

bool GgufConfig::has(std::string_view key) const { return file_.metadata.has(full(key)); }

void GgufConfig::refuse(std::string_view key, const std::string& message) const {
  file_.metadata.fail(full(key), message, ErrorCode::kUnsupportedModel);
}

void GgufConfig::ignore(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) read_.insert(full(key));
}

std::vector<std::string> GgufConfig::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : file_.metadata.values) {
    if (key.starts_with(prefix_) && !read_.contains(key)) keys.push_back(key);
  }
  return keys;
}

int64_t GgufConfig::integer(std::string_view key) {
  const std::string name = full(key);
  read_.insert(name);
  const GgufValue* value = file_.metadata.find(name);
  if (value == nullptr) refuse(key, "is missing");
  if (!value->array) return *file_.metadata.integer(name);
  const std::vector<int64_t> list = file_.metadata.integers(name);
  if (list.empty()) refuse(key, "is empty");
  if (std::ranges::any_of(list, [&](int64_t v) { return v != list[0]; })) {
    refuse(key, "differs from layer to layer, which is not supported");
  }
  return list[0];
}

double GgufConfig::number(std::string_view key) {
  const std::string name = full(key);
  read_.insert(name);
  const auto value = file_.metadata.number(name);
  if (!value) refuse(key, "is missing");
  return *value;
}

void GgufConfig::integer(std::string_view key, const char* hf_key, bool required) {
  if (required || has(key)) hf[hf_key] = integer(key);
}

void GgufConfig::number(std::string_view key, const char* hf_key, bool required) {
  if (required || has(key)) hf[hf_key] = number(key);
}

double GgufConfig::number_or(std::string_view key, double fallback) { return has(key) ? number(key) : fallback; }

int64_t GgufConfig::integer_or(std::string_view key, int64_t fallback) { return has(key) ? integer(key) : fallback; }

std::vector<int64_t> GgufConfig::of_layers(std::string_view key) {
  const std::string name = full(key);
  const GgufValue* value = file_.metadata.find(name);
  if (value == nullptr || !value->array) return std::vector<int64_t>(static_cast<size_t>(layers_), integer(key));
  read_.insert(name);
  std::vector<int64_t> numbers = file_.metadata.integers(name);
  if (static_cast<int64_t>(numbers.size()) != blocks_) refuse(key, "expected one entry per layer");
  numbers.resize(static_cast<size_t>(layers_));
  return numbers;
}

std::vector<double> GgufConfig::numbers(std::string_view key) {
  read_.insert(full(key));
  return file_.metadata.numbers(full(key));
}

std::vector<double> GgufConfig::unprefixed_numbers(std::string_view key) const { return file_.metadata.numbers(key); }

std::string GgufConfig::pooling() {
  constexpr const char* kNames[] = {"", "mean", "cls", "lasttoken"};  // llama.cpp's numbers
  const int64_t type = integer_or("pooling_type", 0);
  constexpr int64_t kRank = 4;  // llama.cpp's number for the scores of a classifier
  if (type == kRank && hf["architectures"][0].get<std::string>().ends_with("ForSequenceClassification")) return "";
  if (type < 0 || type >= static_cast<int64_t>(std::size(kNames))) {
    refuse("pooling_type", fmt::format("{} is not supported", type));
  }
  return kNames[type];
}

bool GgufConfig::boolean_or(std::string_view key, bool fallback) {
  read_.insert(full(key));
  return file_.metadata.boolean(full(key)).value_or(fallback);
}

std::string GgufConfig::text_or(std::string_view key, std::string_view fallback) {
  read_.insert(full(key));
  return std::string(file_.metadata.text(full(key)).value_or(fallback));
}

const TensorEntry* GgufConfig::tensor(std::string_view name) const {
  const auto found = std::ranges::find(file_.tensors, name, &TensorEntry::name);
  return found == file_.tensors.end() ? nullptr : &*found;
}

std::vector<double> GgufConfig::values(std::string_view name) const {
  const TensorEntry* entry = tensor(name);
  if (entry == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(entry->shape.elements()));
  entry->read(values.data());
  return {values.begin(), values.end()};
}

void GgufConfig::architecture(const char* name, const char* model_type) {
  hf["architectures"] = Json::array({name});
  hf["model_type"] = model_type;
}

void GgufConfig::sizes(Causal wanted) {
  const TensorEntry* embedding = tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: tensor token_embd.weight is missing or not a matrix", file_.metadata.file));
  }
  hf["vocab_size"] = embedding->shape[0];
  hf["hidden_size"] = hidden_ = integer("embedding_length");
  blocks_ = integer("block_count");
  const int64_t predicting = integer_or("nextn_predict_layers", 0);
  if (blocks_ < 1 || blocks_ > 1 << 16) {
    refuse("block_count", fmt::format("{} is out of range (expected 1 to 65536)", blocks_));
  }
  if (blocks_ > static_cast<int64_t>(file_.tensors.size())) {
    refuse("block_count", fmt::format("{} is impossible: the file has only {} tensors", blocks_, file_.tensors.size()));
  }
  if (predicting < 0 || predicting >= blocks_) {
    refuse("nextn_predict_layers", fmt::format("{} is out of range for {} blocks", predicting, blocks_));
  }
  hf["num_hidden_layers"] = layers_ = blocks_ - predicting;
  hf["max_position_embeddings"] = context_ = integer("context_length");
  hf["tie_word_embeddings"] = !has_tensor("output.weight");
  ignore({"vocab_size", "tensor_data_layout"});
  if (boolean_or("attention.causal", true) != (wanted == Causal::kYes)) {
    refuse("attention.causal", "does not match this architecture");
  }
}

void GgufConfig::keep_predicting_blocks(std::span<const TensorRule> rules) {
  keeps_predicting_blocks_ = true;
  hf["num_nextn_predict_layers"] = blocks_ - layers_;
  tensors.insert(tensors.begin(), rules);
}

void GgufConfig::all_blocks_are_layers() { hf["num_hidden_layers"] = layers_ = blocks_; }

void GgufConfig::heads() {
  hf["num_attention_heads"] = heads_ = integer("attention.head_count");
  kv_heads_ = heads_;
  if (has("attention.head_count_kv")) {  // layers without attention have no kv heads
    const std::vector<int64_t> of_each = of_layers("attention.head_count_kv");
    kv_heads_ = *std::ranges::max_element(of_each);
    if (std::ranges::any_of(of_each, [&](int64_t n) { return n != 0 && n != kv_heads_; })) {
      refuse("attention.head_count_kv", "differs from layer to layer, which is not supported");
    }
  }
  if (heads_ < 1 || kv_heads_ < 1 || hidden_ < 1) refuse("attention.head_count", "must be positive");
  head_dim_ = integer_or("attention.key_length", hidden_ / heads_);
  if (head_dim_ < 1 || head_dim_ > 1 << 20)
    refuse("attention.key_length", fmt::format("{} is out of range", head_dim_));
  if (integer_or("attention.value_length", head_dim_) != head_dim_) {
    refuse("attention.value_length", "must equal attention.key_length");
  }
  hf["num_key_value_heads"] = kv_heads_;
  hf["head_dim"] = head_dim_;
}

std::vector<int64_t> GgufConfig::heads_by_layer() {
  const std::vector<int64_t> heads = of_layers("attention.head_count");
  std::vector<int64_t> kv_heads = of_layers("attention.head_count_kv");
  heads_ = *std::ranges::max_element(heads);
  kv_heads_ = *std::ranges::max_element(kv_heads);
  if (heads_ < 1 || kv_heads_ < 1) refuse("attention.head_count", "must be positive in some layer");
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] != heads_ && heads[i] != 0) {
      refuse("attention.head_count", "differs between layers with attention, which is not supported");
    }
    if ((heads[i] == 0) != (kv_heads[i] == 0)) {
      refuse("attention.head_count_kv", fmt::format("is {} with {} heads in layer {}", kv_heads[i], heads[i], i));
    }
    if (kv_heads[i] < 0 || (kv_heads[i] > 0 && heads_ % kv_heads[i] != 0)) {
      refuse("attention.head_count_kv", fmt::format("{} does not divide {} heads", kv_heads[i], heads_));
    }
  }
  head_dim_ = integer_or("attention.key_length", hidden_ / heads_);
  if (head_dim_ < 1 || head_dim_ > 1 << 20)
    refuse("attention.key_length", fmt::format("{} is out of range", head_dim_));
  hf["num_attention_heads"] = heads_;
  hf["head_dim"] = head_dim_;
  return kv_heads;
}

std::vector<bool> GgufConfig::attends() {
  std::vector<bool> layers;
  for (const int64_t n : of_layers("attention.head_count_kv")) layers.push_back(n != 0);
  return layers;
}

void GgufConfig::rope(int64_t head_dim) {
  hf["rope_theta"] = number_or("rope.freq_base", 10000.0);
  const int64_t rotary = integer_or("rope.dimension_count", head_dim);
  if (rotary < 1 || rotary > head_dim) {
    refuse("rope.dimension_count", fmt::format("{} is out of range (expected 1 to {})", rotary, head_dim));
  }
  hf["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head_dim);
  rope_scaling(rotary);
}

void GgufConfig::yarn_scales(double mscale, double mscale_all_dim) {
  if (!hf.contains("rope_scaling") || hf["rope_scaling"]["rope_type"] != "yarn") return;
  Json& scaling = hf["rope_scaling"];
  scaling.erase("attention_factor");
  scaling["mscale"] = mscale;
  scaling["mscale_all_dim"] = mscale_all_dim;
}

// Frequencies are either listed one by one (rope_freqs: precomputed by Llama 3's rule; rope_factors_*: LongRoPE) or
// given by a rule. llama.cpp multiplies YaRN's own factor of cosines and sines by attn_factor.
void GgufConfig::rope_scaling(int64_t rotary) {
  const std::string type = text_or("rope.scaling.type", "none");
  const double factor = has("rope.scale_linear") ? number("rope.scale_linear") : number_or("rope.scaling.factor", 1.0);
  const int64_t original = integer_or("rope.scaling.original_context_length", context_);
  const double attention = number_or("rope.scaling.attn_factor", 1.0);
  const double fast = number_or("rope.scaling.yarn_beta_fast", 32.0),
               slow = number_or("rope.scaling.yarn_beta_slow", 1.0);
  if (number_or("rope.scaling.yarn_ext_factor", 1.0) != 1.0) refuse("rope.scaling.yarn_ext_factor", "must be 1");
  if (number_or("rope.scaling.yarn_attn_factor", 1.0) != 1.0) refuse("rope.scaling.yarn_attn_factor", "must be 1");
  ignore({"rope.scaling.finetuned"});
  std::vector<double> each = values("rope_freqs.weight"), long_factors = values("rope_factors_long.weight");
  std::vector<double> short_factors = values("rope_factors_short.weight");
  if (!each.empty()) short_factors = long_factors = each;
  if (!long_factors.empty() || !short_factors.empty()) {
    if (type != "none" && type != "longrope") {
      refuse("rope.scaling.type",
             fmt::format("'{}' cannot be combined with factors per frequency (expected none or longrope)", type));
    }
    for (const auto* list : {&short_factors, &long_factors}) {
      if (static_cast<int64_t>(list->size()) * 2 != rotary) {
        refuse("rope.dimension_count", fmt::format("is {}, but there are {} rope factors", rotary, list->size()));
      }
    }
    hf["rope_scaling"] = Json{{"rope_type", "longrope"},
                              {"short_factor", short_factors},
                              {"long_factor", long_factors},
                              {"attention_factor", attention},
                              {"original_max_position_embeddings", original}};
  } else if (type == "linear") {
    if (factor != 1.0) hf["rope_scaling"] = Json{{"rope_type", "linear"}, {"factor", factor}};
  } else if (type == "yarn") {
    const double by_rule = factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
    hf["rope_scaling"] = Json{{"rope_type", "yarn"},
                              {"factor", factor},
                              {"beta_fast", fast},
                              {"beta_slow", slow},
                              {"attention_factor", attention * by_rule},
                              {"original_max_position_embeddings", original}};
  } else if (type != "none") {
    refuse("rope.scaling.type",
           fmt::format("unknown value '{}' (expected one of: none, linear, yarn, longrope)", type));
  } else if (factor != 1.0) {
    hf["rope_scaling"] = Json{{"rope_type", "linear"}, {"factor", factor}};
  }
}

void GgufConfig::windows(int period) {
  const int64_t window = integer_or("attention.sliding_window", 0);
  hf["sliding_window"] = window;
  const std::string key = full("attention.sliding_window_pattern");
  read_.insert(key);
  Json kinds = Json::array();
  const auto add = [&](bool sliding) {
    kinds.push_back(sliding && window > 0 ? "sliding_attention" : "full_attention");
  };
  const GgufValue* pattern = file_.metadata.find(key);
  if (pattern != nullptr && pattern->array) {
    const std::vector<double> sliding = file_.metadata.numbers(key);
    if (static_cast<int64_t>(sliding.size()) != blocks_) {
      refuse("attention.sliding_window_pattern", "expected one entry per layer");
    }
    for (int64_t i = 0; i < layers_; ++i) add(sliding[i] != 0);
  } else {
    const int64_t every = file_.metadata.integer(key).value_or(period);
    for (int64_t i = 0; i < layers_; ++i) add(every == 0 || (i + 1) % every != 0);
  }
  hf["layer_types"] = std::move(kinds);
}

void GgufConfig::experts(const char* count_key, const char* inner_key) {
  integer("expert_count", count_key);
  integer("expert_used_count", "num_experts_per_tok");
  if (inner_key == nullptr) return;
  if (has("expert_feed_forward_length")) return integer("expert_feed_forward_length", inner_key);
  const auto stack = std::ranges::find_if(file_.tensors, [](const TensorEntry& t) {
    return t.name.ends_with(".ffn_down_exps.weight") && t.shape.rank() == 3;
  });
  if (stack == file_.tensors.end()) refuse("expert_feed_forward_length", "is missing");
  hf[inner_key] = stack->shape[2];
}

Gating GgufConfig::gating() {
  const int64_t number = integer_or("expert_gating_func", static_cast<int64_t>(Gating::kSoftmax));
  const auto gating = static_cast<Gating>(number);
  if (gating != Gating::kSoftmax && gating != Gating::kSigmoid) {
    refuse("expert_gating_func", "is not supported (expected softmax or sigmoid)");
  }
  return gating;
}

void GgufConfig::require_gating(Gating wanted) {
  if (has("expert_gating_func") && gating() != wanted) {
    refuse("expert_gating_func", "is not supported for this architecture");
  }
}

void GgufConfig::rename(const char* from, const char* to) {
  if (*to != 0 && hf.contains(from)) hf[to] = hf[from];
  hf.erase(from);
}

void configure_llama_like(GgufConfig& c, const char* architecture, const char* model_type) {
  c.architecture(architecture, model_type);
  c.sizes();
  c.heads();
  c.rope();
  c.integer("feed_forward_length", "intermediate_size");
  if (c.has("attention.layer_norm_rms_epsilon")) c.rms_norm();
  c.tensors = {kLlamaTensors};
}

}  // namespace sluice
