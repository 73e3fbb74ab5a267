// Reads adapters as peft saves them (https://huggingface.co/docs/peft, LoraConfig). Keys that change what an adapter
// computes are read or refused; keys of training are ignored.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "base/json.h"
#include "base/mmap.h"
#include "base/sha256.h"
#include "formats/safetensors.h"
#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kMostRank = 1024;
constexpr size_t kMostPattern = 512;  // characters of a key of rank_pattern or alpha_pattern

// What an adapter was trained with, or where it comes from.
constexpr auto kIgnored = std::to_array<std::string_view>(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision",
     "task_type", "qalora_group_size", "megatron_core", "ensure_weight_tying", "runtime_config", "loftq_config",
     "corda_config", "eva_config", "lora_ga_config", "monteclora_config", "peft_type", "init_lora_weights", "r",
     "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "fan_in_fan_out", "bias",
     // The names of the tensors say which modules are changed.
     "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"});

// The ways to start training that leave the base model's weights alone.
constexpr auto kStarts = std::to_array<std::string_view>({"gaussian", "eva", "orthogonal", "true", "false"});

bool is_off(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

void check_config(const Config& config) {
  const std::string type = config.get("peft_type", std::string());
  if (type != "LORA") config.refuse("peft_type", fmt::format("'{}' is not supported (expected LORA)", type));
  const std::string bias = config.get("bias", std::string("none"));
  if (bias != "none") config.refuse("bias", fmt::format("'{}' is not supported (expected none)", bias));
  if (const Json* start = config.find("init_lora_weights"); start != nullptr && start->is_string()) {
    if (std::ranges::find(kStarts, start->get<std::string>()) == kStarts.end()) {
      config.refuse("init_lora_weights",
                    fmt::format("'{}' changes the base model's weights: convert the adapter to a plain LoRA first",
                                start->get<std::string>()));
    }
  }
  for (const auto& [key, value] : config.values().items()) {
    if (std::ranges::find(kIgnored, key) != kIgnored.end() || is_off(value)) continue;
    config.refuse(key, "is not supported for adapters");
  }
}

// peft's patterns: a regular expression that matches the end of a module's name, from a dot on.
class Patterns {
 public:
  Patterns(const Config& config, std::string_view key, double otherwise) : otherwise_(otherwise) {
    const Json* found = config.find(key);
    if (found == nullptr) return;
    if (!found->is_object()) config.refuse(key, "must be an object");
    for (const auto& [pattern, value] : found->items()) {
      if (!value.is_number() || pattern.size() > kMostPattern) config.refuse(key, "must map short patterns to numbers");
      try {
        patterns_.emplace_back(std::regex("(.*\\.)?(" + pattern + ")"), value.get<double>());
      } catch (const std::regex_error&) {
        config.refuse(key, fmt::format("'{}' is not a regular expression that is understood", pattern));
      }
    }
  }
  double operator()(const std::string& module) const {
    for (const auto& [pattern, value] : patterns_) {
      if (std::regex_match(module, pattern)) return value;
    }
    return otherwise_;
  }

 private:
  double otherwise_;
  std::vector<std::pair<std::regex, double>> patterns_;
};

std::vector<float> values_of(const TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
  entry.read(values.data());
  return values;
}

[[noreturn]] void refuse_tensor(const std::string& file, const std::string& tensor, const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor '{}' {}", file, tensor, why));
}

// The name of a module and which of its matrices a tensor is.
struct TensorName {
  std::string module;
  char matrix = 0;
};

TensorName parse_name(const std::string& file, const std::string& name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  for (const auto& [suffix, matrix] :
       {std::pair<std::string_view, char>{".lora_A.weight", 'a'}, {".lora_B.weight", 'b'}}) {
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) continue;
    return {name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size()), matrix};
  }
  refuse_tensor(file, name, "is not supported: adapters have base_model.model.*.lora_A.weight and lora_B.weight");
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void read_modules(Adapter& adapter, const Config& config, const std::string& file,
                  const std::vector<TensorEntry>& tensors) {
  std::map<std::string, std::array<const TensorEntry*, 2>> modules;
  for (const TensorEntry& tensor : tensors) {
    const TensorName name = parse_name(file, tensor.name);
    if (tensor.shape.rank() != 2)
      refuse_tensor(file, tensor.name, fmt::format("is {}, not a matrix", tensor.shape.str()));
    modules[name.module][name.matrix == 'a' ? 0 : 1] = &tensor;
  }
  if (modules.empty()) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: has no tensors", file));
  const int r = config.get("r", 8);
  const Patterns ranks(config, "rank_pattern", r);
  const Patterns alphas(config, "alpha_pattern", config.get("lora_alpha", 8.0));
  const bool rank_stabilized = config.get("use_rslora", false);
  for (const auto& [name, matrices] : modules) {
    const auto& [a, b] = matrices;
    if (a == nullptr || b == nullptr) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: module '{}' has no lora_{}.weight", file, name, a == nullptr ? 'A' : 'B'));
    }
    const int64_t rank = a->shape[0];
    if (b->shape[1] != rank || rank != static_cast<int64_t>(ranks(name)) || rank < 1 || rank > kMostRank) {
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: module '{}' has matrices {} and {}, but its rank is {} (at most {})", file, name,
                              a->shape.str(), b->shape.str(), ranks(name), kMostRank));
    }
    const auto divisor = rank_stabilized ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
    adapter.modules.push_back({.name = name,
                               .rank = rank,
                               .inputs = a->shape[1],
                               .outputs = b->shape[0],
                               .scale = static_cast<float>(alphas(name) / divisor),
                               .a = values_of(*a),
                               .b = values_of(*b)});
    const Adapter::Module& module = adapter.modules.back();
    adapter.rank = std::max(adapter.rank, static_cast<int>(rank));
    adapter.bytes += (module.a.size() + module.b.size()) * sizeof(float);
  }
}

}  // namespace

std::shared_ptr<const Adapter> read_adapter(std::string name, const std::string& folder) {
  const std::string config_file = folder + "/adapter_config.json", file = folder + "/adapter_model.safetensors";
  for (const std::string& needed : {config_file, file}) {
    if (!std::filesystem::is_regular_file(needed)) {
      throw Error(ErrorCode::kNotFound,
                  fmt::format("{}: no such file (an adapter is a folder with adapter_config.json and "
                              "adapter_model.safetensors)",
                              needed));
    }
  }
  const Config config = read_config(config_file);
  check_config(config);
  auto adapter = std::make_shared<Adapter>();
  adapter->name = std::move(name);
  adapter->folder = folder;
  const MappedFile config_bytes(config_file), mapped(file);
  read_modules(*adapter, config, file, read_safetensors(mapped.bytes(), file));
  adapter->digest = hex(sha256({text_of(config_bytes), text_of(mapped)}));
  mapped.check();
  return adapter;
}

}  // namespace sluice
