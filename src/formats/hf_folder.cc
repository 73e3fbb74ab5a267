// Folders written by Hugging Face's transformers: config.json, generation_config.json, and weights in safetensors or
// torch.save files. The weights are one file, or shards listed in an index.
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <stop_token>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "formats/checkpoint_format.h"
#include "formats/quantized/quantized.h"
#include "formats/safetensors.h"
#include "formats/text_part.h"
#include "formats/torch/torch_file.h"
#include "sluice/error.h"
#include "tensor/memory.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool present(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

// A kind of weights file.
struct WeightFiles {
  std::string_view single, index;  // names of the single file and of the index of shards
  // Reads a mapped file. `dense` receives the memory of tensors that the file does not store densely.
  std::vector<TensorEntry> (*read)(const MappedFile& file, std::vector<std::vector<std::byte>>& dense);
};

constexpr WeightFiles kSafetensors{
    .single = "model.safetensors",
    .index = "model.safetensors.index.json",
    .read = [](const MappedFile& file, auto&) { return read_safetensors(file.bytes(), file.path()); },
};
constexpr WeightFiles kTorch{
    .single = "pytorch_model.bin",
    .index = "pytorch_model.bin.index.json",
    .read =
        [](const MappedFile& file, std::vector<std::vector<std::byte>>& dense) {
          TorchFile read = read_torch_file(file.bytes(), file.path());
          std::ranges::move(read.dense, std::back_inserter(dense));
          return std::move(read.entries);
        },
};

[[noreturn]] void corrupt(const fs::path& file, const std::string& message) {
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", file.string(), message));
}

class HfFolder : public Checkpoint {
 public:
  HfFolder(const fs::path& path, const WeightFiles& kind) : kind_(kind) {
    const bool single_file = !fs::is_directory(path);
    const fs::path root = single_file ? path.parent_path() : path;
    folder = root.empty() ? "." : root.string();
    config = read_config((root / "config.json").string());
    if (config.has("auto_map")) log::info("{}: auto_map ignored: code in checkpoints is never run", config.origin());
    add_quantization_of(root);
    generation = read_generation_of(root);

    if (single_file) {
      add_file(path, nullptr);
    } else if (present(root / kind_.single)) {
      add_file(root / kind_.single, nullptr);
    } else {
      add_shards(root / kind_.index);
    }
    fp8_activations = read_quantized(config, tensors_);  // configuration of the whole checkpoint
    text_part = take_text_part(config, tensors_);
    fp8_activations |= read_quantized(config, tensors_);  // configuration of the text part
    if (generation.eos_token_ids.empty()) generation.eos_token_ids = read_generation(config).eos_token_ids;
  }

  // Page faults alone keep too few requests in flight for the disk. A cold file was read at 1.2 to 1.6 GB/s, and with
  // reading ahead at 2.0 to 2.1 GB/s, on a virtual disk. When memory is short, the pages are left to page faults.
  void read_ahead() const override {
    size_t total = 0;
    for (const auto& file : mapped_) total += file->bytes().size();
    if (total > host_memory().total() / 4 * 3) return;
    reader_ = std::jthread([this](const std::stop_token& stop) {
      // Linux cuts the request of one call to the readahead window, 128 KiB by default.
      constexpr size_t kStep = 128u << 10;
      for (const auto& file : mapped_) {
        const std::span<const std::byte> bytes = file->bytes();
        for (size_t at = 0; at < bytes.size() && !stop.stop_requested(); at += kStep) {
          ::madvise(const_cast<std::byte*>(bytes.data()) + at, std::min(kStep, bytes.size() - at), MADV_WILLNEED);
        }
      }
    });
  }

 private:
  // NVIDIA's Model Optimizer writes a separate file for settings that others put in config.json.
  void add_quantization_of(const fs::path& root) {
    const fs::path file = root / "hf_quant_config.json";
    if (config.values().contains("quantization_config") || !present(file)) return;
    const Config beside = read_config(file.string());
    const Json* quantization = beside.find("quantization");
    if (quantization == nullptr || !quantization->is_object()) corrupt(file, "'quantization' must be an object");
    Json values = config.values();
    values["quantization_config"] = *quantization;
    values["quantization_config"]["quant_method"] = "modelopt";
    config = Config(std::move(values), config.origin());
  }

  // Reads generation_config.json like transformers: when it is absent or names no end token, config.json is used.
  GenerationConfig read_generation_of(const fs::path& root) const {
    GenerationConfig from_model = read_generation(config);
    const fs::path file = root / "generation_config.json";
    if (!present(file)) return from_model;
    GenerationConfig out = read_generation(read_config(file.string()));
    if (out.eos_token_ids.empty()) out.eos_token_ids = from_model.eos_token_ids;
    return out;
  }

  // Adds the tensors of one file. With `wanted` (sorted names), adds only those, and all of them must be present.
  void add_file(const fs::path& path, const std::vector<std::string>* wanted) {
    const MappedFile& file = map_file(path.string());
    size_t taken = 0, unlisted = 0;
    for (TensorEntry& entry : kind_.read(file, dense_)) {
      if (wanted != nullptr && !std::ranges::binary_search(*wanted, entry.name)) {
        ++unlisted;
        continue;
      }
      ++taken;
      std::string name = entry.name;
      tensors_.emplace(std::move(name), std::move(entry));
    }
    if (unlisted > 0) {
      log::warning("{}: skipped {} tensors that {} does not list", path.string(), unlisted, kind_.index);
    }
    if (wanted == nullptr || taken == wanted->size()) return;
    const auto missing = std::ranges::find_if(*wanted, [&](const std::string& name) { return find(name) == nullptr; });
    corrupt(path, fmt::format("tensor {} is not in this file, but {} lists it here", dump_json(*missing), kind_.index));
  }

  void add_shards(const fs::path& index) {
    const Config values = read_config(index.string());
    const Json* map = values.find("weight_map");
    if (map == nullptr || !map->is_object()) corrupt(index, "'weight_map' must be an object");
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto& [tensor, shard] : map->items()) {
      if (!shard.is_string()) corrupt(index, fmt::format("weight_map: {}: expected a file name", dump_json(tensor)));
      shards[shard.get<std::string>()].push_back(tensor);
    }
    check_shards(index, shards);
    for (auto& [shard, names] : shards) {
      std::ranges::sort(names);
      add_file(index.parent_path() / shard, &names);
    }
  }

  static void check_shards(const fs::path& index, const std::map<std::string, std::vector<std::string>>& shards) {
    std::vector<std::string> missing;
    for (const auto& [shard, names] : shards) {
      // A shard is in the same folder as its index. Names that leave the folder are rejected.
      if (shard.empty() || shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || shard == "." ||
          shard == "..") {
        corrupt(index, fmt::format("weight_map: {} is not a valid name of a file in this folder", dump_json(shard)));
      }
      if (!present(index.parent_path() / shard)) missing.push_back(shard);
    }
    if (!missing.empty()) {
      corrupt(index, fmt::format("{} of {} shards are missing, the first is {}", missing.size(), shards.size(),
                                 missing.front()));
    }
  }

  const WeightFiles& kind_;
  std::vector<std::vector<std::byte>> dense_;
  mutable std::jthread reader_;  // stops before the base class unmaps the files
};

bool holds(const fs::path& folder, const WeightFiles& kind) {
  return present(folder / kind.single) || present(folder / kind.index);
}

const CheckpointFormat safetensors{
    .name = "safetensors",
    .recognizes =
        [](const fs::path& path) {
          return fs::is_directory(path) ? holds(path, kSafetensors) : path.extension() == ".safetensors";
        },
    .open = [](const fs::path& path) -> std::unique_ptr<Checkpoint> {
      return std::make_unique<HfFolder>(path, kSafetensors);
    },
};
const CheckpointFormat torch{
    .name = "torch.save",
    .recognizes =
        [](const fs::path& path) {
          if (fs::is_directory(path)) return holds(path, kTorch);
          return path.extension() == ".bin" || path.extension() == ".pt" || path.extension() == ".pth";
        },
    .open = [](const fs::path& path) -> std::unique_ptr<Checkpoint> {
      return std::make_unique<HfFolder>(path, kTorch);
    },
    .rank = 10,
    .pickled = true,
};
const Registry<CheckpointFormat> registered_safetensors{safetensors}, registered_torch{torch};

}  // namespace
}  // namespace sluice
