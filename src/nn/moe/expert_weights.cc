// Loads experts from every layout. Packs one expert at a time, so that transposing or decoding needs memory for only
// one.
#include "nn/moe/expert_weights.h"

#include <fmt/core.h>

#include <cmath>

namespace sluice {
namespace {

// Views a tensor as [rows, columns] and returns rows [row, row + count). Without data if the tensor is missing.
Tensor rows_of(const TensorEntry* entry, int64_t row, int64_t count, int64_t columns) {
  if (entry == nullptr) return Tensor(nullptr, &kFloat32, {count, columns});
  Tensor matrix = entry->view();
  matrix.shape = {entry->shape.elements() / columns, columns};
  matrix.row_stride = columns;
  return matrix.slice_rows(row, count);
}

// Returns every second row, starting at `first`.
Tensor alternate_rows(const Tensor& matrix, int64_t first) {
  Tensor out = matrix.slice_rows(first, matrix.rows() - first);
  out.shape = {(out.rows() + 1) / 2, matrix.shape[1]};
  out.row_stride = 2 * matrix.row_stride;
  return out;
}

class Loader {
 public:
  Loader(const Weights& w, const MoeSpec& spec, int hidden, StackedLinear& in, StackedLinear& out)
      : w_(w), context_(w.context()), spec_(spec), hidden_(hidden), inner_(spec.inner), in_(in), out_(out) {}

  void separate() {
    plan(type_of_first(spec_.gate), type_of_first(spec_.down));
    Buffer memory;
    for (int e = 0; e < spec_.experts; ++e) {
      const Weights here = w_ / "experts" / std::to_string(e);
      const auto pack = [&](StackedLinear& into, int64_t row, const std::string& name, int64_t rows, int64_t columns) {
        const TensorEntry* entry = (here / name).tensor("weight", {rows, columns}, Weights::Stored::kAnyWay);
        if (entry == nullptr || !context_.packs()) return;
        into.pack(context_, e, row, entry->in_memory(context_.queue.threads(), memory).view());
      };
      if (spec_.gated) pack(in_, 0, spec_.gate, inner_, hidden_);
      pack(in_, spec_.gated ? inner_ : 0, spec_.up, inner_, hidden_);
      pack(out_, 0, spec_.down, hidden_, inner_);
    }
  }

  void stacked() {
    in_ = StackedLinear(w_, spec_.gate, spec_.experts, 2 * inner_, hidden_);
    out_ = StackedLinear(w_, spec_.down, spec_.experts, hidden_, inner_);
  }

  void stacked_parameters() {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files and in MXFP4
    const TensorEntry* in = w_.tensor(spec_.gate, {spec_.experts, 2 * inner_, hidden_});
    const TensorEntry* out = w_.tensor(spec_.down, {spec_.experts, hidden_, inner_});
    plan(in != nullptr ? in->dtype : context_.dtype, out != nullptr ? out->dtype : context_.dtype);
    for (int e = 0; e < spec_.experts; ++e) {
      in_.pack(context_, e, 0, rows_of(in, e * 2 * inner_, 2 * inner_, hidden_));
      out_.pack(context_, e, 0, rows_of(out, e * hidden_, hidden_, inner_));
    }
  }

  void flat() {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files
    plan(context_.dtype, context_.dtype);
    const TensorEntry* gate = w_.tensor(spec_.gate, {spec_.experts * inner_, hidden_});
    const TensorEntry* up = w_.tensor(spec_.up, {spec_.experts * inner_, hidden_});
    const TensorEntry* down = w_.tensor(spec_.down, {spec_.experts * inner_, hidden_});
    for (int e = 0; e < spec_.experts; ++e) {
      in_.pack(context_, e, 0, rows_of(gate, e * inner_, inner_, hidden_));
      in_.pack(context_, e, inner_, rows_of(up, e * inner_, inner_, hidden_));
      pack_transposed(out_, e, rows_of(down, e * inner_, inner_, hidden_));
    }
  }

  void transposed(bool in_turn) {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files and in MXFP4
    plan(context_.dtype, context_.dtype);
    const TensorEntry* in = w_.tensor(spec_.gate, {spec_.experts, hidden_, 2 * inner_});
    const TensorEntry* out = w_.tensor(spec_.down, {spec_.experts, inner_, hidden_});
    for (int e = 0; context_.packs() && e < spec_.experts && in != nullptr && out != nullptr; ++e) {
      Buffer memory;
      const Tensor rows = transpose(rows_of(in, e * hidden_, hidden_, 2 * inner_), memory);
      if (in_turn) {
        pack_in_turn(e, rows);
      } else {
        in_.pack(context_, e, 0, rows);
      }
      pack_transposed(out_, e, rows_of(out, e * inner_, inner_, hidden_));
    }
  }

  void biases() {
    if (spec_.bias == ExpertBias::kNone) return;
    if (spec_.bias == ExpertBias::kSum) return out_.set_bias_of_sum(context_, w_.vector("bias", hidden_));
    if (w_.has(spec_.gate + ".bias")) {  // stacked experts
      in_.set_bias(context_, w_.vector(spec_.gate + ".bias", Shape{spec_.experts, 2 * inner_}));
      return out_.set_bias(context_, w_.vector(spec_.down + ".bias", Shape{spec_.experts, hidden_}));
    }
    const std::vector<float> in_turn = w_.vector(spec_.gate + "_bias", Shape{spec_.experts, 2 * inner_});
    std::vector<float> in(in_turn.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const auto inner = static_cast<size_t>(inner_);
      const size_t row = i % (2 * inner);
      in[i - row + row % 2 * inner + row / 2] = in_turn[i];
    }
    in_.set_bias(context_, in);
    out_.set_bias(context_, w_.vector(spec_.down + "_bias", Shape{spec_.experts, hidden_}));
  }

 private:
  void plan(DType in, DType out) {
    in_ = StackedLinear(context_, in, spec_.experts, (spec_.gated ? 2 : 1) * inner_, hidden_);
    out_ = StackedLinear(context_, out, spec_.experts, hidden_, inner_);
  }

  // One weight holds the matrices of all experts, so all have the type of the first.
  DType type_of_first(const std::string& name) const {
    const TensorEntry* entry = context_.checkpoint.find((w_ / "experts" / "0" / name).prefix() + "weight");
    return entry != nullptr ? entry->dtype : context_.dtype;
  }

  // Packs interleaved rows of gate and up.
  void pack_in_turn(int e, const Tensor& rows) {
    in_.pack(context_, e, 0, alternate_rows(rows, 0));
    in_.pack(context_, e, inner_, alternate_rows(rows, 1));
  }

  void pack_transposed(StackedLinear& into, int e, const Tensor& matrix) {
    if (matrix.data == nullptr || !context_.packs()) return;
    Buffer memory;
    into.pack(context_, e, 0, transpose(matrix, memory));
  }

  const Weights& w_;
  LoadContext& context_;
  const MoeSpec& spec_;
  const int64_t hidden_, inner_;
  StackedLinear &in_, &out_;
};

}  // namespace

void load_experts(const Weights& w, const MoeSpec& spec, int hidden, StackedLinear& in, StackedLinear& out) {
  CHECK(spec.gated || spec.layout == ExpertLayout::kSeparate, "experts without gates in layout {}",
        static_cast<int>(spec.layout));
  Loader loader(w, spec, hidden, in, out);
  switch (spec.layout) {
    case ExpertLayout::kSeparate:
      loader.separate();
      break;
    case ExpertLayout::kStacked:
      loader.stacked();
      break;
    case ExpertLayout::kStackedParameters:
      loader.stacked_parameters();
      break;
    case ExpertLayout::kFlat:
      loader.flat();
      break;
    case ExpertLayout::kTransposedHalves:
      loader.transposed(false);
      break;
    case ExpertLayout::kTransposed:
      loader.transposed(true);
      break;
  }
  loader.biases();
}

}  // namespace sluice
