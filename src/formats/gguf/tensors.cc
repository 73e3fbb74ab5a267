// Renames and reorders GGUF tensors. The data stays in place; entries are views.
#include "formats/gguf/tensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "sluice/error.h"

namespace sluice {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), with);
  return text;
}

// Returns the number of elements per index of the first dimension.
int64_t row_elements(const TensorEntry& entry) { return entry.shape.elements() / entry.shape[0]; }

// Returns `count` rows of the entry from `begin` on, `step` rows apart.
Tensor rows_of(const TensorEntry& entry, int64_t begin, int64_t count, int64_t step = 1) {
  const int64_t columns = row_elements(entry);
  const Shape shape = entry.shape.rank() == 1 ? Shape{count} : Shape{count, columns};
  const int64_t offset = begin * columns / entry.dtype->block_size * entry.dtype->block_bytes;
  Tensor out(const_cast<std::byte*>(entry.data) + offset, entry.dtype, shape);
  out.row_stride = step * columns;
  return out;
}

}  // namespace

GgufTensors::Name GgufTensors::parse(std::string_view name) {
  Name out;
  for (std::string_view suffix : {".weight", ".bias"}) {
    if (!name.ends_with(suffix)) continue;
    out.suffix = suffix;
    name.remove_suffix(suffix.size());
    break;
  }
  constexpr std::string_view kLayers = "blk.";
  out.base = name;
  if (!name.starts_with(kLayers)) return out;
  const std::string_view rest = name.substr(kLayers.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits == rest.size() || (rest[0] == '0' && digits > 1)) return out;
  out.layer = rest.substr(0, digits);
  out.base = fmt::format("blk.{{}}{}", rest.substr(digits));
  return out;
}

const TensorRule* GgufTensors::rule_of(const GgufConfig& config, std::string_view base) {
  for (const std::span<const TensorRule> table : config.tensors) {
    for (const TensorRule& rule : table) {
      if (rule.gguf == base) return &rule;
    }
  }
  return nullptr;
}

GgufTensors::GgufTensors(const GgufFile& file, const GgufConfig& config)
    : file_(file),
      heads_(config.heads_),
      kv_heads_(config.kv_heads_),
      head_dim_(config.head_dim_),
      groups_(config.groups),
      key_rows_(config.key_rows),
      repeats_(config.repeats) {
  for (const TensorEntry& entry : file.tensors) {
    const Name name = parse(entry.name);
    const bool predicting = !name.layer.empty() && name.layer.size() < 10 && config.predicts(std::stoll(name.layer));
    if (predicting && !config.keeps_predicting_blocks()) continue;
    const TensorRule* rule = rule_of(config, name.base);
    if (predicting && rule == nullptr) continue;
    if (rule == nullptr) refuse(entry, "unknown tensor for this architecture");
    apply(*rule, name, entry);
  }
  if (!halves_.empty()) refuse(halves_.begin()->second, "the tensor's gate or up counterpart is missing");
  for (const Scalar& scalar : config.scalars) {
    const std::vector<float>& memory = owned_.emplace_back(1, scalar.value);
    const auto* data = reinterpret_cast<const std::byte*>(memory.data());
    add({.name = scalar.name, .dtype = &kFloat32, .shape = scalar.shape, .data = data, .bytes = sizeof(float)},
        scalar.name);
  }
}

void GgufTensors::refuse(const TensorEntry& entry, const std::string& message) const {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: tensor {} {}: {}", file_.metadata.file,
                                                        dump_json(entry.name), entry.shape.str(), message));
}

void GgufTensors::add(TensorEntry entry, std::string name) {
  const std::string old = std::exchange(entry.name, name);
  if (tensors_.emplace(std::move(name), std::move(entry)).second) return;
  throw Error(ErrorCode::kCorruptFile,
              fmt::format("{}: tensor {} is stored in two forms", file_.metadata.file, dump_json(old)));
}

void GgufTensors::apply(const TensorRule& rule, const Name& parsed, TensorEntry entry) {
  const std::string name = replaced(std::string(rule.hf), "{}", parsed.layer) + parsed.suffix;
  switch (rule.form) {
    case TensorForm::kRead:
      return;
    case TensorForm::kPlain:
      return add(std::move(entry), name);
    case TensorForm::kWholeName:
      return add(std::move(entry), replaced(std::string(rule.hf), "{}", parsed.layer));
    case TensorForm::kPairedQ:
    case TensorForm::kPairedK:
      entry.pieces = paired(entry, rule.form == TensorForm::kPairedQ ? heads_ : kv_heads_);
      return add(std::move(entry), name);
    case TensorForm::kPairedOwn:
      entry.pieces = paired(entry, entry.shape[0] / head_dim_);
      return add(std::move(entry), name);
    case TensorForm::kGroupedQkv:
      entry.pieces = grouped(entry);
      return add(std::move(entry), name);
    case TensorForm::kSplitQkv:
      return add_split(entry, name);
    case TensorForm::kSplitBa:
      return add_split_ba(entry, name);
    case TensorForm::kRepeatKeys:
    case TensorForm::kRepeatTaps: {
      entry.pieces = repeated_keys(entry);
      const int64_t rows = entry.shape[0] + 2 * (repeats_ - 1) * key_rows_;
      entry.shape = rule.form == TensorForm::kRepeatTaps ? Shape{rows, 1, entry.shape[1]} : Shape{rows, entry.shape[1]};
      return add(std::move(entry), name);
    }
    case TensorForm::kTransposed:
      if (entry.shape.rank() == 2) {
        entry.shape = {entry.shape[1], entry.shape[0]};
        entry.transposed = true;
      }
      return add(std::move(entry), name);
    case TensorForm::kPlusOne: {
      if (parsed.suffix != ".weight") return add(std::move(entry), name);
      return add_computed(std::move(entry), name, [](float v) { return v - 1.0f; });
    }
    case TensorForm::kExperts:
      return add_each(std::move(entry), name, "{e}");
    case TensorForm::kHeadNorms:
      return add_each(std::move(entry), name, "{h}");
    case TensorForm::kGateRows:
    case TensorForm::kUpRows:
      return add_stacked(std::move(entry), name, rule.form == TensorForm::kUpRows, parsed.suffix == ".bias");
    case TensorForm::kOneRow:
    case TensorForm::kWholeOneRow: {
      if (entry.shape.rank() == 1) entry.shape = {1, entry.shape[0]};
      const bool whole = rule.form == TensorForm::kWholeOneRow;
      return add(std::move(entry), whole ? replaced(std::string(rule.hf), "{}", parsed.layer) : name);
    }
    case TensorForm::kFlat:
      entry.shape = {entry.shape.elements()};
      return add(std::move(entry), name);
    case TensorForm::kDepthwise:
      if (entry.shape.rank() == 2) entry.shape = {entry.shape[0], 1, entry.shape[1]};
      if (entry.shape.rank() == 4 && entry.shape[0] == 1)
        entry.shape = {entry.shape[1], entry.shape[2], entry.shape[3]};
      return add(std::move(entry), name);
    case TensorForm::kDecays:
    case TensorForm::kHeadDecays: {
      if (entry.shape.rank() == 2 && entry.shape[1] == 1) entry.shape = {entry.shape[0]};
      if (rule.form == TensorForm::kHeadDecays) entry.shape = {1, 1, entry.shape.elements(), 1};
      return add_computed(std::move(entry), name, [](float a) { return std::log(-a); });
    }
  }
}

void GgufTensors::add_split_ba(const TensorEntry& entry, const std::string& name) {
  const int64_t rows = entry.shape[0] / (2 * groups_);
  if (entry.shape.rank() != 2 || rows < 1 || rows * 2 * groups_ != entry.shape[0]) {
    refuse(entry, fmt::format("expected rows for {} groups", groups_));
  }
  for (int64_t i = 0; i < 2; ++i) {
    TensorEntry part = entry;
    part.shape = {rows * groups_, entry.shape[1]};
    part.bytes = entry.bytes / 2;
    for (int64_t group = 0; group < groups_; ++group) {
      part.pieces.push_back(rows_of(entry, (2 * group + i) * rows, rows));
    }
    add(std::move(part), replaced(name, "_ba.", i == 0 ? "_b." : "_a."));
  }
}

// Adds a small tensor with transformed values.
void GgufTensors::add_computed(TensorEntry entry, const std::string& name, float (*value)(float)) {
  std::vector<float>& values = owned_.emplace_back(static_cast<size_t>(entry.shape.elements()));
  entry.read(values.data());
  std::ranges::transform(values, values.begin(), value);
  entry.dtype = &kFloat32;
  entry.data = reinterpret_cast<const std::byte*>(values.data());
  entry.bytes = values.size() * sizeof(float);
  add(std::move(entry), name);
}

void GgufTensors::add_each(TensorEntry entry, const std::string& name, std::string_view number) {
  if (entry.shape.rank() < 2) refuse(entry, "expected at least two dimensions");
  const int64_t count = entry.shape[0];
  TensorEntry one = entry;
  one.shape = entry.shape.rank() == 3 ? Shape{entry.shape[1], entry.shape[2]} : Shape{entry.shape[1]};
  one.bytes = entry.bytes / static_cast<size_t>(count);
  for (int64_t i = 0; i < count; ++i, one.data += one.bytes) add(one, replaced(name, number, std::to_string(i)));
}

void GgufTensors::add_split(const TensorEntry& entry, const std::string& name) {
  const int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  if (entry.shape[0] != q + 2 * kv) refuse(entry, fmt::format("expected {} rows", q + 2 * kv));
  int64_t at = 0;
  for (const auto& [letter, rows] : {std::pair{"q", q}, {"k", kv}, {"v", kv}}) {
    TensorEntry part = entry;
    const Tensor view = rows_of(entry, at, rows);
    part.shape = view.shape;
    part.data = view.data;
    part.bytes = view.bytes();
    add(std::move(part), replaced(name, "qkv", letter));
    at += rows;
  }
}

// Adds one half of [experts, gate rows + up rows, columns]; the tensor is complete when both halves are present. A
// matrix without an expert dimension belongs to one expert. Biases have one column.
void GgufTensors::add_stacked(TensorEntry entry, const std::string& name, bool up, bool bias) {
  const auto other = halves_.find(name);
  if (other == halves_.end()) {
    halves_.emplace(name, std::move(entry));
    return;
  }
  const TensorEntry& first = up ? other->second : entry;
  const TensorEntry& second = up ? entry : other->second;
  const int rank = first.shape.rank();
  if (rank < 2 || (rank == 3 && bias) || !(first.shape == second.shape)) {
    refuse(second, fmt::format("does not match its gate or up counterpart of shape {}", first.shape.str()));
  }
  const bool matrix = rank == 2 && !bias;
  const int64_t experts = matrix ? 1 : first.shape[0], rows = first.shape[matrix ? 0 : 1];
  const int64_t columns = bias ? 1 : first.shape[-1];
  TensorEntry both = first;
  both.shape = matrix ? Shape{2 * rows, columns} : bias ? Shape{experts, 2 * rows} : Shape{experts, 2 * rows, columns};
  both.bytes = first.bytes + second.bytes;
  for (int64_t e = 0; e < experts; ++e) {
    for (const TensorEntry* half : {&first, &second}) {
      TensorEntry matrices = *half;
      matrices.shape = {experts * rows, columns};
      both.pieces.push_back(rows_of(matrices, e * rows, rows));
    }
  }
  halves_.erase(other);
  add(std::move(both), name);
}

std::vector<Tensor> GgufTensors::repeated_keys(const TensorEntry& entry) const {
  if (entry.shape.rank() != 2 || entry.shape[0] <= 2 * key_rows_) {
    refuse(entry, fmt::format("expected more than {} rows", 2 * key_rows_));
  }
  std::vector<Tensor> pieces;
  for (int64_t part = 0; part < 2; ++part) {
    for (int64_t i = 0; i < repeats_; ++i) pieces.push_back(rows_of(entry, part * key_rows_, key_rows_));
  }
  pieces.push_back(rows_of(entry, 2 * key_rows_, entry.shape[0] - 2 * key_rows_));
  return pieces;
}

std::vector<Tensor> GgufTensors::paired(const TensorEntry& entry, int64_t heads) const {
  if (entry.shape.rank() > 2 || entry.shape[0] != heads * head_dim_ || head_dim_ % 2 != 0) {
    refuse(entry, fmt::format("expected {} heads of {} rows", heads, head_dim_));
  }
  std::vector<Tensor> pieces;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t half = 0; half < 2; ++half) pieces.push_back(rows_of(entry, h * head_dim_ + half, head_dim_ / 2, 2));
  }
  return pieces;
}

std::vector<Tensor> GgufTensors::grouped(const TensorEntry& entry) const {
  const int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_, group = heads_ / kv_heads_ * head_dim_;
  if (entry.shape.rank() > 2 || entry.shape[0] != q + 2 * kv || heads_ % kv_heads_ != 0) {
    refuse(entry, fmt::format("expected {} rows", q + 2 * kv));
  }
  std::vector<Tensor> pieces;
  for (int64_t h = 0; h < kv_heads_; ++h) {
    pieces.push_back(rows_of(entry, h * group, group));
    pieces.push_back(rows_of(entry, q + h * head_dim_, head_dim_));
    pieces.push_back(rows_of(entry, q + kv + h * head_dim_, head_dim_));
  }
  return pieces;
}

}  // namespace sluice
