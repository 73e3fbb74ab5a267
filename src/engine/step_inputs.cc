// Two staging buffers, one copy.
#include "engine/step_inputs.h"

#include <algorithm>

#include "ops/draw.h"

namespace sluice {
namespace {

constexpr size_t kLine = 32;  // indices: lists begin on lines of 128 bytes
constexpr size_t kLists = 10;

size_t whole_lines(size_t count) { return (count + kLine - 1) / kLine * kLine; }

size_t most_indices(const LoadPlan& plan) {
  const auto tokens = static_cast<size_t>(plan.step_tokens), sequences = static_cast<size_t>(plan.max_num_seqs);
  const auto rows = std::max(tokens, static_cast<size_t>(plan.logit_rows));
  const auto blocks = static_cast<size_t>((plan.max_model_len + plan.block_size - 1) / plan.block_size);
  const size_t groups = plan.kv.groups.size();
  return (4 + groups) * tokens + rows + sequences * (3 + blocks * groups) + 1 + kLists * kLine;
}

}  // namespace

StepInputs::StepInputs(const LoadPlan& plan) : memory_(plan.backend->memory()) {
  if (memory_.on_host()) return;
  const size_t bytes = most_indices(plan) * sizeof(int32_t);
  for (Staging& staging : staging_) {
    staging = {.indices = Buffer(bytes, plan.backend->staging_memory()), .copied = memory_.mark()};
  }
  device_ = Buffer(bytes, memory_);
}

BatchView StepInputs::place(ops::Ctx& context, const Batch& batch, const Tensor& drawn) {
  BatchView view(batch);
  CHECK(batch.from_draw.empty() || drawn.data != nullptr, "tokens of a step that nobody drew");
  if (memory_.on_host()) return view;
  Staging& staging = staging_[turn_++ % staging_.size()];
  memory_.wait_for(staging.copied);
  auto* host = reinterpret_cast<int32_t*>(staging.indices.data());
  const auto* device = reinterpret_cast<const int32_t*>(device_.data());
  ops::Indices from_draw = batch.from_draw;
  size_t at = 0;
  for (ops::Indices* list : {&view.tokens, &view.positions, &view.types, &view.slots, &view.query_start, &view.kv_len,
                             &view.sample_rows, &view.state_slots, &view.block_table, &from_draw}) {
    CHECK((at + list->size()) * sizeof(int32_t) <= device_.size(), "{} indices in {} bytes", at + list->size(),
          device_.size());
    std::ranges::copy(*list, host + at);
    *list = ops::Indices({host + at, list->size()}, device + at);
    at = whole_lines(at + list->size());
  }
  memory_.copy_later(device_.data(), host, at * sizeof(int32_t));
  staging.copied = memory_.mark();
  if (!from_draw.empty()) {
    const Tensor tokens(device_.data(), &kInt32, {batch.size()});  // the first of the lists
    ops::take_drawn(context, {.tokens = tokens, .drawn = drawn, .from = from_draw});
  }
  return view;
}

}  // namespace sluice
