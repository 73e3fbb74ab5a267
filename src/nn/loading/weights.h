// How layers get their weights: by name, at construction, in one pass that first plans and then loads. The same
// constructors run twice: dry (shapes checked, bytes counted, nothing read) and for real. What is missing, misshapen or
// left over is reported in one error.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "nn/loading/packed_file.h"
#include "ops/ops.h"
#include "sluice/pooling.h"

namespace sluice {

struct LoadContext {
  const Checkpoint& checkpoint;
  ops::Queue& queue;  // packs the weights; its device is the model's
  const ops::Ops& ops = queue.device().ops();
  DType dtype = nullptr;                              // type matrices of plain types are stored and multiplied in
  DType quantization = nullptr;                       // block format they are stored in instead; may be null
  bool quantize_head = false;                         // the output head, too
  bool fp8_activations = false;                       // inputs of fp8_e4m3 matrices may be rounded to 8-bit floats
  Task task = Task::kGenerate;                        // what the model is for, see Model::forward
  bool dry = false;                                   // plan only
  bool keep_types = false;                            // plain types, too, stay what they are in the checkpoint
  Memory& memory = queue.device().memory();           // where weights go
  std::function<void(size_t done_bytes)> progress{};  // after each tensor; may be null
  std::shared_ptr<PackedFile> packed{};               // where packed matrices go, or are; null: into memory

  // Filled while building.
  size_t weight_bytes = 0;             // memory of packed matrices, vectors and tables
  std::vector<size_t> packed_sizes{};  // of it, of each packed matrix in turn
  std::string packed_layout{};         // what they are: a line each
  size_t mapped_bytes = 0;             // read in place from the file (embedding tables)
  int64_t widest_matmul = 0;           // inputs of a token, of all experts that it takes
  int attention_heads = 0;             // the most of any layer
  int64_t attention_value_dim = 0;     // likewise
  int64_t parameters = 0;
  size_t done_bytes = 0;
  std::set<std::string, std::less<>> used{};
  std::vector<std::string> problems{};

  void note_attention(int heads, int64_t value_dim) {  // of a layer
    attention_heads = std::max(attention_heads, heads);
    attention_value_dim = std::max(attention_value_dim, value_dim);
  }

  // Are matrices read and packed? Else they are only counted, or there already.
  bool packs() const { return !dry && (packed == nullptr || !packed->filled()); }

  // The type a matrix is stored and multiplied in. Block formats stay what they are, as far as the backend has them; of
  // others, those whose inputs fill whole blocks become the block format that was asked for, unless `keep` is true.
  DType matrix_type(DType in_checkpoint, int64_t inputs, bool keep = false) const;

  // Throws Error(kUnsupportedModel) listing missing, misshapen and unused tensors, if there are any. `ignorable` says
  // which leftovers are known to be harmless (rotary inverse frequencies in old checkpoints, for example).
  void finish(const std::function<bool(std::string_view name)>& ignorable = {}) const;
};

// A few numbers per layer in the backend's memory: biases, norms, rates.
class Vector {
 public:
  Vector() = default;
  Vector(const LoadContext& context, std::span<const float> values);
  const float* data() const { return size_ > 0 ? reinterpret_cast<const float*>(memory_.data()) : nullptr; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  Buffer memory_;
  size_t size_ = 0;
};

// A name prefix inside a checkpoint: w / "layers.0" / "mlp".
class Weights {
 public:
  explicit Weights(LoadContext& context, std::string prefix = {}) : context_(&context), prefix_(std::move(prefix)) {}

  Weights operator/(std::string_view name) const;  // an empty name stays here
  LoadContext& context() const { return *context_; }
  const std::string& prefix() const { return prefix_; }
  bool has(std::string_view name) const;

  // The tensor, its shape checked; nullptr (and a recorded problem) when it is missing or misshapen, or has no data
  // (TensorEntry::compute) for a caller that does not ask for such ones.
  enum class Stored { kWithData, kAnyWay };
  const TensorEntry* tensor(std::string_view name, const Shape& shape, Stored stored = Stored::kWithData) const;
  // A small tensor as fp32, on the host. Empty in a dry run or when missing.
  std::vector<float> vector(std::string_view name, int64_t n) const { return vector(name, Shape{n}); }
  std::vector<float> vector(std::string_view name, const Shape& shape) const;

 private:
  LoadContext* context_;
  std::string prefix_;  // "model.layers.0."
};

}  // namespace sluice
