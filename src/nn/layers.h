// The layers every decoder is made of. The member list is the weight list (style G10).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/loading/weights.h"
#include "ops/ops.h"

namespace sluice {

struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// A matrix [outputs, inputs] in the layout the device multiplies best, and its memory.
class PackedWeight {
 public:
  PackedWeight() = default;
  // Plans it in type `dtype`, which the backend must have kernels for; pack() fills it.
  PackedWeight(LoadContext& context, DType dtype, int64_t outputs, int64_t inputs,
               ops::InputRounding rounding = ops::InputRounding::kNone);
  // Outputs from `row` on. Nothing happens unless context.packs(), or without data (a tensor that is missing).
  void pack(LoadContext& context, int64_t row, const Tensor& matrix);
  const ops::Weight& view() const { return view_; }

 private:
  Buffer storage_;
  std::shared_ptr<PackedFile> file_;  // that has it, instead
  ops::Weight view_;
};

// y = x W^T + b. Several projections of the same input are fused into one matrix, outputs in the order given; where
// their types differ, into one for each run of equal types.
class Linear {
 public:
  struct Part {
    std::string name;  // "q_proj": tensors q_proj.weight [outputs, inputs] and q_proj.bias [outputs]
    int64_t outputs = 0;
    std::vector<RowRange> rows{};  // the tensor's rows in the order of the outputs; empty: as they are
    bool transposed = false;       // the tensor is [inputs, outputs], as GPT-2's Conv1D stores it
    bool unit_rows = false;        // rows are scaled to length one
    std::string input_scale{};     // tensor [inputs] that scales the columns; empty: none
    std::string bias{};            // "lm_head": the bias is lm_head.bias; empty: beside the weight
    bool keep_type = false;        // LoadContext::quantization is not for it
  };
  Linear() = default;
  Linear(const Weights& w, const std::vector<Part>& parts, int64_t inputs, bool bias);

  Tensor operator()(ops::Ctx& c, const Tensor& x) const;  // new [tokens, outputs] from the arena
  // The types this would take x in and may give its results in, see ops::input_type and ops::output_type.
  DType input_type(const ops::Ctx& c, int64_t rows) const;
  DType output_type(const ops::Ctx& c, int64_t rows) const;
  void into(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;  // out = or += this(x)
  int64_t outputs() const { return outputs_; }

 private:
  struct Segment {
    int64_t first = 0;  // output
    PackedWeight weight;
  };
  int64_t outputs_ = 0;
  std::vector<Segment> segments_;
  Vector bias_;
};

// matrix^T as fp32 in `memory`.
Tensor transpose(const Tensor& matrix, Buffer& memory);

// RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) or LayerNorm (Ba et al. 2016, arXiv:1607.06450).
struct NormSpec {
  enum class Kind { kRms, kLayer };
  Kind kind = Kind::kRms;
  float eps = 1e-6f;
  bool weight = true;
  bool bias = false;    // kLayer
  float offset = 0.0f;  // added to the stored weight
};

class Norm {
 public:
  Norm() = default;
  // Tensors NAME.weight and NAME.bias [size], as far as the spec has them.
  Norm(const Weights& w, std::string_view name, int64_t size, const NormSpec& spec);
  Norm(const LoadContext& context, std::span<const float> weight, const NormSpec& spec)
      : spec_(spec), weight_(context, weight) {}
  // New tensor of x's shape; of a type that some product takes, see ops::input_type.
  Tensor operator()(ops::Ctx& c, const Tensor& x, DType type = &kFloat32) const;
  void into(ops::Ctx& c, const Tensor& out, const Tensor& x) const;
  void in_place(ops::Ctx& c, const Tensor& x) const { into(c, x, x); }
  // As ops::rope_store takes it; without weights if that is another kind of norm.
  ops::HeadNorm of_heads() const {
    return spec_.kind == NormSpec::Kind::kRms ? ops::HeadNorm{weight_.data(), spec_.eps} : ops::HeadNorm{};
  }

 private:
  NormSpec spec_;
  Vector weight_, bias_;
};

// [tokens, heads * dim] as [tokens, heads, dim], of which norms take each vector by itself.
Tensor by_heads(const Tensor& x, int heads);

// A table of vectors: the mapped file's where ops read the host's memory, else a copy.
class Embedding {
 public:
  Embedding() = default;
  Embedding(const Weights& w, std::string_view name, int64_t rows, int64_t hidden);
  Embedding(const Tensor& table, Buffer memory) : memory_(std::make_shared<Buffer>(std::move(memory))), table_(table) {}
  Tensor operator()(ops::Ctx& c, const Indices& ids) const;  // [tokens, hidden] fp32
  void into(ops::Ctx& c, const Tensor& out, const Indices& ids) const { ops::embed(c, out, table_, ids); }
  Embedding rows_from(int64_t first) const;  // the same table without the rows before `first`

 private:
  std::shared_ptr<const Buffer> memory_;  // of the table; null: it lies elsewhere
  Tensor table_;
};

}  // namespace sluice
