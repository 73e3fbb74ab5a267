// One staging buffer, one copy.
#include "engine/step_inputs.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr size_t kLine = 32;  // indices: lists begin on lines of 128 bytes
constexpr size_t kLists = 9;

size_t whole_lines(size_t count) { return (count + kLine - 1) / kLine * kLine; }

size_t most_indices(const LoadPlan& plan) {
  const auto tokens = static_cast<size_t>(plan.step_tokens), sequences = static_cast<size_t>(plan.max_num_seqs);
  const auto rows = std::max(tokens, static_cast<size_t>(plan.logit_rows));
  const auto blocks = static_cast<size_t>((plan.max_model_len + plan.block_size - 1) / plan.block_size);
  const size_t groups = plan.kv.groups.size();
  return (3 + groups) * tokens + rows + sequences * (3 + blocks * groups) + 1 + kLists * kLine;
}

}  // namespace

StepInputs::StepInputs(const LoadPlan& plan) : memory_(plan.backend->memory()) {
  if (memory_.on_host()) return;
  const size_t bytes = most_indices(plan) * sizeof(int32_t);
  staging_ = Buffer(bytes, plan.backend->staging_memory());
  device_ = Buffer(bytes, memory_);
}

BatchView StepInputs::place(const Batch& batch) {
  BatchView view(batch);
  if (memory_.on_host()) return view;
  memory_.wait();  // the last copy may still be reading
  auto* host = reinterpret_cast<int32_t*>(staging_.data());
  const auto* device = reinterpret_cast<const int32_t*>(device_.data());
  size_t at = 0;
  for (ops::Indices* list : {&view.tokens, &view.positions, &view.types, &view.slots, &view.query_start, &view.kv_len,
                             &view.sample_rows, &view.state_slots, &view.block_table}) {
    CHECK((at + list->size()) * sizeof(int32_t) <= staging_.size(), "{} indices in {} bytes", at + list->size(),
          staging_.size());
    std::ranges::copy(*list, host + at);
    *list = ops::Indices({host + at, list->size()}, device + at);
    at = whole_lines(at + list->size());
  }
  memory_.copy_later(device_.data(), staging_.data(), at * sizeof(int32_t));
  return view;
}

}  // namespace sluice
