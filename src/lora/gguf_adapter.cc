// Reads adapters in GGUF, as llama.cpp's convert_lora_to_gguf.py writes them: general.type "adapter", adapter.type
// "lora", adapter.lora.alpha, and for a tensor NAME of the model NAME.lora_a [rank, inputs] and NAME.lora_b [outputs,
// rank]. Tensors of all experts have one dimension more.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "base/mmap.h"
#include "base/sha256.h"
#include "formats/gguf/file.h"
#include "lora/adapter_formats.h"
#include "sluice/error.h"

namespace sluice::gguf_adapter {
namespace {

constexpr std::string_view kTable = "token_embd.weight", kInvocation = "adapter.alora.invocation_tokens";

// Keys that are read below, and those that say what an adapter is for.
constexpr auto kKeys = std::to_array<std::string_view>(
    {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix", kInvocation});

[[noreturn]] void refuse_tensor(const std::string& file, std::string_view tensor, const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor {} {}", file, dump_json(std::string(tensor)), why));
}

void require_text(const GgufMetadata& metadata, std::string_view key, std::string_view wanted) {
  const std::string found(metadata.required_text(key));
  if (found != wanted) {
    metadata.fail(key, fmt::format("{} is not supported for adapters (expected {})", dump_json(found), wanted),
                  ErrorCode::kUnsupportedModel);
  }
}

// Keys of the model and of its origin may be there, too.
void check_metadata(const GgufMetadata& metadata) {
  require_text(metadata, "general.type", "adapter");
  require_text(metadata, "adapter.type", "lora");
  for (const auto& [key, value] : metadata.values) {
    if (key.starts_with("adapter.") && std::ranges::find(kKeys, key) == kKeys.end()) {
      metadata.fail(key, "is not supported", ErrorCode::kUnsupportedModel);
    }
  }
}

std::vector<int32_t> read_invocation(const GgufMetadata& metadata) {
  std::vector<int32_t> tokens;
  for (const int64_t token : metadata.integers(kInvocation)) {
    if (token < 0 || token > INT32_MAX) metadata.fail(kInvocation, fmt::format("{} is not a token", token));
    tokens.push_back(static_cast<int32_t>(token));
  }
  if (tokens.empty() && metadata.has(kInvocation)) metadata.fail(kInvocation, "is empty");
  return tokens;
}

struct Pair {
  const TensorEntry *a = nullptr, *b = nullptr;
};

std::map<std::string, Pair> pairs_of(const GgufFile& gguf) {
  std::map<std::string, Pair> pairs;
  for (const TensorEntry& tensor : gguf.tensors) {
    const std::string_view name = tensor.name;
    const bool is_a = name.ends_with(".weight.lora_a"), is_b = name.ends_with(".weight.lora_b");
    if (!is_a && !is_b) {
      refuse_tensor(gguf.metadata.file, name, "is not one that adapters have (expected NAME.weight.lora_a or .lora_b)");
    }
    Pair& pair = pairs[std::string(name.substr(0, name.rfind('.')))];
    (is_a ? pair.a : pair.b) = &tensor;
  }
  if (pairs.empty()) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: has no tensors", gguf.metadata.file));
  return pairs;
}

std::vector<float> values_of(const TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.shape.elements()));
  entry.read(values.data());
  return values;
}

// The matrices [rows, columns] of all experts as one matrix of rows, whose columns are those of all experts.
std::vector<float> beside_each_other(const std::vector<float>& values, int64_t experts, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        out[static_cast<size_t>((i * columns + j) * experts + e)] =
            values[static_cast<size_t>((e * rows + i) * columns + j)];
      }
    }
  }
  return out;
}

// How many experts the tensors are of; 1: the module is no expert.
int64_t experts_of(const std::string& file, const std::string& name, const Pair& pair) {
  const bool of_experts = name.find("_exps.") != std::string::npos;
  for (const TensorEntry* tensor : {pair.a, pair.b}) {
    if (tensor->shape.rank() != (of_experts ? 3 : 2)) {
      refuse_tensor(file, tensor->name,
                    fmt::format("is {} (expected {} dimensions)", tensor->shape.str(), of_experts ? 3 : 2));
    }
  }
  const int64_t experts = of_experts ? pair.a->shape[0] : 1;
  if (of_experts && pair.b->shape[0] != experts) {
    refuse_tensor(file, pair.b->name, fmt::format("is {}, but lora_a has {} experts", pair.b->shape.str(), experts));
  }
  return experts;
}

Adapter::Module read_module(const std::string& file, const std::string& name, const Pair& pair, double alpha) {
  if (pair.a == nullptr || pair.b == nullptr) {
    refuse_tensor(file, name, fmt::format("has no {}", pair.a == nullptr ? "lora_a" : "lora_b"));
  }
  const int64_t experts = experts_of(file, name, pair);
  const bool table = name == kTable;  // its A is transposed
  const Shape &a = pair.a->shape, &b = pair.b->shape;
  const int64_t rank = b[-1];
  if (rank > kMostRank || a[table ? -1 : -2] != rank) {
    throw Error(ErrorCode::kCorruptFile,
                fmt::format("{}: tensor {} has matrices {} and {}, whose rank must be equal and at most {}", file,
                            dump_json(name), a.str(), b.str(), kMostRank));
  }
  Adapter::Module module{.name = name,
                         .rank = rank,
                         .inputs = a[table ? -2 : -1],
                         .outputs = b[-2],
                         .experts = experts,
                         .scale = static_cast<float>(alpha == 0 ? 1 : alpha / static_cast<double>(rank)),
                         .a = values_of(*pair.a),
                         .b = values_of(*pair.b),
                         .embedding = table};
  if (table) {
    std::vector<float> turned(module.a.size());
    for (int64_t id = 0; id < module.inputs; ++id) {
      for (int64_t r = 0; r < rank; ++r) {
        turned[static_cast<size_t>(r * module.inputs + id)] = module.a[static_cast<size_t>(id * rank + r)];
      }
    }
    module.a = std::move(turned);
  }
  if (experts > 1) module.b = beside_each_other(module.b, experts, module.outputs, rank);
  return module;
}

}  // namespace
}  // namespace sluice::gguf_adapter

namespace sluice {

std::shared_ptr<Adapter> read_gguf_adapter(const std::string& file) {
  const MappedFile mapped(file);
  const GgufFile gguf = read_gguf(mapped.bytes(), file);
  const GgufMetadata& metadata = gguf.metadata;
  gguf_adapter::check_metadata(metadata);
  auto adapter = std::make_shared<Adapter>();
  adapter->folder = file;
  adapter->gguf = metadata.required_text("general.architecture");
  adapter->invocation = gguf_adapter::read_invocation(metadata);
  const double alpha = metadata.number("adapter.lora.alpha").value_or(0);
  for (const auto& [name, pair] : gguf_adapter::pairs_of(gguf)) {
    adapter->modules.push_back(gguf_adapter::read_module(file, name, pair, alpha));
    adapter->rank = std::max(adapter->rank, static_cast<int>(adapter->modules.back().rank));
  }
  adapter->digest =
      hex(sha256(std::string_view(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size())));
  mapped.check();
  return adapter;
}

std::shared_ptr<Adapter> read_adapter(const std::string& path) {
  return std::filesystem::path(path).extension() == ".gguf" && !std::filesystem::is_directory(path)
             ? read_gguf_adapter(path)
             : read_peft_adapter(path);
}

}  // namespace sluice
