// Sums stay on the device until the last step of a text; the host divides them.
#include "engine/hidden_pooler.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {
namespace {

constexpr RequestId kNobody = 0;

bool runs(RequestId id, const HiddenPooler::Requests& requests) {
  const auto found = requests.find(id);
  return found != requests.end() && found->second->choices[0]->state == SequenceState::kRunning;
}

}  // namespace

HiddenPooler::HiddenPooler(ops::Device& device, HiddenPooling pooling, int sequences, int width)
    : pooling_(pooling), width_(width) {
  for (Step& step : steps_) {
    step.values = Buffer(static_cast<size_t>(sequences) * row_bytes(), device.pinned_memory());
  }
  if (pooling == HiddenPooling::kLast) return;
  sum_memory_ = Buffer(bytes(pooling, sequences, width), device.memory());
  sums_ = Tensor(sum_memory_.data(), &kFloat64, {sequences, width});
  owners_.assign(static_cast<size_t>(sequences), kNobody);
}

size_t HiddenPooler::bytes(HiddenPooling pooling, int sequences, int width) {
  return pooling == HiddenPooling::kMean ? static_cast<size_t>(sequences) * static_cast<size_t>(width) * sizeof(double)
                                         : 0;
}

size_t HiddenPooler::row_bytes() const {
  return static_cast<size_t>(width_) * (pooling_ == HiddenPooling::kMean ? sizeof(double) : sizeof(float));
}

void HiddenPooler::begin(ops::Ctx& c, const ScheduledBatch& step, const Tensor& hidden, const Requests& requests) {
  Step& own = steps_[begun_++ % steps_.size()];
  own.vectors.clear();
  if (!step.batch.wants_hidden) return;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const ScheduledBatch::Part& part = step.parts[i];
    if (!part.sequence->request->request.pooling) continue;
    Tensor source = hidden.slice_rows(step.batch.query_start[i], part.tokens);
    if (pooling_ == HiddenPooling::kMean) {
      const int slot = slot_of(part.sequence->id, requests);
      add_up(c, part, source, slot);
      source = sums_.slice_rows(slot, 1);
      if (part.outputs == Outputs::kVector) owners_[static_cast<size_t>(slot)] = kNobody;
    } else {
      source = source.slice_rows(part.tokens - 1, 1);
    }
    if (part.outputs != Outputs::kVector) continue;
    c.queue.copy_async(own.values.data() + own.vectors.size() * row_bytes(), source.data, row_bytes());
    own.vectors.push_back({.part = i, .tokens = part.first + part.tokens});
  }
  own.copied = c.queue.record_event();
}

// The row of a sequence's sums. One that does not run any longer leaves its row to others, because it would begin anew.
int HiddenPooler::slot_of(RequestId id, const Requests& requests) {
  auto found = std::ranges::find(owners_, id);
  if (found == owners_.end()) found = std::ranges::find(owners_, kNobody);
  if (found == owners_.end()) {
    found = std::ranges::find_if(owners_, [&](RequestId owner) { return !runs(owner, requests); });
  }
  CHECK(found != owners_.end(), "more texts run than the {} that there are sums for", owners_.size());
  *found = id;
  return static_cast<int>(found - owners_.begin());
}

void HiddenPooler::add_up(ops::Ctx& c, const ScheduledBatch::Part& part, const Tensor& rows, int slot) {
  const std::array<int32_t, 2> starts = {0, part.tokens};
  const std::array<int32_t, 1> computed = {part.first + part.tokens}, slots = {slot};
  ops::sum_rows(c,
                {.sums = sums_, .x = rows, .sequences = {.query_start = starts, .kv_len = computed, .slots = slots}});
}

void HiddenPooler::finish(ops::Ctx& c, std::span<StepResult> results) {
  CHECK(finished_ < begun_, "no step to finish");
  const Step& own = steps_[finished_++ % steps_.size()];
  if (own.vectors.empty()) return;
  c.queue.wait_for(own.copied);
  const std::byte* row = own.values.data();
  for (const Vector& vector : own.vectors) {
    std::vector<float>& values = results[vector.part].vector;
    if (pooling_ == HiddenPooling::kLast) {
      const auto* from = reinterpret_cast<const float*>(row);
      values.assign(from, from + width_);
    } else {
      const std::span sums(reinterpret_cast<const double*>(row), static_cast<size_t>(width_));
      for (const double sum : sums) values.push_back(static_cast<float>(sum / vector.tokens));
    }
    row += row_bytes();
  }
}

}  // namespace sluice
