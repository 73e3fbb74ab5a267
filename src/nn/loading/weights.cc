// Looks up a checkpoint's tensors by name and collects problems.
#include "nn/loading/weights.h"

#include <fmt/core.h>

#include "sluice/error.h"

namespace sluice {

DType LoadContext::matrix_type(DType in_checkpoint, int64_t inputs, bool keep) const {
  const bool known = ops.matmul.contains(in_checkpoint);
  if (in_checkpoint->block_size > 1 && known) return in_checkpoint;
  if (quantization != nullptr && !keep && inputs % quantization->block_size == 0) return quantization;
  return keep_types && known ? in_checkpoint : dtype;
}

void LoadContext::add_problem(std::string problem) {
  constexpr size_t kMost = 10'000;
  problems.push_back(std::move(problem));
  if (problems.size() >= kMost) finish([](std::string_view) { return true; });
}

void LoadContext::finish(const std::function<bool(std::string_view)>& ignorable) const {
  std::vector<std::string> all = problems;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    if (entry.shape.elements() > 0 && !used.contains(name) && !(ignorable && ignorable(name))) {
      all.push_back(fmt::format("tensor '{}' {} is not used by this architecture", name, entry.shape.str()));
    }
  }
  if (all.empty()) return;
  constexpr size_t kShown = 10;
  std::string message = fmt::format("{}: the weights do not fit the configuration:", checkpoint.folder);
  for (size_t i = 0; i < all.size() && i < kShown; ++i) message += "\n  " + all[i];
  if (all.size() > kShown) message += fmt::format("\n  and {} more", all.size() - kShown);
  throw Error(ErrorCode::kUnsupportedModel, message);
}

Vector::Vector(const LoadContext& context, std::span<const float> values) : size_(values.size()) {
  if (context.dry || values.empty()) return;
  memory_ = Buffer(values.size_bytes(), context.memory);
  context.memory.copy(memory_.data(), values.data(), values.size_bytes());
}

void Vector::replace(const LoadContext& context, std::span<const float> values) {
  CHECK(values.size() == size_, "{} numbers in place of {}", values.size(), size_);
  context.queue.wait();
  if (size_ > 0) context.memory.copy(memory_.data(), values.data(), values.size_bytes());
}

Weights Weights::operator/(std::string_view name) const {
  return name.empty() ? *this : Weights(*context_, fmt::format("{}{}.", prefix_, name));
}

bool Weights::has(std::string_view name) const {
  return context_->checkpoint.find(fmt::format("{}{}", prefix_, name)) != nullptr;
}

const TensorEntry* Weights::tensor(std::string_view name, const Shape& shape, Stored stored) const {
  const std::string full = fmt::format("{}{}", prefix_, name);
  const TensorEntry* entry = context_->checkpoint.find(full);
  if (entry == nullptr) {
    context_->add_problem(fmt::format("tensor '{}' {} is missing", full, shape.str()));
    return nullptr;
  }
  const bool first = context_->used.insert(full).second;
  if (!(entry->shape == shape)) {
    context_->add_problem(
        fmt::format("tensor '{}' has shape {}, the configuration asks for {}", full, entry->shape.str(), shape.str()));
    return nullptr;
  }
  if (entry->compute && stored == Stored::kWithData) {
    context_->add_problem(fmt::format("tensor '{}' is quantized, which is not supported for it", full));
    return nullptr;
  }
  if (first) {
    context_->parameters += shape.elements();
    context_->done_bytes += entry->bytes;
    if (context_->progress) context_->progress(context_->done_bytes);
  }
  return entry;
}

std::vector<float> Weights::vector(std::string_view name, const Shape& shape) const {
  const TensorEntry* entry = tensor(name, shape);
  context_->weight_bytes += static_cast<size_t>(shape.elements()) * sizeof(float);
  if (entry == nullptr || context_->dry) return {};
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  entry->read(values.data());
  return values;
}

}  // namespace sluice
