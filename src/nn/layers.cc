// Loads and runs Linear, norms and embeddings.
#include "nn/layers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "nn/loading/packer.h"
#include "ops/gated_matmul.h"
#include "ops/lora_matmul.h"
#include "ops/upload.h"
#include "parallel/share.h"
#include "quant/groups.h"
#include "sluice/error.h"

namespace sluice {

Tensor transpose(const Tensor& matrix, Buffer& memory) {
  const int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  memory = Buffer(static_cast<size_t>(rows * columns) * sizeof(float));
  const Tensor out(memory.data(), &kFloat32, {columns, rows});
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t i = 0; i < rows; ++i) {
    to_float(matrix.dtype, matrix.slice_rows(i, 1).data, row.data(), row.size());
    for (int64_t j = 0; j < columns; ++j) out.f32()[j * rows + i] = row[j];
  }
  return out;
}

namespace {

// Does what reads `bytes` of weights now, or beside the constructors. `stay`: the weights are in a mapped file.
void run(LoadContext& context, Packer::Job job, size_t bytes, bool stay) {
  if (context.packer == nullptr) return job(context.queue);
  context.packer->run(std::move(job), bytes, stay);
}

// The same bytes, holding the memory that they go to.
ops::UploadedBytes kept(ops::UploadedBytes weights, std::shared_ptr<const Buffer> memory) {
  weights.read = [read = std::move(weights.read), memory = std::move(memory)](size_t begin, std::span<std::byte> into) {
    read(begin, into);
  };
  return weights;
}

// Copies weights that stay, now or beside the constructors.
void copy(LoadContext& context, ops::UploadedBytes weights) {
  if (context.packer == nullptr) return ops::upload(context.queue, std::span(&weights, 1));
  context.packer->copy(std::move(weights));
}

}  // namespace

PackedWeight::PackedWeight(LoadContext& context, DType dtype, int64_t outputs, int64_t inputs,
                           ops::InputRounding rounding) {
  const auto kernels = context.ops.matmul.find(dtype);
  if (kernels == context.ops.matmul.end()) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("this backend has no matmul for weights of type {}", dtype->name));
  }
  view_ = {.dtype = dtype, .n = outputs, .k = inputs, .inputs = rounding};
  const size_t bytes = kernels->second.packed_bytes(outputs, inputs);
  context.weight_bytes += bytes;
  context.packed_sizes.push_back(bytes);
  context.packed_layout += fmt::format("{} {} x {}: {}\n", dtype->name, outputs, inputs, bytes);
  context.widest_matmul = std::max(context.widest_matmul, inputs);
  if (context.dry) return;
  if (context.packed != nullptr && context.memory.host_accessible()) {
    file_ = context.packed;
    view_.data = file_->next(bytes);
    return;
  }
  storage_ = std::make_shared<const Buffer>(bytes, context.memory);
  view_.data = storage_->data();
  if (context.packed == nullptr) return;
  if (context.packed->filled()) {
    const auto read = [file = context.packed, number = context.packed->skip(bytes), keep = storage_](
                          size_t begin, std::span<std::byte> into) { file->read(number, begin, into); };
    copy(context, {.to = storage_->data(), .bytes = bytes, .piece = PackedFile::kBlock, .read = read});
  } else {
    context.for_file.push_back(storage_);
  }
}

void PackedWeight::pack(LoadContext& context, int64_t row, const Tensor& matrix) {
  if (matrix.data == nullptr || !context.packs()) return;
  const bool stays = context.checkpoint.maps(matrix.data);
  if (std::byte* const place = ops::place_of(context.queue, view_, row, matrix); place != nullptr && stays) {
    return copy(context, kept(ops::bytes_of(place, matrix.data, matrix.bytes()), storage_));
  }
  const auto pack = context.ops.matmul.at(view_.dtype).pack;
  run(
      context, [=, into = view_, memory = storage_](ops::Queue& queue) { pack(queue, into, row, matrix); },
      matrix.bytes(), stays);
}

void PackedWeight::clear(LoadContext& context, int64_t row, int64_t rows) {
  const ops::MatmulKernels& kernels = context.ops.matmul.at(view_.dtype);
  if (kernels.clear != nullptr) kernels.clear(context.queue, view_, row, rows);
}

namespace {

// Rows of the checkpoint in output order. Has no data in a dry run or if the tensor is missing.
struct Source {
  Tensor rows;
  DType stored = nullptr;            // type that the rows are packed in
  bool row_scales = true;            // fp8_e4m3: one scale per row
  bool unit = false;                 // rows are scaled to unit length
  bool scaled = false;               // columns are scaled by input_scale
  std::vector<float> input_scale{};  // [inputs], empty in a dry run
  std::shared_ptr<Buffer> memory{};  // owns rows that were computed or transposed
};

void scale_to_unit(float* row, int64_t columns) {
  double squares = 0;
  for (int64_t j = 0; j < columns; ++j) squares += double{row[j]} * row[j];
  const auto scale = static_cast<float>(1.0 / std::max(std::sqrt(squares), 1e-12));
  for (int64_t j = 0; j < columns; ++j) row[j] *= scale;
}

// Packs rows that must be changed first, a few at a time.
void pack_scaled_rows(LoadContext& context, PackedWeight& into, int64_t row, const Source& source) {
  const Tensor& matrix = source.rows;
  if (matrix.data == nullptr || !context.packs()) return;
  constexpr int64_t kRows = 256;
  const int64_t columns = matrix.shape[1];
  const Buffer memory(static_cast<size_t>(kRows * columns) * sizeof(float));
  for (int64_t begin = 0; begin < matrix.rows(); begin += kRows) {
    const Tensor scaled(memory.data(), &kFloat32, {std::min(kRows, matrix.rows() - begin), columns});
    for (int64_t i = 0; i < scaled.rows(); ++i) {
      const Tensor from = matrix.slice_rows(begin + i, 1);
      float* to = scaled.f32() + i * columns;
      to_float(from.dtype, from.data, to, static_cast<size_t>(columns));
      if (source.unit) scale_to_unit(to, columns);
      for (size_t j = 0; j < source.input_scale.size(); ++j) to[j] *= source.input_scale[j];
    }
    into.pack(context, row + begin, scaled);
  }
}

// The type that rows of this type in the checkpoint are packed in.
DType stored_type(const LoadContext& context, const Linear::Part& part, DType rows, int64_t inputs) {
  const bool changed = part.unit_rows || !part.input_scale.empty();
  return context.matrix_type(changed ? context.dtype : rows, inputs, part.keep_type);
}

// Returns the rows that a part asks for, and of them the columns `kept`, or all. A transposed matrix is turned around
// and converted to fp32.
std::vector<Source> sources_of(const LoadContext& context, const Linear::Part& part, const TensorEntry* entry,
                               int64_t inputs, const std::vector<RowRange>& ranges, std::optional<RowRange> kept,
                               const std::vector<float>& input_scale) {
  std::vector<Source> out;
  const bool scaled = !part.input_scale.empty();
  const auto add = [&](const Tensor& rows, const std::shared_ptr<Buffer>& memory) {
    const DType stored = stored_type(context, part, rows.dtype, inputs);
    const DType type = part.unit_rows || scaled ? context.dtype : rows.dtype;
    const bool row_scales = type != stored || (entry != nullptr && entry->row_scales);
    const Tensor columns = kept ? rows.slice_columns(kept->begin, kept->count) : rows;
    out.push_back({columns, stored, row_scales, part.unit_rows, scaled, input_scale, memory});
  };
  const bool transposing = entry != nullptr && part.transposed != entry->transposed;
  std::shared_ptr<Buffer> memory;
  TensorEntry computed;
  if (entry != nullptr && entry->compute && context.packs() && context.ranks.many()) {
    for (const RowRange& range : ranges) {  // only this rank's rows
      memory = std::make_shared<Buffer>();
      for (const Tensor& rows : entry->rows_in_memory(range.begin, range.count, context.queue.threads(), *memory)) {
        add(rows, memory);
      }
    }
    return out;
  }
  if (entry != nullptr && entry->compute && context.packs()) {
    memory = std::make_shared<Buffer>();
    computed = entry->in_memory(context.queue.threads(), *memory);
    entry = &computed;
  }
  Tensor whole;
  if (transposing && context.packs()) {
    memory = std::make_shared<Buffer>();
    whole = transpose(entry->rows(0, inputs).at(0), *memory);
  }
  for (const RowRange& range : ranges) {
    if (entry == nullptr) {
      add(Tensor(nullptr, context.dtype, {range.count, inputs}), nullptr);
    } else if (transposing && !context.packs()) {
      add(Tensor(nullptr, &kFloat32, {range.count, inputs}), nullptr);
    } else if (transposing) {
      add(whole.slice_rows(range.begin, range.count), memory);
    } else {
      for (const Tensor& rows : entry->rows(range.begin, range.count)) add(rows, memory);
    }
  }
  return out;
}

// How a matmul may round the inputs for these sources. For fp8_e4m3 this depends on their scales.
ops::InputRounding rounding_of(const LoadContext& context, std::span<const Source> sources) {
  if (!context.fp8_activations || sources[0].stored != &quant::Fp8::kType) return ops::InputRounding::kNone;
  const bool row_scales = std::ranges::all_of(sources, [](const Source& source) { return source.row_scales; });
  return row_scales ? ops::InputRounding::kFp8PerRow : ops::InputRounding::kFp8PerGroup;
}

// Packs sources of one stored type into one weight.
PackedWeight pack_all(LoadContext& context, std::span<const Source> sources, int64_t inputs) {
  int64_t outputs = 0, row = 0;
  for (const Source& source : sources) outputs += source.rows.rows();
  PackedWeight weight(context, sources[0].stored, outputs, inputs, rounding_of(context, sources));
  for (const Source& source : sources) {
    if (source.unit || source.scaled) {
      pack_scaled_rows(context, weight, row, source);
    } else {
      weight.pack(context, row, source.rows);
    }
    row += source.rows.rows();
  }
  return weight;
}

// Leaves only the rows of a part that are in the kept outputs, if there are any. Returns how many outputs it had
// before.
int64_t keep_outputs(std::vector<RowRange>& ranges, const std::vector<RowRange>& kept, int64_t first) {
  int64_t count = 0;
  for (const RowRange& range : ranges) count += range.count;
  if (kept.empty()) return count;
  std::vector<RowRange> left;
  for (const RowRange& range : kept) {
    const int64_t begin = std::max<int64_t>(range.begin - first, 0), end = range.begin + range.count - first;
    if (begin < end) std::ranges::move(cut_rows(ranges, begin, end), std::back_inserter(left));
  }
  ranges = std::move(left);
  return count;
}

}  // namespace

LinearSplit LinearSplit::share(const Ranks& ranks) {
  LinearSplit split;
  split.gather = ranks.many();
  return split;
}

int64_t Linear::input_unit(const Weights& w, const Part& part, int64_t inputs) {
  const LoadContext& context = w.context();
  const TensorEntry* entry = context.checkpoint.find((w / part.name).prefix() + "weight");
  if (entry == nullptr) return 1;
  const bool transposing = part.transposed != entry->transposed;
  if (transposing) return column_unit(nullptr, stored_type(context, part, &kFloat32, inputs));
  int64_t unit = column_unit(entry, stored_type(context, part, entry->dtype, inputs));
  for (const Tensor& piece : entry->pieces) {
    unit = std::lcm(unit, column_unit(nullptr, stored_type(context, part, piece.dtype, inputs)));
  }
  return unit;
}

// Decides what the ranks exchange, and returns what this rank keeps.
Linear::Split Linear::divide(const Weights& w, const std::vector<Part>& parts, int64_t inputs, Split split) {
  LoadContext& context = w.context();
  int64_t outputs = 0;
  for (const Part& part : parts) {
    for (const RowRange& range : part.rows) outputs += range.count;
    if (part.rows.empty()) outputs += part.outputs;
  }
  if (split.gather) {
    const Share mine = context.ranks.share(outputs);
    split.outputs = {{mine.begin, mine.count}};
    exchange_ = Exchange::kGatherOutputs, whole_ = outputs;
  }
  if (!split.inputs) return split;
  CHECK(parts.size() == 1 && split.outputs.empty() && !parts[0].unit_rows, "inputs of {} parts", parts.size());
  const int64_t unit = input_unit(w, parts[0], inputs);
  if (split.inputs->begin % unit == 0 && split.inputs->count % unit == 0) {
    exchange_ = split.sum ? Exchange::kSum : Exchange::kNone, partial_ = !split.sum;
    context.note_exchange(outputs);
    return split;
  }
  // The matrix cannot be cut there, so every rank multiplies all of it.
  const Share mine = context.ranks.share(inputs);
  CHECK(split.inputs->begin == mine.begin && split.inputs->count == mine.count, "uneven parts of {} inputs", inputs);
  exchange_ = Exchange::kGatherInputs, whole_ = inputs;
  context.note_exchange(inputs);
  split.inputs.reset();
  return split;
}

Linear::Linear(const Weights& w, const std::vector<Part>& parts, int64_t inputs, bool bias, const Split& given) {
  LoadContext& context = w.context();
  const Split split = divide(w, parts, inputs, given);
  // One summand has the bias. The others have zeros: all ranks must exchange results of one type (part_type).
  const bool adds_bias = !split.inputs || context.ranks.rank == 0;
  int64_t first_output = 0;  // of the current part
  std::vector<Source> sources;
  std::vector<float> biases;
  std::vector<LoraSite::Part> modules;
  for (const Part& part : parts) {
    const Weights here = w / part.name, bias_home = part.bias.empty() ? here : w / part.bias;
    std::vector<RowRange> ranges = part.rows.empty() ? std::vector<RowRange>{{0, part.outputs}} : part.rows;
    first_output += keep_outputs(ranges, split.outputs, first_output);
    const Shape shape = part.transposed ? Shape{inputs, part.outputs} : Shape{part.outputs, inputs};
    std::vector<float> input_scale;
    if (!part.input_scale.empty()) input_scale = w.vector(part.input_scale, inputs);
    if (split.inputs) input_scale = picked(std::move(input_scale), {*split.inputs});
    const bool unread = context.elsewhere && !part.input_scale.empty();  // adapters only need to know that there is one
    if (unread) input_scale.assign(static_cast<size_t>(inputs), 1.0f);
    const auto stored = part.transposed ? Weights::Stored::kWithData : Weights::Stored::kAnyWay;
    std::ranges::move(
        sources_of(context, part, here.tensor("weight", shape, stored), inputs, ranges, split.inputs, input_scale),
        std::back_inserter(sources));
    // A tensor of that name may have been read as something else: DeepSeek-V4's corrections of the router's scores.
    const bool biased = bias && !part.no_bias;
    if (!biased && bias_home.has("bias") && !context.used.contains(bias_home.prefix() + "bias")) {
      context.add_problem(
          fmt::format("tensor '{}bias' exists, but the configuration has no bias there", bias_home.prefix()));
    }
    std::vector<float> values = biased ? bias_home.vector("bias", part.outputs) : std::vector<float>{};
    if (bias && part.no_bias && !context.dry) values.assign(static_cast<size_t>(part.outputs), 0.0f);
    std::string module = bias_home.prefix();
    if (module.ends_with('.')) module.pop_back();
    modules.push_back({.module = std::move(module),
                       .module_outputs = part.outputs,
                       .rows = ranges,
                       .input_scale = input_scale,
                       .tensor = here.prefix() + "weight",
                       .transposed = part.transposed,
                       .rescaled = part.unit_rows});
    for (const RowRange& range : ranges) {
      if (values.empty()) break;
      biases.insert(biases.end(), values.begin() + range.begin, values.begin() + range.begin + range.count);
    }
  }
  if (!adds_bias) std::ranges::fill(biases, 0.0f);
  bias_ = Vector(context, biases);
  if (context.lora != nullptr) {
    lora_ = context.lora->add(std::move(modules), {.module_inputs = inputs,
                                                   .inputs = split.inputs.value_or(RowRange{0, inputs}),
                                                   .adds_bias = adds_bias,
                                                   .elsewhere = context.elsewhere});
  }
  for (size_t begin = 0, end = 0; begin < sources.size(); begin = end) {
    while (end < sources.size() && sources[end].stored == sources[begin].stored) ++end;
    PackedWeight weight =
        pack_all(context, std::span(sources).subspan(begin, end - begin), split.inputs ? split.inputs->count : inputs);
    const int64_t first = std::exchange(outputs_, outputs_ + weight.view().n);
    segments_.push_back({first, std::move(weight)});
  }
}

Tensor Linear::operator()(ops::Ctx& c, const Tensor& x) const {
  Tensor out = c.arena.take(&kFloat32, {x.rows(), outputs()});
  into(c, out, x, false);
  return out;
}

DType Linear::input_type(const ops::Ctx& c, int64_t rows) const {
  const DType type = segments_.size() == 1 ? ops::input_type(c, segments_[0].weight.view(), rows) : &kFloat32;
  const bool suits = !adapts(c) || (type == &kBFloat16 && !lora_->has_extras);
  return suits && exchange_ != Exchange::kGatherInputs ? type : &kFloat32;
}

DType Linear::output_type(const ops::Ctx& c, int64_t rows) const {
  return exchange_ == Exchange::kNone && !partial_ ? part_type(c, rows) : &kFloat32;
}

DType Linear::part_type(const ops::Ctx& c, int64_t rows) const {
  const bool plain = segments_.size() == 1 && bias_.empty() && !(adapts(c) && lora_->has_extras);
  return plain ? ops::output_type(c, segments_[0].weight.view(), rows) : &kFloat32;
}

namespace {

// Calls body(first, count, extra) for each run of rows of one adapter, and each extra that it has for the layer.
template <class F>
void each_extra(const ops::AdapterRows& rows, const LoraSite& site, F&& body) {
  for (size_t first = 0, end = 0; first < rows.slots.size(); first = end) {
    const int32_t slot = rows.slots[first];
    while (end < rows.slots.size() && rows.slots[end] == slot) ++end;
    if (slot < 0) continue;
    for (const LoraExtra* extra : site.extras[static_cast<size_t>(slot)]) {
      body(static_cast<int64_t>(first), static_cast<int64_t>(end - first), *extra);
    }
  }
}

void add_extra(ops::Ctx& c, const Tensor& out, const Tensor& x, const LoraExtra& extra) {
  if (extra.weight.n > 0) {
    const Tensor to = out.slice_columns(extra.first, extra.weight.n);
    const float* bias = extra.bias.data != nullptr ? extra.bias.f32() : nullptr;
    return ops::matmul(c, {.out = to, .x = x, .weight = &extra.weight, .bias = bias, .accumulate = true});
  }
  if (extra.bias.data == nullptr) return;  // another rank adds it
  const Tensor to = out.slice_columns(extra.first, extra.bias.shape[1]);
  for (int64_t row = 0; row < out.rows(); ++row) ops::add(c, to.slice_rows(row, 1), extra.bias);
}

}  // namespace

void Linear::into(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next) const {
  if (exchange_ == Exchange::kSum) return sum_into(c, out, x, accumulate, next);
  Arena::Scope scope(c.arena);
  if (exchange_ == Exchange::kNone) {
    multiply(c, out, x, accumulate);
  } else if (exchange_ == Exchange::kGatherInputs) {
    const Tensor whole = c.arena.take(&kFloat32, {x.rows(), whole_});
    ops::all_gather(c, whole, x);
    multiply(c, out, whole, accumulate);
  } else {
    const Tensor mine = c.arena.take(&kFloat32, {x.rows(), outputs_});
    multiply(c, mine, x, false);
    CHECK(!accumulate, "gathered results cannot be added");
    ops::all_gather(c, out, mine);
  }
  apply(c, next, out);
}

bool Linear::gated_into(ops::Ctx& c, const Tensor& out, const Tensor& x, ops::Activation activation) const {
  if (exchange_ != Exchange::kNone || segments_.size() != 1 || adapts(c)) return false;
  const float* bias = bias_.empty() ? nullptr : bias_.data();
  return ops::gated_matmul(c, {.out = out, .x = x, .weight = &segments_[0].weight.view(), .bias = bias}, activation);
}

void Linear::into(ops::Ctx& c, const Tensor& out, const MakeRows& make, bool accumulate, const NextNorm* next) const {
  if (exchange_ == Exchange::kSum && !adapts(c)) return sum_into(c, out, make, accumulate, next);
  into(c, out, make(0, out.rows()), accumulate, next);
}

void Linear::sum_into(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate, const NextNorm* next) const {
  if (!adapts(c) && (x.dtype == &kFloat32 || x.dtype == &kBFloat16)) {  // rows whose scales do not lie elsewhere
    const auto rows_of_x = [&](int64_t first, int64_t rows) { return x.slice_rows(first, rows); };
    return sum_into(c, out, rows_of_x, accumulate, next);
  }
  Arena::Scope scope(c.arena);
  const Tensor mine = ops::take_rows(c, part_type(c, x.rows()), x.rows(), outputs_);
  multiply(c, mine, x, false);
  const ops::RowNorm norm = next != nullptr ? next->norm->of_rows(next->out) : ops::RowNorm();
  ops::all_reduce(c, out, mine, accumulate, next != nullptr ? &norm : nullptr);
}

void Linear::sum_into(ops::Ctx& c, const Tensor& out, const MakeRows& make, bool accumulate,
                      const NextNorm* next) const {
  Arena::Scope scope(c.arena);
  const Tensor mine = ops::take_rows(c, part_type(c, out.rows()), out.rows(), outputs_);
  const auto compute = [&](int64_t first, int64_t rows) {
    multiply(c, mine.slice_rows(first, rows), make(first, rows), false);
  };
  const ops::RowNorm norm = next != nullptr ? next->norm->of_rows(next->out) : ops::RowNorm();
  ops::all_reduce(c, out, mine, accumulate, compute, next != nullptr ? &norm : nullptr);
}

void Linear::multiply(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  const auto args_of = [&](const Segment& segment) {
    return ops::MatmulArgs{.out = out.slice_columns(segment.first, segment.weight.view().n),
                           .x = x,
                           .weight = &segment.weight.view(),
                           .bias = bias_.empty() ? nullptr : bias_.data() + segment.first,
                           .accumulate = accumulate};
  };
  if (!adapts(c)) {
    for (const Segment& segment : segments_) ops::matmul(c, args_of(segment));
    return;
  }
  const ops::LoraWeight& w = lora_->weight;
  const Tensor inner(c.adapters->scratch.data, &kFloat32, {ops::LoraWeight::inner_rows(x.rows()), w.inner()});
  const ops::LoraShrinkArgs change{.inner = inner, .x = x, .slots = c.adapters->slots, .weight = &w};
  if (segments_.size() == 1) {
    ops::matmul(c, args_of(segments_[0]), change);
  } else {
    ops::lora_shrink(c, change);
    for (const Segment& segment : segments_) ops::matmul(c, args_of(segment));
    ops::lora_expand(c, {.out = out, .inner = inner, .slots = change.slots, .weight = &w});
  }
  each_extra(*c.adapters, *lora_, [&](int64_t first, int64_t count, const LoraExtra& extra) {
    add_extra(c, out.slice_rows(first, count), x.slice_rows(first, count), extra);
  });
}

Norm::Norm(const Weights& w, std::string_view name, int64_t size, const NormSpec& spec) : spec_(spec) {
  const Weights here = w / name;
  if (spec.weight) {
    std::vector<float> weight = here.vector(spec.weight_name, size);
    for (float& value : weight) value += spec.offset;
    weight_ = Vector(w.context(), weight);
  }
  if (spec.bias) bias_ = Vector(w.context(), here.vector("bias", size));
}

void Norm::into(ops::Ctx& c, const Tensor& out, const Tensor& x) const {
  if (spec_.kind == NormSpec::Kind::kRms) {
    ops::rms_norm(c, out, x, weight_.data(), spec_.eps);
  } else {
    ops::layer_norm(c, out, x, weight_.data(), bias_.data(), spec_.eps);
  }
}

void apply(ops::Ctx& c, const NextNorm* next, const Tensor& x) {
  if (next != nullptr) next->norm->into(c, next->out, x);
}

Tensor by_heads(const Tensor& x, int heads) {
  Tensor out = x;
  out.shape = {x.shape[0], heads, x.shape[1] / heads};
  return out;
}

Tensor Norm::operator()(ops::Ctx& c, const Tensor& x, DType type) const {
  const Tensor memory = c.arena.take(&kFloat32, x.shape), out = type == &kFloat32 ? memory : ops::rows_in(memory, type);
  into(c, out, x);
  return out;
}

namespace {

// Copies `to.shape[1]` columns of `from` on the host, from `column` on, to `memory`, converted to the type of `to`.
void copy_table(Memory& memory, const Tensor& to, const Tensor& from, int64_t column) {
  constexpr int64_t kRows = 256;  // rows at a time
  const auto columns = static_cast<size_t>(to.shape[1]), row_bytes = columns * to.dtype->block_bytes;
  std::vector<float> values(static_cast<size_t>(from.shape[1]));
  std::vector<std::byte> rows(kRows * row_bytes);
  for (int64_t begin = 0; begin < from.rows(); begin += kRows) {
    const int64_t count = std::min(kRows, from.rows() - begin);
    for (int64_t i = 0; i < count; ++i) {
      to_float(from.dtype, from.slice_rows(begin + i, 1).data, values.data(), values.size());
      from_float(to.dtype, values.data() + column, rows.data() + static_cast<size_t>(i) * row_bytes, columns);
    }
    memory.copy(to.data + static_cast<size_t>(begin) * row_bytes, rows.data(), static_cast<size_t>(count) * row_bytes);
  }
}

// The same columns, where both tables have one type.
ops::UploadedBytes columns_of(const Tensor& to, const Tensor& from, int64_t column) {
  if (from.shape == to.shape && from.dense()) return ops::bytes_of(to.data, from.data, to.bytes());
  const size_t size = to.dtype->block_bytes, row_bytes = static_cast<size_t>(to.shape[1]) * size;
  const size_t offset = static_cast<size_t>(column) * size;
  return {to.data, to.bytes(), row_bytes, [=](size_t begin, std::span<std::byte> into) {
            for (size_t at = 0; at < into.size(); at += row_bytes) {
              const auto row = static_cast<int64_t>((begin + at) / row_bytes);
              std::copy_n(from.slice_rows(row, 1).data + offset, row_bytes, into.data() + at);
            }
          }};
}

}  // namespace

Embedding::Embedding(const Weights& w, std::string_view name, int64_t rows, int64_t hidden, bool tokens)
    : hidden_(hidden) {
  const TensorEntry* entry = (w / name).tensor("weight", {rows, hidden});
  if (entry == nullptr) return;
  LoadContext& context = w.context();
  if (tokens && context.lora != nullptr) {
    const std::string prefix = (w / name).prefix();
    lora_ = context.lora->add_table({.module = prefix.substr(0, prefix.size() - 1),
                                     .module_outputs = hidden,
                                     .rows = {{0, hidden}},
                                     .tensor = prefix + "weight"},
                                    rows, hidden, context.elsewhere);
  }
  table_ = entry->view();
  if (context.memory.host_accessible()) {
    context.mapped_bytes += entry->bytes;
    return;
  }
  const bool divided = tokens && context.ranks.many();
  const Share mine = divided ? context.ranks.share(hidden) : Share{0, hidden};
  if (divided) context.note_exchange(mine.count);
  // Devices look up only plain types.
  const DType type = table_.dtype->block_size == 1 ? table_.dtype : context.dtype;
  Tensor copy(nullptr, type, {rows, mine.count});
  context.weight_bytes += copy.bytes();
  const Tensor from = std::exchange(table_, copy);
  if (context.dry) return;
  memory_ = std::make_shared<Buffer>(copy.bytes(), context.memory);
  table_.data = copy.data = memory_->data();
  const bool stays = context.checkpoint.maps(from.data), bytes = from.dtype == type;
  if (stays && bytes) {
    sluice::copy(context, kept(columns_of(copy, from, mine.begin), memory_));
    return;
  }
  const auto fill = [=, column = mine.begin, memory = memory_, &where = context.memory](ops::Queue& queue) {
    if (!bytes) return copy_table(where, copy, from, column);
    const ops::UploadedBytes all = columns_of(copy, from, column);
    ops::upload(queue, std::span(&all, 1));
  };
  run(context, fill, from.bytes(), stays);
}

Tensor Embedding::operator()(ops::Ctx& c, const Indices& ids) const {
  Tensor out = c.arena.take(&kFloat32, {static_cast<int64_t>(ids.size()), hidden_});
  into(c, out, ids);
  return out;
}

void Embedding::into(ops::Ctx& c, const Tensor& out, const Indices& ids) const {
  if (table_.shape[1] == hidden_) {
    ops::embed(c, out, table_, ids);
  } else {
    Arena::Scope scope(c.arena);
    const Tensor mine = c.arena.take(&kFloat32, {out.rows(), table_.shape[1]});
    ops::embed(c, mine, table_, ids);
    ops::all_gather(c, out, mine);
  }
  if (c.adapters == nullptr || lora_ == nullptr || !lora_->has_extras) return;
  each_extra(*c.adapters, *lora_, [&](int64_t first, int64_t count, const LoraExtra& extra) {
    const Tensor to = out.slice_rows(first, count);
    const Indices at = ids.part(static_cast<size_t>(first), static_cast<size_t>(count));
    if (extra.weight.n == 0) return ops::embed(c, to, extra.rows, at);
    const Tensor inner(c.adapters->scratch.data, &kFloat32, {count, extra.weight.k});
    ops::embed(c, inner, extra.rows, at);
    ops::matmul(c, {.out = to, .x = inner, .weight = &extra.weight, .accumulate = true});
  });
}

Embedding Embedding::rows_from(int64_t first) const {
  Embedding rest = *this;
  if (table_.data != nullptr) rest.table_ = table_.slice_rows(first, table_.rows() - first);
  return rest;
}

}  // namespace sluice
