// Opens a checkpoint with the registered format that recognizes it.
#include "formats/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/folder.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "formats/checkpoint_format.h"
#include "hub/cache.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// File extensions of known weight formats, so that an error can say what was found instead.
constexpr std::array<std::string_view, 9> kWeightEndings = {".safetensors", ".gguf", ".bin",  ".pth",    ".pt",
                                                            ".ckpt",        ".h5",   ".onnx", ".msgpack"};

bool holds_weights(const fs::path& file) {
  return std::ranges::find(kWeightEndings, file.extension().native()) != kWeightEndings.end();
}

// An adapter's folder looks like a model's, but holds only additions to another model's weights.
void refuse_adapter(const fs::path& folder) {
  const fs::path file = folder / "adapter_config.json";
  if (!fs::exists(file)) return;
  const auto base = read_config(file.string()).get("base_model_name_or_path", std::string("another model"));
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("{}: this is an adapter for {}, not a complete model", folder.string(), base));
}

[[noreturn]] void refuse_format(const fs::path& path) {
  std::string known;
  for (const CheckpointFormat* format : Registry<CheckpointFormat>::all()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format->name);
  }
  if (!fs::is_directory(path)) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: unsupported format (expected one of: {})", path.string(), known));
  }
  refuse_adapter(path);
  std::vector<std::string> found;
  std::error_code unreadable;
  for (const std::string& name : names_in(path, unreadable)) {
    if (holds_weights(path / name)) found.push_back(name);
  }
  if (unreadable) throw Error(ErrorCode::kNotFound, fmt::format("{}: {}", path.string(), unreadable.message()));
  if (found.empty())
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: no weights in this folder (expected one of: {})", path.string(), known));
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("{}: {}{}: unsupported format (expected one of: {})", path.string(), found.front(),
                          found.size() > 1 ? fmt::format(" and {} more", found.size() - 1) : "", known));
}

template <class T>
std::optional<T> in_range(const Config& config, std::string_view key, T least, T most) {
  if (!config.has(key)) return std::nullopt;
  const T value = config.at<T>(key);
  if (!(value >= least && value <= most)) {
    config.refuse(key, fmt::format("{} is out of range (expected {} to {})", value, least, most));
  }
  return value;
}

}  // namespace

std::vector<Tensor> TensorEntry::rows_in_memory(int64_t begin, int64_t count, ThreadPool& pool, Buffer& memory) const {
  if (!compute) return rows(begin, count);
  const int64_t columns = shape[-1];
  const size_t row_bytes = bytes / static_cast<size_t>(shape.elements() / columns);
  const size_t needed = static_cast<size_t>(count) * row_bytes;
  if (memory.size() < needed) memory = Buffer(needed);
  pool.parallel_for(count, 64, [&](int64_t from, int64_t to) {
    compute(begin + from, to - from, memory.data() + static_cast<size_t>(from) * row_bytes);
  });
  return {Tensor(memory.data(), dtype, {count, columns})};
}

TensorEntry TensorEntry::in_memory(ThreadPool& pool, Buffer& memory) const {
  if (!compute) return *this;
  rows_in_memory(0, shape.elements() / shape[-1], pool, memory);
  TensorEntry out = *this;
  out.compute = nullptr;
  out.data = memory.data();
  return out;
}

Tensor TensorEntry::view() const {
  CHECK(pieces.empty() && !transposed, "tensor '{}' is not dense", name);
  return Tensor(const_cast<std::byte*>(data), dtype, shape);
}

std::vector<Tensor> TensorEntry::rows(int64_t begin, int64_t count) const {
  const int64_t columns = shape.rank() < 2 ? 1 : shape[transposed ? 0 : -1];
  const Tensor dense(const_cast<std::byte*>(data), dtype, {shape.elements() / columns, columns});
  std::vector<Tensor> out;
  int64_t first = 0;  // first row of the current piece
  for (const Tensor& piece : pieces.empty() ? std::vector<Tensor>{dense} : pieces) {
    const int64_t from = std::max(begin, first), to = std::min(begin + count, first + piece.rows());
    if (from < to) out.push_back(piece.slice_rows(from - first, to - from));
    first += piece.rows();
  }
  CHECK(begin >= 0 && begin + count <= first, "row range starts at {} and has {} rows, but the tensor has {} rows",
        begin, count, first);
  return out;
}

void TensorEntry::read(float* to) const {
  CHECK(!transposed, "tensor '{}' is transposed", name);
  if (pieces.empty()) return to_float(dtype, data, to, static_cast<size_t>(shape.elements()));
  for (const Tensor& piece : pieces) {
    const int64_t columns = piece.row_elements();
    for (int64_t i = 0; i < piece.rows(); ++i, to += columns) {
      to_float(piece.dtype, piece.slice_rows(i, 1).data, to, static_cast<size_t>(columns));
    }
  }
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

size_t Checkpoint::total_bytes() const {
  size_t total = 0;
  for (const auto& [name, entry] : tensors_) total += entry.bytes;
  return total;
}

void Checkpoint::check_files() const {
  for (const auto& file : mapped_) file->check();
}

bool Checkpoint::maps(const std::byte* data) const {
  return std::ranges::any_of(mapped_, [&](const auto& file) {
    const std::span<const std::byte> bytes = file->bytes();
    return data >= bytes.data() && data < bytes.data() + bytes.size();
  });
}

const MappedFile& Checkpoint::map_file(const std::string& path) {
  const MappedFile& file = *mapped_.emplace_back(std::make_unique<MappedFile>(path));
  sources_.push_back({file.bytes().size(), file.modified_ns()});
  return file;
}

GenerationConfig read_generation(const Config& config) {
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr int kMostInt = std::numeric_limits<int>::max();
  GenerationConfig out;
  if (const Json* eos = config.find("eos_token_id")) {
    const auto ids = eos->is_array() ? config.at<std::vector<int>>("eos_token_id")
                                     : std::vector<int>{config.at<int>("eos_token_id")};
    for (int id : ids) {
      if (id < 0) config.refuse("eos_token_id", fmt::format("{} is not a valid token ID", id));
    }
    out.eos_token_ids.assign(ids.begin(), ids.end());
  }
  out.temperature = in_range<double>(config, "temperature", 0, kMost);
  out.top_p = in_range<double>(config, "top_p", 0, 1);
  out.min_p = in_range<double>(config, "min_p", 0, 1);
  out.repetition_penalty = in_range<double>(config, "repetition_penalty", std::numeric_limits<double>::min(), kMost);
  out.top_k = in_range<int>(config, "top_k", -1, kMostInt);  // 0 and -1 disable it
  out.max_new_tokens = in_range<int>(config, "max_new_tokens", 1, kMostInt);
  out.do_sample = config.get("do_sample", false);
  return out;
}

std::unique_ptr<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options) {
  const fs::path resolved = resolve_model_path(path);
  const CheckpointFormat* chosen = nullptr;
  for (const CheckpointFormat* format : Registry<CheckpointFormat>::all()) {
    if (chosen != nullptr && chosen->rank <= format->rank) continue;
    if (format->recognizes(resolved)) chosen = format;
  }
  if (chosen == nullptr) refuse_format(resolved);
  if (chosen->pickled && !options.allow_bin) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: the weights are Python pickles ({}); pass --allow-bin to accept them",
                            resolved.string(), chosen->name));
  }
  std::unique_ptr<Checkpoint> checkpoint = chosen->open(resolved);
  checkpoint->check_files();
  return checkpoint;
}

}  // namespace sluice
