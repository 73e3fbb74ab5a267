// Describes everything that packed weights depend on as text.
#include "engine/packed_cache.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/build_id.h"
#include "base/json.h"

namespace sluice {
namespace {

constexpr size_t kSamples = 256;     // tensors that are sampled, evenly spaced among all
constexpr size_t kSampleBytes = 64;  // bytes of each sampled tensor

// Returns bytes from the middle of a tensor. Files of different models may have equal sizes and times, for example from
// archives with normalized times.
std::string sample_of(const TensorEntry& entry) {
  if (entry.compute) {
    const int64_t rows = entry.shape.elements() / entry.shape[-1];
    std::string row(entry.bytes / static_cast<size_t>(rows), '\0');
    entry.compute(rows / 2, 1, reinterpret_cast<std::byte*>(row.data()));
    return row;
  }
  const Tensor stored = entry.pieces.empty() ? Tensor(const_cast<std::byte*>(entry.data), entry.dtype, entry.shape)
                                             : entry.pieces.front().slice_rows(0, 1);
  const size_t bytes = stored.bytes(), count = std::min(bytes, kSampleBytes);
  return {reinterpret_cast<const char*>(stored.data + (bytes - count) / 2), count};
}

std::string contents_of(const EngineOptions& options, const LoadPlan& plan) {
  const Checkpoint& checkpoint = *plan.checkpoint;
  std::string text = fmt::format(
      "backend {}\ndtype {}\nquantization {}\nhead {}\nfp8 activations {}\nkeep types {}\ntask {}\nconfig {}\n",
      plan.backend->name, plan.dtype->name, plan.quantization != nullptr ? plan.quantization->name : "none",
      options.quantize_head, plan.fp8_activations, plan.keep_types, to_string(plan.task),
      dump_json(checkpoint.config.values()));
  for (const SourceFile& file : checkpoint.files()) text += fmt::format("file {} {}\n", file.bytes, file.modified_ns);
  const size_t tensors = checkpoint.tensors().size();
  size_t i = 0;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    text += fmt::format("tensor {} {} {} {}\n", name, entry.dtype->name, entry.shape.str(), entry.transposed);
    if (i * kSamples / tensors != (i + 1) * kSamples / tensors) text += sample_of(entry);
    ++i;
  }
  return text + plan.packed_layout;
}

}  // namespace

std::shared_ptr<PackedFile> open_packed_file(const EngineOptions& options, const LoadPlan& plan) {
  return std::make_shared<PackedFile>(PackedFileSpec{.folder = options.packed_cache,
                                                     .contents = contents_of(options, plan),
                                                     .program = build_id(),
                                                     .sizes = plan.packed_sizes});
}

}  // namespace sluice
