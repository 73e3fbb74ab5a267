// Typed access to config.json, and the table of keys that do not change what a model computes.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/json.h"
#include "base/mmap.h"
#include "formats/checkpoint.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// Keys without influence on inference: provenance, training, settings of transformers' generate() (the loader reads
// generation defaults itself), tokenizer settings, and which outputs a Python call returns. Sorted. Any other key that
// nobody reads stops the model from loading. So a key belongs here only when all of its values are harmless.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_from_model_config",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "aux_loss_coef",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_bias",
    "custom_pipelines",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dropout_rate",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "label2id",
    "layerdrop",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_z_loss_coef",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_flash_attn",
    "z_loss_coefficient",
});
static_assert(std::ranges::is_sorted(kHarmless));

// These keys are harmless only with the value that transformers writes for a plain decoder: false, 0 or an empty
// object.
constexpr auto kHarmlessWhenOff = std::to_array<std::string_view>({
    "add_cross_attention",
    "is_encoder_decoder",
    "pruned_heads",
    "tie_encoder_decoder",
});

bool off(const Json& value) {
  return value == false || (value.is_number() && value == 0) || (value.is_structured() && value.empty());
}

bool harmless(std::string_view key, const Json& value) {
  for (std::string_view rate : {"_dropout", "_pdrop", "_dropout_prob", "_dropout_rate"}) {
    if (key.ends_with(rate)) return true;
  }
  if (std::ranges::binary_search(kHarmless, key)) return true;
  return off(value) && std::ranges::binary_search(kHarmlessWhenOff, key);
}

std::string shown(const Json& value) {
  std::string text = dump_json(value);
  if (text.size() > 64) text = text.substr(0, 64) + "...";
  return text;
}

// convert(value, to) returns whether the JSON value is a T. `to` is valid only then.
bool convert(const Json& value, bool& to) {
  if (!value.is_boolean()) return false;
  to = value.get<bool>();
  return true;
}

bool convert(const Json& value, std::string& to) {
  if (!value.is_string()) return false;
  to = value.get_ref<const std::string&>();
  return true;
}

bool convert(const Json& value, int64_t& to) {
  if (value.is_number_unsigned()) {
    const auto raw = value.get<uint64_t>();
    to = static_cast<int64_t>(raw);
    return raw <= INT64_MAX;
  }
  if (value.is_number_integer()) {
    to = value.get<int64_t>();
    return true;
  }
  // 4096.0 is the integer 4096. Beyond 2^53 a float is no longer exact.
  if (!value.is_number_float()) return false;
  const double raw = value.get<double>();
  if (raw != std::floor(raw) || std::abs(raw) > 0x1p53) return false;
  to = static_cast<int64_t>(raw);
  return true;
}

bool convert(const Json& value, int& to) {
  int64_t wide = 0;
  if (!convert(value, wide)) return false;
  to = static_cast<int>(wide);
  return to == wide;
}

// transformers writes numbers that JSON cannot represent as {"__float__": "Infinity"}; read_config converts bare ones
// to that form.
bool convert(const Json& value, double& to) {
  if (value.is_number()) {
    to = value.get<double>();
    return true;
  }
  if (!value.is_object() || value.size() != 1 || !value.contains("__float__")) return false;
  const Json& name = value["__float__"];
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  to = name == "Infinity" ? kInfinity : name == "-Infinity" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
  return name == "Infinity" || name == "-Infinity" || name == "NaN";
}

bool convert(const Json& value, float& to) {
  double wide = 0;
  if (!convert(value, wide)) return false;
  to = static_cast<float>(wide);
  return std::isinf(to) == std::isinf(wide);
}

template <class T>
bool convert(const Json& value, std::vector<T>& to) {
  if (!value.is_array()) return false;
  for (const Json& item : value) {
    if (!convert(item, to.emplace_back())) return false;
  }
  return true;
}

template <class T>
constexpr const char* kWanted = nullptr;
template <>
constexpr const char* kWanted<bool> = "true or false";
template <>
constexpr const char* kWanted<int> = "a 32-bit integer";
template <>
constexpr const char* kWanted<int64_t> = "a 64-bit integer";
template <>
constexpr const char* kWanted<float> = "a number in the range of fp32";
template <>
constexpr const char* kWanted<double> = "a number";
template <>
constexpr const char* kWanted<std::string> = "a string";
template <>
constexpr const char* kWanted<std::vector<int>> = "a list of 32-bit integers";
template <>
constexpr const char* kWanted<std::vector<double>> = "a list of numbers";
template <>
constexpr const char* kWanted<std::vector<std::string>> = "a list of strings";

// Python's json module writes NaN, Infinity and -Infinity, which JSON does not allow. Converts those outside strings to
// {"__float__": "Infinity"}. Other text stays unchanged, and the parser checks it.
std::string without_bare_constants(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    size_t taken = 1;
    if (in_string) {
      if (text[i] == '\\' && i + 1 < text.size()) taken = 2;
      if (text[i] == '"') in_string = false;
    } else if (text[i] == '"') {
      in_string = true;
    } else {
      for (std::string_view constant : {"NaN", "Infinity", "-Infinity"}) {
        if (!text.substr(i).starts_with(constant)) continue;
        out += fmt::format(R"({{"__float__":"{}"}})", constant);
        i += constant.size();
        taken = 0;
        break;
      }
    }
    out += text.substr(i, taken);
    i += taken;
  }
  return out;
}

}  // namespace

Config read_config(const std::string& path) {
  constexpr size_t kMaxBytes = 64u << 20;
  const MappedFile file(path);
  const auto fail = [&](std::string_view message) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", path, message));
  };
  if (file.bytes().size() > kMaxBytes) fail(fmt::format("larger than {}", format_bytes(kMaxBytes)));
  Json values;
  try {
    values =
        parse_json(without_bare_constants({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}));
  } catch (const Error& e) {
    file.check();
    fail(e.what());
  }
  file.check();
  if (!values.is_object()) fail("expected a JSON object");
  return Config(std::move(values), path);
}

Config::Config() : Config(Json::object(), {}) {}

Config::Config(Json values, std::string origin)
    : values_(std::make_shared<const Json>(std::move(values))), origin_(std::move(origin)) {}

const Json* Config::find(std::string_view key) const {
  ignore(key);
  const auto found = values_->find(key);
  return found == values_->end() || found->is_null() ? nullptr : &*found;
}

bool Config::has(std::string_view key) const { return find(key) != nullptr; }

template <class T>
T Config::get(std::string_view key, T fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  T out{};
  if (!convert(*value, out)) refuse(key, fmt::format("expected {}, found {}", kWanted<T>, shown(*value)));
  return out;
}

template <class T>
T Config::at(std::string_view key) const {
  if (!has(key)) refuse(key, fmt::format("missing, expected {}", kWanted<T>));
  return get<T>(key, T{});
}

// Explicit instantiations: the types that configurations use.
template bool Config::get(std::string_view, bool) const;
template int Config::get(std::string_view, int) const;
template int64_t Config::get(std::string_view, int64_t) const;
template float Config::get(std::string_view, float) const;
template double Config::get(std::string_view, double) const;
template std::string Config::get(std::string_view, std::string) const;
template std::vector<int> Config::get(std::string_view, std::vector<int>) const;
template std::vector<double> Config::get(std::string_view, std::vector<double>) const;
template std::vector<std::string> Config::get(std::string_view, std::vector<std::string>) const;
template bool Config::at<bool>(std::string_view) const;
template int Config::at<int>(std::string_view) const;
template int64_t Config::at<int64_t>(std::string_view) const;
template float Config::at<float>(std::string_view) const;
template double Config::at<double>(std::string_view) const;
template std::string Config::at<std::string>(std::string_view) const;
template std::vector<int> Config::at<std::vector<int>>(std::string_view) const;
template std::vector<double> Config::at<std::vector<double>>(std::string_view) const;
template std::vector<std::string> Config::at<std::vector<std::string>>(std::string_view) const;

Config Config::object(std::string_view key) const {
  const std::string origin = fmt::format("{}: {}", origin_, key);
  const Json* value = find(key);
  if (value == nullptr) return Config(Json::object(), origin);
  if (!value->is_object()) refuse(key, fmt::format("expected an object, found {}", shown(*value)));
  return Config(*value, origin);
}

void Config::refuse(std::string_view key, const std::string& message) const {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: '{}': {}", origin_, key, message));
}

std::vector<std::string> Config::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_->items()) {
    if (!value.is_null() && !read_.contains(key) && !harmless(key, value)) keys.push_back(key);
  }
  return keys;
}

}  // namespace sluice
