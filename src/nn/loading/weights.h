// How layers get their weights: by name, at construction. The same constructors run twice: first dry (check shapes,
// count bytes, read nothing), then for real. All missing, misshapen and unused tensors are reported in one error.
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
#include "parallel/share.h"
#include "sluice/task.h"

namespace sluice {

class ExpertBalancer;
class LoraSites;
class Packer;

struct LoadContext {
  const Checkpoint& checkpoint;
  ops::Queue& queue;  // packs the weights; the model runs on its device
  const ops::Ops& ops = queue.device().ops();
  DType dtype = nullptr;                     // type in which matrices of plain types are stored and multiplied
  DType quantization = nullptr;              // block format in which they are stored instead; may be null
  bool quantize_head = false;                // also quantizes the output head
  bool fp8_activations = false;              // inputs of fp8_e4m3 matrices may be rounded to 8-bit floats
  Task task = Task::kGenerate;               // what the model is for; see Model::forward
  bool dry = false;                          // plan only
  bool elsewhere = false;                    // the weights belong to another stage (nn/loading/stage.h)
  bool keep_types = false;                   // plain types also stay as they are in the checkpoint
  Ranks ranks{};                             // which part of each layer this process holds (nn/loading/split.h)
  int key_parts = 1;                         // ranks that divide the keys of a sequence (ops::KeyShare)
  bool expert_parallel = false;              // ranks have whole experts instead of a part of each
  Ranks stage{};                             // which layers this process holds (nn/loading/stage.h)
  Memory& memory = queue.device().memory();  // where weights go
  std::function<void(size_t done_bytes)> progress{};  // called after each tensor; may be null
  std::shared_ptr<PackedFile> packed{};  // file for packed matrices, to write or already filled; null: pack into memory

  Packer* packer = nullptr;            // packs beside the constructors; null: they pack with `queue`
  ExpertBalancer* balancer = nullptr;  // places the experts of layers that ranks divide by expert; null: in order
  LoraSites* lora = nullptr;  // layers register here where adapters may change them; null: the model has no adapters

  // Filled by the constructors.
  size_t weight_bytes = 0;                                // memory of packed matrices, vectors and tables
  std::vector<size_t> packed_sizes{};                     // bytes of each packed matrix in turn; part of weight_bytes
  std::string packed_layout{};                            // description of the packed matrices, one line each
  std::vector<std::shared_ptr<const Buffer>> for_file{};  // packed matrices on a device that `packed` is to hold
  size_t mapped_bytes = 0;                                // read in place from the file (embedding tables)
  int64_t widest_matmul = 0;        // most inputs per token of any matmul, counting all experts that a token takes
  int attention_heads = 0;          // most of any layer
  int64_t attention_value_dim = 0;  // largest of any layer
  int64_t parameters = 0;
  int64_t widest_exchange = 0;  // most floats per token that a layer takes from the arena to exchange them with ranks
  size_t done_bytes = 0;
  std::set<std::string, std::less<>> used{};
  std::vector<std::string> problems{};

  void note_exchange(int64_t floats) { widest_exchange = std::max(widest_exchange, floats); }
  void note_attention(int heads, int64_t value_dim) {  // called for each attention layer
    attention_heads = std::max(attention_heads, heads);
    attention_value_dim = std::max(attention_value_dim, value_dim);
  }

  // Records what is wrong with the weights; finish() reports it. Throws at once when there are so many problems that
  // the configuration cannot be the checkpoint's.
  void add_problem(std::string problem);

  // True if matrices are read and packed. False if they are only counted (dry) or already in the packed file.
  bool packs() const { return !dry && (packed == nullptr || !packed->filled()); }

  // The type a matrix is stored and multiplied in. Block formats stay as they are if the backend supports them. Other
  // types become `quantization`, if it is set, their inputs fill whole blocks and `keep` is false.
  DType matrix_type(DType in_checkpoint, int64_t inputs, bool keep = false) const;

  // Throws Error(kUnsupportedModel) that lists missing, misshapen and unused tensors, if there are any. `ignorable`
  // returns true for unused tensors that are known to be harmless (e.g. rotary inverse frequencies in old checkpoints).
  void finish(const std::function<bool(std::string_view name)>& ignorable = {}) const;
};

// A few numbers per layer in the backend's memory: biases, norms, rates.
class Vector {
 public:
  Vector() = default;
  Vector(const LoadContext& context, std::span<const float> values);
  // Replaces the numbers by as many others, at the same address. Waits for the queue, which may be reading them.
  void replace(const LoadContext& context, std::span<const float> values);
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

  Weights operator/(std::string_view name) const;  // an empty name returns the same prefix
  LoadContext& context() const { return *context_; }
  const std::string& prefix() const { return prefix_; }
  bool has(std::string_view name) const;

  // Returns the tensor after checking its shape. Returns nullptr and records a problem if it is missing or misshapen.
  // With kWithData, also returns nullptr for a tensor without data (TensorEntry::compute).
  enum class Stored { kWithData, kAnyWay };
  const TensorEntry* tensor(std::string_view name, const Shape& shape, Stored stored = Stored::kWithData) const;
  // A small tensor as fp32 on the host. Empty in a dry run or if the tensor is missing.
  std::vector<float> vector(std::string_view name, int64_t n) const { return vector(name, Shape{n}); }
  std::vector<float> vector(std::string_view name, const Shape& shape) const;

 private:
  LoadContext* context_;
  std::string prefix_;  // "model.layers.0."
};

}  // namespace sluice
