// Loads experts from every layout. Packs one expert at a time, so that transposing or decoding needs memory for only
// one.
#include "nn/moe/expert_weights.h"

#include <fmt/core.h>

#include <cmath>
#include <numeric>

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
  // Packs the matrices `places`, of all that the part has. Plans them first unless they are planned already.
  Loader(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, std::vector<int> places,
         ExpertMatrices& into)
      : w_(w),
        context_(w.context()),
        spec_(spec),
        hidden_(hidden),
        inner_(spec.inner),
        experts_(part.experts),
        part_(part.inner),
        places_(std::move(places)),
        planned_(into.in.count() > 0),
        in_(into.in),
        out_(into.out) {}

  void separate() {
    plan(type_of_first(spec_.gate), type_of_first(spec_.down));
    const RowRange all{0, hidden_};
    for (int e = 0; e < spec_.experts; ++e) {
      const Weights here = w_ / "experts" / std::to_string(e);
      const auto pack = [&](StackedLinear& into, int64_t row, const std::string& name, const Shape& shape,
                            RowRange rows, RowRange columns) {
        const TensorEntry* entry = (here / name).tensor("weight", shape, Weights::Stored::kAnyWay);
        if (entry == nullptr || !context_.packs()) return;
        for (const int i : places_) {
          if (expert(i) == e) pack_part(into, i, row, *entry, rows, columns);
        }
      };
      if (spec_.gated) pack(in_, 0, spec_.gate, {inner_, hidden_}, part_, all);
      pack(in_, spec_.gated ? part_.count : 0, spec_.up, {inner_, hidden_}, part_, all);
      pack(out_, 0, spec_.down, {hidden_, inner_}, all, part_);
    }
  }

  void stacked() {
    const TensorEntry* in = find(spec_.gate, {spec_.experts, 2 * inner_, hidden_});
    const TensorEntry* out = find(spec_.down, {spec_.experts, hidden_, inner_});
    plan(type_of(in), type_of(out));
    if (!context_.packs() || in == nullptr || out == nullptr) return;
    each_expert([&](int i, int64_t e) {
      int64_t row = 0;
      for (const RowRange& range : gate_and_up()) {
        pack_part(in_, i, row, *in, scaled(range, 1, 2 * e * inner_), {0, hidden_});
        row += range.count;
      }
      pack_part(out_, i, 0, *out, {e * hidden_, hidden_}, part_);
    });
  }

  void stacked_apart() {
    const TensorEntry* gate = find(spec_.gate, {spec_.experts, inner_, hidden_});
    const TensorEntry* up = find(spec_.up, {spec_.experts, inner_, hidden_});
    const TensorEntry* down = find(spec_.down, {spec_.experts, hidden_, inner_});
    plan(type_of(gate), type_of(down));
    if (!context_.packs() || gate == nullptr || up == nullptr || down == nullptr) return;
    each_expert([&](int i, int64_t e) {
      const RowRange mine = scaled(part_, 1, e * inner_);
      pack_part(in_, i, 0, *gate, mine, {0, hidden_});
      pack_part(in_, i, part_.count, *up, mine, {0, hidden_});
      pack_part(out_, i, 0, *down, {e * hidden_, hidden_}, part_);
    });
  }

  void stacked_parameters() {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files and in MXFP4
    const TensorEntry* in = w_.tensor(spec_.gate, {spec_.experts, 2 * inner_, hidden_});
    const TensorEntry* out = w_.tensor(spec_.down, {spec_.experts, hidden_, inner_});
    plan(type_of(in), type_of(out));
    each_expert([&](int i, int64_t e) {
      pack_in(i, rows_of(in, e * 2 * inner_, 2 * inner_, hidden_));
      out_.pack(context_, i, 0, my_columns(rows_of(out, e * hidden_, hidden_, inner_)));
    });
  }

  void flat() {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files
    plan(context_.dtype, context_.dtype);
    const TensorEntry* gate = w_.tensor(spec_.gate, {spec_.experts * inner_, hidden_});
    const TensorEntry* up = w_.tensor(spec_.up, {spec_.experts * inner_, hidden_});
    const TensorEntry* down = w_.tensor(spec_.down, {spec_.experts * inner_, hidden_});
    each_expert([&](int i, int64_t e) {
      const int64_t first = e * inner_ + part_.begin;
      in_.pack(context_, i, 0, rows_of(gate, first, part_.count, hidden_));
      in_.pack(context_, i, part_.count, rows_of(up, first, part_.count, hidden_));
      pack_transposed(out_, i, rows_of(down, first, part_.count, hidden_));
    });
  }

  void transposed(bool in_turn) {
    if (w_.has(spec_.gate + ".weight")) return stacked();  // so stored in GGUF files and in MXFP4
    plan(context_.dtype, context_.dtype);
    const TensorEntry* in = w_.tensor(spec_.gate, {spec_.experts, hidden_, 2 * inner_});
    const TensorEntry* out = w_.tensor(spec_.down, {spec_.experts, inner_, hidden_});
    if (!context_.packs() || in == nullptr || out == nullptr) return;
    each_expert([&](int i, int64_t e) {
      Buffer memory;
      const Tensor rows = transpose(rows_of(in, e * hidden_, hidden_, 2 * inner_), memory);
      if (in_turn) {
        pack_in_turn(i, rows);
      } else {
        pack_in(i, rows);
      }
      pack_transposed(out_, i, rows_of(out, e * inner_ + part_.begin, part_.count, hidden_));
    });
  }

  void biases() {
    if (spec_.bias == ExpertBias::kNone) return;
    // Of the ranks' summands of an expert, one has the bias.
    const bool has_bias = part_.count == inner_ || context_.ranks.rank == 0;
    const auto set_bias_out = [&](std::vector<float> bias) {
      std::vector<RowRange> kept;
      for (const int64_t e : experts_) kept.push_back({e * hidden_, hidden_});
      if (has_bias) out_.set_bias(context_, picked(std::move(bias), kept));
    };
    if (spec_.bias == ExpertBias::kSum) {
      const std::vector<float> bias = w_.vector("bias", hidden_);
      return out_.set_bias_of_sum(context_, has_bias ? bias : std::vector<float>{});
    }
    if (w_.has(spec_.gate + ".bias")) {  // stacked experts
      set_bias_in(w_.vector(spec_.gate + ".bias", Shape{spec_.experts, 2 * inner_}));
      return set_bias_out(w_.vector(spec_.down + ".bias", Shape{spec_.experts, hidden_}));
    }
    const std::vector<float> in_turn = w_.vector(spec_.gate + "_bias", Shape{spec_.experts, 2 * inner_});
    std::vector<float> in(in_turn.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const auto inner = static_cast<size_t>(inner_);
      const size_t row = i % (2 * inner);
      in[i - row + row % 2 * inner + row / 2] = in_turn[i];
    }
    set_bias_in(std::move(in));
    set_bias_out(w_.vector(spec_.down + "_bias", Shape{spec_.experts, hidden_}));
  }

 private:
  const TensorEntry* find(const std::string& name, const Shape& shape) const {
    return (w_ / name).tensor("weight", shape, Weights::Stored::kAnyWay);
  }
  DType type_of(const TensorEntry* entry) const { return entry != nullptr ? entry->dtype : context_.dtype; }

  void plan(DType in, DType out) {
    if (planned_) return;
    const auto count = static_cast<int>(experts_.size());
    in_ = StackedLinear(context_, in, count, (spec_.gated ? 2 : 1) * part_.count, hidden_);
    out_ = StackedLinear(context_, out, count, hidden_, part_.count, inner_);
  }

  // Packs a part of an entry's rows and columns as the rows from `row` on of matrix i.
  void pack_part(StackedLinear& into, int i, int64_t row, const TensorEntry& entry, RowRange rows, RowRange columns) {
    for (const Tensor& run : entry.rows_in_memory(rows.begin, rows.count, context_.queue.threads(), memory_)) {
      into.pack(context_, i, row, run.slice_columns(columns.begin, columns.count));
      row += run.rows();
    }
  }

  // The expert of the checkpoint that matrix i is.
  int64_t expert(int i) const { return experts_[static_cast<size_t>(i)]; }

  // Calls body(i, e) for the matrices to pack: the i-th one is expert e of the checkpoint.
  template <class F>
  void each_expert(F&& body) const {
    for (const int i : places_) body(i, expert(i));
  }

  // This rank's rows of gate and up, which lie one after the other.
  std::vector<RowRange> gate_and_up() const { return {part_, {inner_ + part_.begin, part_.count}}; }
  Tensor my_columns(const Tensor& matrix) const { return matrix.slice_columns(part_.begin, part_.count); }

  void pack_in(int e, const Tensor& rows) {
    in_.pack(context_, e, 0, rows.slice_rows(part_.begin, part_.count));
    in_.pack(context_, e, part_.count, rows.slice_rows(inner_ + part_.begin, part_.count));
  }

  // [experts, 2 * inner]
  void set_bias_in(std::vector<float> bias) {
    std::vector<RowRange> kept;
    for (const int64_t e : experts_) {
      for (const RowRange& range : gate_and_up()) kept.push_back(scaled(range, 1, 2 * e * inner_));
    }
    in_.set_bias(context_, picked(std::move(bias), kept));
  }

  // One weight holds the matrices of all experts, so all have the type of the first.
  DType type_of_first(const std::string& name) const {
    const TensorEntry* entry = context_.checkpoint.find((w_ / "experts" / "0" / name).prefix() + "weight");
    return type_of(entry);
  }

  // Packs interleaved rows of gate and up.
  void pack_in_turn(int e, const Tensor& rows) {
    in_.pack(context_, e, 0, alternate_rows(rows, 0).slice_rows(part_.begin, part_.count));
    in_.pack(context_, e, part_.count, alternate_rows(rows, 1).slice_rows(part_.begin, part_.count));
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
  const std::vector<int32_t>& experts_;
  const RowRange part_;            // of the inner width
  const std::vector<int> places_;  // the matrices to pack
  const bool planned_;
  StackedLinear &in_, &out_;
  Buffer memory_;  // of rows that are computed
};

void load_part(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, std::vector<int> places,
               ExpertMatrices& into) {
  Loader loader(w, spec, hidden, part, std::move(places), into);
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
    case ExpertLayout::kStackedApart:
      loader.stacked_apart();
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

}  // namespace

ExpertPart all_experts(const MoeSpec& spec) {
  ExpertPart all{.experts = std::vector<int32_t>(static_cast<size_t>(spec.experts)), .inner = {0, spec.inner}};
  std::iota(all.experts.begin(), all.experts.end(), 0);
  return all;
}

std::optional<ExpertPart> expert_part(const Weights& w, const MoeSpec& spec) {
  const LoadContext& context = w.context();
  ExpertPart part = all_experts(spec);
  if (context.expert_parallel) {
    if (const auto mine = grouped_part(context.ranks, spec.experts, 1, false)) {
      part.experts.resize(static_cast<size_t>(mine->count));
      std::iota(part.experts.begin(), part.experts.end(), static_cast<int32_t>(mine->begin));
      return part;
    }
  }
  int64_t unit = 1;
  const auto add = [&](const Weights& down) {
    const TensorEntry* entry = context.checkpoint.find(down.prefix() + "weight");
    const DType type = entry != nullptr ? entry->dtype : context.dtype;  // tensors of other layouts are plain
    unit = std::lcm(unit, column_unit(entry, context.matrix_type(type, spec.inner)));
  };
  const bool separate = spec.layout == ExpertLayout::kSeparate;
  for (int e = 0; separate && e < spec.experts; ++e) add(w / "experts" / std::to_string(e) / spec.down);
  if (!separate) add(w / spec.down);
  const auto inner = grouped_part(context.ranks, spec.inner, unit, false);
  if (!inner) return std::nullopt;
  part.inner = *inner;
  return part;
}

void load_experts(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, ExpertMatrices& into) {
  CHECK(spec.gated || spec.layout == ExpertLayout::kSeparate, "experts without gates in layout {}",
        static_cast<int>(spec.layout));
  std::vector<int> all(part.experts.size());
  std::iota(all.begin(), all.end(), 0);
  load_part(w, spec, hidden, part, std::move(all), into);
}

void load_experts_again(const Weights& w, const MoeSpec& spec, int hidden, const std::vector<int32_t>& experts,
                        const std::vector<int>& changed, ExpertMatrices& into) {
  for (const int i : changed) into.in.clear(w.context(), i), into.out.clear(w.context(), i);
  load_part(w, spec, hidden, {.experts = experts, .inner = {0, spec.inner}}, changed, into);
}

}  // namespace sluice
