// The layers that decoders and encoders are built from: Linear, Norm, Embedding. A layer loads its weights when it is
// constructed, so its members list its weights.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lora/sites.h"
#include "nn/loading/split.h"
#include "ops/ops.h"

namespace sluice {

// A matrix [outputs, inputs] packed in the layout that the device's matmul wants. Owns its memory.
class PackedWeight {
 public:
  PackedWeight() = default;
  // Plans a matrix of type `dtype`, for which the backend must have kernels; pack() fills it.
  PackedWeight(LoadContext& context, DType dtype, int64_t outputs, int64_t inputs,
               ops::InputRounding rounding = ops::InputRounding::kNone);
  // Packs outputs from `row` on. Does nothing unless context.packs(), or if the matrix has no data (a missing tensor).
  void pack(LoadContext& context, int64_t row, const Tensor& matrix);
  void clear(LoadContext& context, int64_t row, int64_t rows);  // whole panels, before they are packed again
  const ops::Weight& view() const { return view_; }

 private:
  std::shared_ptr<const Buffer> storage_;  // shared with the packer
  std::shared_ptr<PackedFile> file_;       // the file that holds the matrix instead; may be null
  ops::Weight view_;
};

// The part of a Linear that this rank holds; see nn/loading/split.h.
struct LinearSplit {
  std::vector<RowRange> outputs{};   // the kept outputs, counted over all parts; empty: all
  std::optional<RowRange> inputs{};  // the kept inputs; x has only these, and the ranks' results are added up
  bool sum = true;                   // false: with kept inputs, the caller adds up the ranks' results
  bool gather = false;               // results are all outputs, of which every rank computes its share
  static LinearSplit share(const Ranks& ranks);  // of outputs that are gathered
};

class Norm;

// A norm that reads the result of a layer. A layer that ends with a sum over ranks computes both at once.
struct NextNorm {
  const Norm* norm = nullptr;
  Tensor out;  // the result's shape, in a type that a matmul takes; may be the result
};
// next->out = next->norm(x), unless next is null.
void apply(ops::Ctx& c, const NextNorm* next, const Tensor& x);

// y = x W^T + b. Several projections of one input are fused into one matrix, with outputs in the given order. If their
// types differ, each run of equal types becomes one matrix.
class Linear {
 public:
  struct Part {
    std::string name;  // "q_proj": tensors q_proj.weight [outputs, inputs] and q_proj.bias [outputs]
    int64_t outputs = 0;
    std::vector<RowRange> rows{};  // rows of the tensor in output order; empty: as stored
    bool transposed = false;       // the tensor is [inputs, outputs], as GPT-2's Conv1D stores it
    bool unit_rows = false;        // rows are scaled to unit length
    std::string input_scale{};     // tensor [inputs] that scales the columns; empty: none
    std::string bias{};            // "lm_head": the bias is lm_head.bias; empty: NAME.bias
    bool keep_type = false;        // LoadContext::quantization does not apply
    bool no_bias = false;          // has no bias even if the others have one
  };
  using Split = LinearSplit;
  Linear() = default;
  Linear(const Weights& w, const std::vector<Part>& parts, int64_t inputs, bool bias, const Split& split = {});
  // The fewest inputs that a rank can take from a part without cutting through a block of a quantized type.
  static int64_t input_unit(const Weights& w, const Part& part, int64_t inputs);

  Tensor operator()(ops::Ctx& c, const Tensor& x) const;  // new [tokens, outputs] from the arena
  // The types in which this takes x and may give its results; see ops::input_type and ops::output_type.
  DType input_type(const ops::Ctx& c, int64_t rows) const;
  DType output_type(const ops::Ctx& c, int64_t rows) const;
  // out = or += this(x), then `next`.
  void into(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next = nullptr) const;
  // The same. make(first row, rows) returns rows of x. It may be called for several runs of rows, in order.
  using MakeRows = std::function<Tensor(int64_t first, int64_t rows)>;
  void into(ops::Ctx& c, const Tensor& out, const MakeRows& make, bool accumulate, const NextNorm* next) const;
  // out = activation(gate) * up, of a projection whose outputs are the gates and then as many others. Returns false,
  // having done nothing, if the device does not gain by it; see ops::gated_matmul.
  bool gated_into(ops::Ctx& c, const Tensor& out, const Tensor& x, ops::Activation activation) const;
  int64_t outputs() const { return exchange_ == Exchange::kGatherOutputs ? whole_ : outputs_; }
  bool partial() const { return partial_; }  // results are this rank's summands, which the caller adds up
  int64_t gathered_floats() const {          // arena floats per row that gathered results take besides
    return exchange_ == Exchange::kGatherOutputs ? outputs_ : 0;
  }

 private:
  // What the ranks exchange when the layer runs.
  enum class Exchange { kNone, kSum, kGatherInputs, kGatherOutputs };
  struct Segment {
    int64_t first = 0;  // first output
    PackedWeight weight;
  };
  bool adapts(const ops::Ctx& c) const { return lora_ != nullptr && lora_->adapts(c); }
  Split divide(const Weights& w, const std::vector<Part>& parts, int64_t inputs, Split split);
  void multiply(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;
  void sum_into(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next) const;
  void sum_into(ops::Ctx& c, const Tensor& out, const MakeRows& make, bool accumulate, const NextNorm* next) const;
  DType part_type(const ops::Ctx& c, int64_t rows) const;  // of what multiply() gives

  int64_t outputs_ = 0;
  int64_t whole_ = 0;  // inputs or outputs of all ranks together, if they are gathered
  Exchange exchange_ = Exchange::kNone;
  bool partial_ = false;
  std::vector<Segment> segments_;
  Vector bias_;
  std::shared_ptr<LoraSite> lora_;  // where adapters change this layer; null: they cannot
};

// Returns the transposed matrix as fp32 in `memory`.
Tensor transpose(const Tensor& matrix, Buffer& memory);

// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) or LayerNorm (Ba et al. 2016, arXiv:1607.06450).
struct NormSpec {
  enum class Kind { kRms, kLayer };
  Kind kind = Kind::kRms;
  float eps = 1e-6f;
  bool weight = true;
  bool bias = false;    // used by kLayer
  float offset = 0.0f;  // added to the stored weight
  std::string_view weight_name = "weight";
};

class Norm {
 public:
  Norm() = default;
  // Reads tensors NAME.weight (or the spec's other name) and NAME.bias [size], as far as the spec has them.
  Norm(const Weights& w, std::string_view name, int64_t size, const NormSpec& spec);
  Norm(const LoadContext& context, std::span<const float> weight, const NormSpec& spec)
      : spec_(spec), weight_(context, weight) {}
  // Returns a new tensor of x's shape. `type` must be one that a matmul takes; see ops::input_type.
  Tensor operator()(ops::Ctx& c, const Tensor& x, DType type = &kFloat32) const;
  void into(ops::Ctx& c, const Tensor& out, const Tensor& x) const;
  void in_place(ops::Ctx& c, const Tensor& x) const { into(c, x, x); }
  // The norm to `out` in the form that ops::all_reduce takes.
  ops::RowNorm of_rows(const Tensor& out) const {
    return {out, weight_.data(), bias_.data(), spec_.eps, spec_.kind == NormSpec::Kind::kLayer};
  }
  // The norm in the form that ops::rope_store takes. Without weights unless it is an RMSNorm.
  ops::HeadNorm of_heads() const {
    return spec_.kind == NormSpec::Kind::kRms ? ops::HeadNorm{weight_.data(), spec_.eps} : ops::HeadNorm{};
  }

 private:
  NormSpec spec_;
  Vector weight_, bias_;
};

// Views [tokens, heads * dim] as [tokens, heads, dim], so that norms treat each head separately.
Tensor by_heads(const Tensor& x, int heads);

// A table of vectors. Uses the mapped file in place if ops can read host memory, else a copy.
class Embedding {
 public:
  Embedding() = default;
  // `tokens`: this is the table of the model's tokens. Adapters may change it, and a rank copies its columns only.
  Embedding(const Weights& w, std::string_view name, int64_t rows, int64_t hidden, bool tokens = false);
  Embedding(const Tensor& table, Buffer memory)
      : memory_(std::make_shared<Buffer>(std::move(memory))), table_(table), hidden_(table.shape[1]) {}
  Tensor operator()(ops::Ctx& c, const Indices& ids) const;  // [tokens, hidden] fp32
  void into(ops::Ctx& c, const Tensor& out, const Indices& ids) const;
  Embedding rows_from(int64_t first) const;  // this table without the rows before `first`

 private:
  std::shared_ptr<const Buffer> memory_;  // owns the table; null: the table is elsewhere
  Tensor table_;                          // has fewer than hidden_ columns if the other ranks have the rest
  int64_t hidden_ = 0;
  std::shared_ptr<LoraSite> lora_;  // where adapters change it; null: they cannot
};

// What turns tokens into vectors, and vectors into logits.
struct TokenTables {
  Embedding embedding;
  std::shared_ptr<const Linear> head = std::make_shared<Linear>();
};

}  // namespace sluice
