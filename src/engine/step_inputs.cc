// Two pinned buffers, and one copy per step.
#include "engine/step_inputs.h"

#include <algorithm>

#include "engine/key_parts.h"
#include "ops/sample.h"

namespace sluice {
namespace {

constexpr size_t kLine = 32;  // indices per cache line of 128 bytes; each list starts on a line
constexpr size_t kLists = 12;

size_t whole_lines(size_t count) { return (count + kLine - 1) / kLine * kLine; }

size_t most_indices(const LoadPlan& plan) {
  const auto tokens = static_cast<size_t>(plan.step_tokens), sequences = static_cast<size_t>(plan.max_num_seqs);
  const auto rows = std::max(tokens, static_cast<size_t>(plan.logit_rows));
  const auto blocks = static_cast<size_t>((plan.max_model_len + plan.block_size - 1) / plan.block_size);
  const size_t groups = plan.kv.groups.size();
  return (5 + groups) * tokens + 2 * rows + sequences * (3 + blocks * groups) + 1 + kLists * kLine;
}

}  // namespace

StepInputs::StepInputs(const LoadPlan& plan)
    : queue_(*plan.queue), share_(plan.kv.share), ranks_(plan.communicator.get()) {
  if (plan.device->memory().host_accessible()) return;
  const size_t bytes = most_indices(plan) * sizeof(int32_t);
  for (Pinned& staging : staging_) {
    staging = {.indices = Buffer(bytes, plan.device->pinned_memory()), .copied = queue_.record_event()};
  }
  device_ = Buffer(bytes, plan.device->memory());
  const auto width = static_cast<size_t>(plan.prompt_vector_width);
  if (width == 0) return;
  for (PinnedRows& rows : rows_) {
    rows.values = Buffer(static_cast<size_t>(plan.step_tokens) * width * sizeof(float), plan.device->pinned_memory());
  }
}

void StepInputs::begin() {
  ++turn_, used_ = 0;
  queue_.wait_for(staging_[turn_ % staging_.size()].copied);
}

StepInputs::List StepInputs::add(size_t count) {
  const size_t at = used_;
  used_ = whole_lines(at + count);
  CHECK((at + count) * sizeof(int32_t) <= device_.size(), "{} indices in {} bytes", at + count, device_.size());
  auto* host = reinterpret_cast<int32_t*>(staging_[turn_ % staging_.size()].indices.data());
  return {.host = {host + at, count}, .device = reinterpret_cast<const int32_t*>(device_.data()) + at};
}

void StepInputs::send() {
  Pinned& staging = staging_[turn_ % staging_.size()];
  queue_.copy_async(device_.data(), staging.indices.data(), used_ * sizeof(int32_t));
  staging.copied = queue_.record_event();
}

void StepInputs::feed_sampled(ops::Ctx& context, const Indices& tokens, const Indices& from_sample,
                              const Tensor& sampled) {
  if (from_sample.empty()) return;
  std::byte* at = device_.data() + (reinterpret_cast<const std::byte*>(tokens.device) - device_.data());
  const Tensor placed(at, &kInt32, {static_cast<int64_t>(tokens.size())});
  if (ranks_ == nullptr || ranks_->rank() == 0) {
    CHECK(sampled.data != nullptr, "tokens of the previous step were not sampled on the device");
    ops::feed_sampled(context, {.tokens = placed, .sampled = sampled, .from = from_sample});
  }
  if (ranks_ != nullptr) ops::broadcast(context, placed);
}

// When a step is placed, the one before it was launched. The event recorded then is therefore behind all that reads the
// values of that step.
std::span<const GivenRows> StepInputs::place_given(std::span<const GivenRows> given) {
  rows_[rows_turn_ % rows_.size()].read = queue_.record_event();
  PinnedRows& rows = rows_[++rows_turn_ % rows_.size()];
  queue_.wait_for(rows.read);
  given_.assign(given.begin(), given.end());
  auto* to = reinterpret_cast<float*>(rows.values.data());
  const float* end = to + rows.values.size() / sizeof(float);
  for (GivenRows& part : given_) {
    CHECK(part.values.size() <= static_cast<size_t>(end - to), "{} values of vectors do not fit", part.values.size());
    std::ranges::copy(part.values, to);
    part.values = {to, part.values.size()};
    part.owner = nullptr;
    to += part.values.size();
  }
  return given_;
}

BatchView StepInputs::place(ops::Ctx& context, const Batch& batch, const Tensor& sampled) {
  BatchView view(batch);
  if (!share_.whole()) {
    own_slots_ = batch.slots;
    to_own_slots(share_, own_slots_);
    view.slots = own_slots_;
  }
  if (device_.size() == 0) {
    CHECK(batch.from_sample.empty(), "tokens of the previous step were not sampled on the device");
    return view;
  }
  begin();
  Indices from_sample = batch.from_sample;
  for (Indices* list :
       {&view.tokens, &view.positions, &view.types, &view.slots, &view.query_start, &view.kv_len, &view.sample_rows,
        &view.state_slots, &view.block_table, &view.adapters, &view.sample_adapters, &from_sample}) {
    const List placed = add(list->size());
    std::ranges::copy(*list, placed.host.begin());
    *list = placed;
  }
  send();
  if (!batch.given.empty()) view.given = place_given(batch.given);
  feed_sampled(context, view.tokens, from_sample, sampled);
  return view;
}

}  // namespace sluice
