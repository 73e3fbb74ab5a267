// Hashes of headers and of a few bytes of each tensor.
#include "engine/fingerprint.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "base/sha256.h"

namespace sluice {
namespace {

constexpr size_t kSamples = 256;     // tensors that are sampled, evenly chosen among all
constexpr size_t kSampleBytes = 64;  // bytes of each

// Returns bytes from the middle of a tensor. Files of different models may have equal sizes and times.
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

}  // namespace

std::string checkpoint_contents(const Checkpoint& checkpoint) {
  std::string text = fmt::format("config {}\n", dump_json(checkpoint.config.values()));
  const size_t tensors = checkpoint.tensors().size();
  size_t i = 0;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    text += fmt::format("tensor {} {} {} {}\n", name, entry.dtype->name, entry.shape.str(), entry.transposed);
    if (i * kSamples / tensors != (i + 1) * kSamples / tensors) text += sample_of(entry);
    ++i;
  }
  return text;
}

std::string model_fingerprint(const LoadPlan& plan) {
  const std::string types =
      fmt::format("dtype {}\nquantization {}\nfp8 activations {}\nkeep types {}\ncache {}\n", plan.dtype->name,
                  plan.quantization != nullptr ? plan.quantization->name : "none", plan.fp8_activations,
                  plan.keep_types, plan.kv_dtype->name);
  const std::string draft = plan.draft != nullptr ? "draft " + model_fingerprint(*plan.draft) : "";
  return hex(sha256({types, checkpoint_contents(*plan.checkpoint), draft}));
}

}  // namespace sluice
