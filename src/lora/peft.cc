// Reads adapters as peft saves them (https://huggingface.co/docs/peft, LoraConfig). Keys that change what an adapter
// computes are read or refused; keys of training are ignored.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>

#include "base/json.h"
#include "base/mmap.h"
#include "base/sha256.h"
#include "formats/safetensors.h"
#include "grammar/automaton.h"
#include "lora/adapter_formats.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr size_t kMostName = 512;  // bytes of a tensor's name

// Keys that are read below.
constexpr auto kRead =
    std::to_array<std::string_view>({"peft_type", "bias", "init_lora_weights", "r", "lora_alpha", "rank_pattern",
                                     "alpha_pattern", "use_rslora", "use_dora", "lora_bias", "modules_to_save",
                                     "target_parameters", "trainable_token_indices", "alora_invocation_tokens"});
// What an adapter was trained with, and where it comes from. The names of the tensors say which modules it changes.
constexpr auto kIgnored = std::to_array<std::string_view>({"auto_mapping",    "base_model_name_or_path",
                                                           "inference_mode",  "lora_dropout",
                                                           "peft_version",    "revision",
                                                           "task_type",       "qalora_group_size",
                                                           "megatron_core",   "ensure_weight_tying",
                                                           "runtime_config",  "loftq_config",
                                                           "corda_config",    "eva_config",
                                                           "lora_ga_config",  "monteclora_config",
                                                           "fan_in_fan_out",  "target_modules",
                                                           "exclude_modules", "layers_to_transform",
                                                           "layers_pattern"});

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
    const bool known =
        std::ranges::find(kRead, key) != kRead.end() || std::ranges::find(kIgnored, key) != kIgnored.end();
    if (!known && !is_off(value)) config.refuse(key, "is not supported for adapters");
  }
}

// peft's patterns: a regular expression that matches the end of a module's name, from a dot on.
class Patterns {
 public:
  Patterns(const Config& config, std::string_view key, double otherwise) : otherwise_(otherwise) {
    const Json* found = config.find(key);
    if (found == nullptr) return;
    if (!found->is_object()) config.refuse(key, "must be an object");
    grammar::Budget budget;
    for (const auto& [pattern, value] : found->items()) {
      if (!value.is_number()) config.refuse(key, "must map patterns to numbers");
      try {
        const std::string whole = "(.*\\.)?(" + pattern + ")";
        patterns_.emplace_back(grammar::parse_regex(whole, grammar::RegexSyntax::kPython, /*anchored=*/true, budget),
                               value.get<double>());
      } catch (const grammar::GrammarError& e) {
        config.refuse(key, fmt::format("'{}': {}", pattern, e.what()));
      }
    }
  }
  double operator()(const std::string& module) const {
    for (const auto& [pattern, value] : patterns_) {
      if (pattern.matches(module)) return value;
    }
    return otherwise_;
  }

 private:
  double otherwise_;
  std::vector<std::pair<grammar::Automaton, double>> patterns_;
};

std::vector<float> values_of(const TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
  entry.read(values.data());
  return values;
}

[[noreturn]] void refuse_tensor(const std::string& file, const std::string& tensor, const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor '{}' {}", file, tensor, why));
}

// The tensors of a module.
struct Tensors {
  const TensorEntry *a = nullptr, *b = nullptr, *bias = nullptr, *magnitude = nullptr;
  const TensorEntry *saved = nullptr, *saved_bias = nullptr;
  const TensorEntry *base = nullptr, *base_bias = nullptr, *tokens = nullptr;
  bool embedding = false;
};

struct Kind {
  std::string_view suffix;
  const TensorEntry* Tensors::*place;
  bool embedding = false, saved = false;
};
constexpr auto kKinds = std::to_array<Kind>({{".lora_A.weight", &Tensors::a},
                                             {".lora_B.weight", &Tensors::b},
                                             {".lora_B.bias", &Tensors::bias},
                                             {".lora_embedding_A", &Tensors::a, true},
                                             {".lora_embedding_B", &Tensors::b, true},
                                             {".lora_magnitude_vector", &Tensors::magnitude},
                                             {".lora_magnitude_vector.weight", &Tensors::magnitude},
                                             {".token_adapter.trainable_tokens_delta", &Tensors::tokens},
                                             {".token_adapter.base_layer.weight", &Tensors::base},
                                             {".base_layer.weight", &Tensors::base},
                                             {".base_layer.bias", &Tensors::base_bias},
                                             {".weight", &Tensors::saved, false, true},
                                             {".bias", &Tensors::saved_bias, false, true}});

// The names in modules_to_save or target_parameters: a module, or the end of its name from a dot on.
std::vector<std::string> read_names(const Config& config, const char* key) {
  std::vector<std::string> names;
  const Json* list = config.find(key);
  if (list == nullptr || list->is_null()) return names;
  if (!list->is_array()) config.refuse(key, "must be a list of names");
  for (const Json& name : *list) {
    if (!name.is_string()) config.refuse(key, "must be a list of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

bool ends_module(std::string_view module, std::string_view name) {
  return module == name || (module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

std::map<std::string, Tensors> sort_tensors(const std::string& file, const std::vector<TensorEntry>& tensors,
                                            const std::vector<std::string>& saved) {
  constexpr std::string_view kPrefix = "base_model.model.";
  std::map<std::string, Tensors> modules;
  for (const TensorEntry& tensor : tensors) {
    const std::string& name = tensor.name;
    if (name.size() > kMostName) refuse_tensor(file, name.substr(0, 80) + "...", "has too long a name");
    const auto kind = std::ranges::find_if(kKinds, [&](const Kind& k) {
      return name.size() > kPrefix.size() + k.suffix.size() && name.ends_with(k.suffix);
    });
    if (!name.starts_with(kPrefix) || kind == kKinds.end()) {
      refuse_tensor(file, name, "is not one that adapters have (such as base_model.model.*.lora_A.weight)");
    }
    const std::string module = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kind->suffix.size());
    if (kind->saved && std::ranges::none_of(saved, [&](const auto& s) { return ends_module(module, s); })) {
      refuse_tensor(file, name, "is not one of modules_to_save");
    }
    Tensors& at = modules[module];
    if (at.*(kind->place) != nullptr) refuse_tensor(file, name, "is there twice");
    at.*(kind->place) = &tensor;
    at.embedding |= kind->embedding;
  }
  for (const std::string& name : saved) {
    const auto is_saved = [&](const auto& m) { return m.second.saved != nullptr && ends_module(m.first, name); };
    if (std::ranges::none_of(modules, is_saved)) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: has no weight of '{}' in modules_to_save", file, name));
    }
  }
  if (modules.empty()) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: has no tensors", file));
  return modules;
}

// What one pair of small matrices changes.
struct Target {
  std::string module;      // its name in the adapter
  std::string name;        // how it is called here; of parameters, "experts.gate_up_proj"
  std::string pattern;     // what peft's patterns match
  bool parameter = false;  // target_parameters has it: its tensor may be that of all experts
};

constexpr std::string_view kNested = ".base_layer";

// peft wraps a module once for each of its parameters in target_parameters, in the order in which transformers declares
// them. The first one is innermost. The files do not name them.
class Parameters {
 public:
  explicit Parameters(const Config& config) : config_(config), names_(read_names(config, "target_parameters")) {}

  std::vector<Target> targets(const std::map<std::string, Tensors>& modules) const {
    std::map<std::string, std::vector<std::string>> wrapped;  // by module, from the outermost
    for (const auto& [name, tensors] : modules) {
      std::string inner = name;
      while (inner.ends_with(kNested)) inner.resize(inner.size() - kNested.size());
      wrapped[inner].push_back(name);
    }
    std::vector<Target> out;
    for (const auto& [module, nested] : wrapped) {
      const std::vector<std::string> parameters = parameters_of(module);
      if (parameters.empty() && nested.back() == module) {
        out.push_back({module, module, module});
        continue;
      }
      if (parameters.size() != nested.size()) {
        config_.refuse("target_parameters", fmt::format("has {} parameters of '{}', of which the adapter changes {}",
                                                        parameters.size(), module, nested.size()));
      }
      for (size_t i = 0; i < nested.size(); ++i) {
        const std::string& parameter = parameters[nested.size() - 1 - i];
        const std::string whole = module + "." + parameter;
        out.push_back({nested[i], parameter == "weight" ? module : whole, whole, true});
      }
    }
    return out;
  }

 private:
  // In the order of declaration.
  std::vector<std::string> parameters_of(const std::string& module) const {
    constexpr auto kOrder = std::to_array<std::string_view>({"gate_up_proj", "gate_proj", "up_proj", "down_proj"});
    const auto place = [&](const std::string& name) { return std::ranges::find(kOrder, name) - kOrder.begin(); };
    std::vector<std::string> out;
    for (const std::string& name : names_) {
      // peft adds bare names to the list where transformers has put the linear layers of experts into parameters.
      const std::string whole = name.find('.') == std::string::npos ? "experts." + name : name;
      std::string parameter = whole.substr(whole.rfind('.') + 1);
      if (!ends_module(module + "." + parameter, whole) || std::ranges::find(out, parameter) != out.end()) continue;
      out.push_back(std::move(parameter));
    }
    std::sort(out.begin(), out.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
    for (const std::string& name : out) {
      if (out.size() > 1 && place(name) == std::ssize(kOrder)) {
        config_.refuse("target_parameters", fmt::format("'{}' cannot be beside others of '{}' (expected one of: {})",
                                                        name, module, fmt::join(kOrder, ", ")));
      }
    }
    return out;
  }

  const Config& config_;
  std::vector<std::string> names_;
};

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

struct Settings {
  Patterns ranks, alphas;
  bool rank_stabilized, dora, bias;
  explicit Settings(const Config& config)
      : ranks(config, "rank_pattern", config.get("r", 8)),
        alphas(config, "alpha_pattern", config.get("lora_alpha", 8.0)),
        rank_stabilized(config.get("use_rslora", false)),
        dora(config.get("use_dora", false)),
        bias(config.get("lora_bias", false)) {}
};

std::vector<int32_t> read_tokens(const Config& config, const char* key, const Json& list) {
  const auto is_token = [](const Json& v) { return v.is_number_integer() && v >= 0 && v <= INT32_MAX; };
  if (!list.is_array() || list.empty() || !std::all_of(list.begin(), list.end(), is_token)) {
    config.refuse(key, "must have lists of tokens");
  }
  return list.get<std::vector<int32_t>>();
}

// Which tokens an adapter replaces: a list for the embedding, or a list for each module.
class ReplacedTokens {
 public:
  explicit ReplacedTokens(const Config& config) : config_(config) {
    const Json* found = config.find(kKey);
    if (found == nullptr || is_off(*found)) return;
    if (!found->is_object()) {
      lists_.emplace_back("", read_tokens(config, kKey, *found));
      return;
    }
    for (const auto& [module, list] : found->items()) lists_.emplace_back(module, read_tokens(config, kKey, list));
  }

  // Those of a module that has a tensor for them.
  std::vector<int32_t> of(const std::string& module) {
    const auto found = std::ranges::find_if(
        lists_, [&](const auto& list) { return list.first.empty() || ends_module(module, list.first); });
    if (found == lists_.end()) config_.refuse(kKey, fmt::format("does not have the tokens of '{}'", module));
    std::vector<int32_t> tokens = std::move(found->second);
    lists_.erase(found);
    std::vector<int32_t> sorted = tokens;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) config_.refuse(kKey, "has a token twice");
    return tokens;
  }

  void check_all_found() const {
    if (lists_.empty()) return;
    config_.refuse(kKey, fmt::format("has tokens of '{}', but the adapter has no rows for them",
                                     lists_.front().first.empty() ? "the embedding" : lists_.front().first));
  }

 private:
  static constexpr const char* kKey = "trainable_token_indices";
  const Config& config_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> lists_;  // by module
};

// The lengths of a matrix's rows, and after them the bias.
std::vector<float> base_of(const Tensors& t) {
  if (t.base == nullptr) return {};
  std::vector<float> base = row_lengths(values_of(*t.base), t.base->shape[0]);
  if (t.base_bias != nullptr) std::ranges::copy(values_of(*t.base_bias), std::back_inserter(base));
  return base;
}

Adapter::Module read_token_module(const std::string& file, const std::string& name, const Tensors& t,
                                  ReplacedTokens& replaced) {
  if (t.a != nullptr || t.b != nullptr || t.saved != nullptr || t.saved_bias != nullptr) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: module '{}' is replaced and changed at once", file, name));
  }
  std::vector<int32_t> tokens = replaced.of(name);
  if (t.tokens->shape.rank() != 2 || t.tokens->shape[0] != std::ssize(tokens)) {
    refuse_tensor(
        file, t.tokens->name,
        fmt::format("is {}, but trainable_token_indices has {} tokens", t.tokens->shape.str(), tokens.size()));
  }
  return {.name = name,
          .inputs = t.tokens->shape[1],
          .saved = values_of(*t.tokens),
          .tokens = std::move(tokens),
          .base = base_of(t)};
}

Adapter::Module read_saved_module(const std::string& file, const std::string& name, const Tensors& t) {
  if (t.a != nullptr || t.b != nullptr || t.bias != nullptr || t.magnitude != nullptr) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: module '{}' is replaced and changed at once", file, name));
  }
  if (t.saved == nullptr || t.saved->shape.rank() != 2) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: module '{}' of modules_to_save has no matrix '.weight'", file, name));
  }
  Adapter::Module module{
      .name = name, .inputs = t.saved->shape[1], .outputs = t.saved->shape[0], .saved = values_of(*t.saved)};
  if (t.saved_bias != nullptr) {
    // Some modules (GPT-2's) store a matrix as [inputs, outputs].
    const int64_t outputs = t.saved_bias->shape.elements();
    if (outputs != module.outputs && outputs != module.inputs) {
      refuse_tensor(file, t.saved_bias->name, "has a wrong shape");
    }
    module.saved_bias = values_of(*t.saved_bias);
  }
  return module;
}

Adapter::Module read_small_module(const std::string& file, const Target& target, const Tensors& t,
                                  const Settings& settings) {
  const std::string& name = target.name;
  if (t.a == nullptr || t.b == nullptr) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: module '{}' has no {}", file, name, t.a == nullptr ? "lora_A" : "lora_B"));
  }
  for (const TensorEntry* tensor : {t.a, t.b}) {
    if (tensor->shape.rank() != 2) {
      refuse_tensor(file, tensor->name, fmt::format("is {}, not a matrix", tensor->shape.str()));
    }
  }
  if (t.base != nullptr && (t.base->shape.rank() != 2 || t.base->shape.elements() == 0)) {
    refuse_tensor(file, t.base->name, fmt::format("is {}, not a matrix", t.base->shape.str()));
  }
  const double wanted = settings.ranks(target.pattern);
  const auto rank = static_cast<int64_t>(std::clamp(wanted, 0.0, kMostRank + 1.0));
  const bool is_rank = rank >= 1 && rank <= kMostRank && t.a->shape[0] > 0;
  const int64_t experts = !is_rank ? 0 : target.parameter && t.a->shape[0] % rank == 0 ? t.a->shape[0] / rank : 1;
  if (!is_rank || t.a->shape[0] != experts * rank || t.b->shape[1] != experts * rank) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: module '{}' has matrices {} and {}, but its rank is {} (at most {})", file, name,
                            t.a->shape.str(), t.b->shape.str(), wanted, kMostRank));
  }
  const auto root = static_cast<double>(rank);
  Adapter::Module module{.name = name,
                         .rank = rank,
                         .inputs = t.a->shape[1],
                         .outputs = t.b->shape[0],
                         .experts = experts,
                         .scale = static_cast<float>(settings.alphas(target.pattern) /
                                                     (settings.rank_stabilized ? std::sqrt(root) : root)),
                         .a = values_of(*t.a),
                         .b = values_of(*t.b),
                         .embedding = t.embedding,
                         .base = base_of(t)};
  const auto vector = [&](const TensorEntry* tensor, bool expected, const char* key) -> std::vector<float> {
    if (tensor == nullptr && !expected) return {};
    if (tensor == nullptr || !expected || tensor->shape.elements() != module.outputs) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: module '{}' does not fit {}", file, name, key));
    }
    return values_of(*tensor);
  };
  module.magnitude = vector(t.magnitude, settings.dora, "use_dora");
  module.bias = vector(t.bias, settings.bias && !t.embedding, "lora_bias");
  if (!module.magnitude.empty() && !module.bias.empty()) {
    refuse_tensor(file, t.magnitude->name, "is beside a bias, which is not supported");
  }
  return module;
}

void read_modules(Adapter& adapter, const Config& config, const std::string& file,
                  const std::vector<TensorEntry>& tensors) {
  const Settings settings(config);
  ReplacedTokens replaced(config);
  const std::map<std::string, Tensors> modules = sort_tensors(file, tensors, read_names(config, "modules_to_save"));
  for (const Target& target : Parameters(config).targets(modules)) {
    const Tensors& t = modules.at(target.module);
    const bool saved = t.saved != nullptr || t.saved_bias != nullptr;
    adapter.modules.push_back(t.tokens != nullptr ? read_token_module(file, target.name, t, replaced)
                              : saved             ? read_saved_module(file, target.name, t)
                                                  : read_small_module(file, target, t, settings));
    const Adapter::Module& module = adapter.modules.back();
    adapter.rank = std::max(adapter.rank, static_cast<int>(module.rank));
  }
  replaced.check_all_found();
}

void read_invocation(Adapter& adapter, const Config& config) {
  constexpr const char* kKey = "alora_invocation_tokens";
  if (const Json* list = config.find(kKey); list != nullptr) adapter.invocation = read_tokens(config, kKey, *list);
  // peft applies these to the tokens before the invocation, too.
  for (const char* other : {"modules_to_save", "trainable_token_indices"}) {
    const Json* whole = config.find(other);
    if (adapter.invocation.empty() || whole == nullptr || is_off(*whole)) continue;
    config.refuse(kKey, fmt::format("cannot be beside '{}', which changes the whole prompt", other));
  }
}

}  // namespace

std::shared_ptr<Adapter> read_peft_adapter(const std::string& folder) {
  const std::string config_file = folder + "/adapter_config.json", file = folder + "/adapter_model.safetensors";
  for (const std::string& needed : {config_file, file}) {
    if (!std::filesystem::is_regular_file(needed)) {
      throw Error(ErrorCode::kNotFound,
                  fmt::format("{}: no such file (an adapter is a folder with adapter_config.json and "
                              "adapter_model.safetensors, or a GGUF file)",
                              needed));
    }
  }
  const Config config = read_config(config_file);
  check_config(config);
  auto adapter = std::make_shared<Adapter>();
  adapter->folder = folder;
  const MappedFile config_bytes(config_file), mapped(file);
  read_invocation(*adapter, config);
  read_modules(*adapter, config, file, read_safetensors(mapped.bytes(), file));
  adapter->digest = hex(sha256({text_of(config_bytes), text_of(mapped)}));
  mapped.check();
  return adapter;
}

}  // namespace sluice
