// The lists of all layers lie side by side, and so do the counters. A reading is therefore one copy.
#include "nn/moe/expert_tables.h"

#include <algorithm>

#include "base/check.h"
#include "nn/moe/balancer.h"

namespace sluice {
namespace {

size_t choices_of(const PlacedExperts& layer) { return static_cast<size_t>(layer.spec.choices()); }

// Where the list of physical experts begins for each choice, then the list.
size_t list_elements(const PlacedExperts& layer) {
  return choices_of(layer) + 1 + static_cast<size_t>(layer.physical() + layer.spec.identities);
}

}  // namespace

size_t ExpertTables::bytes(const PlacedExperts& layer) {
  return list_elements(layer) * sizeof(int32_t) + choices_of(layer) * sizeof(int64_t);
}

ExpertTables::ExpertTables(ops::Queue& queue, std::span<const std::shared_ptr<PlacedExperts>> layers)
    : queue_(queue), layers_(layers.begin(), layers.end()) {
  size_t elements = 0;
  for (const auto& layer : layers_) {
    at_.push_back(elements);
    elements += list_elements(*layer), counters_ += choices_of(*layer);
  }
  at_.push_back(elements);
  Memory &memory = queue.device().memory(), &pinned = queue.device().pinned_memory();
  lists_ = Buffer(elements * sizeof(int32_t), memory), counts_ = Buffer(counters_ * sizeof(int64_t), memory);
  pinned_lists_ = Buffer(elements * sizeof(int32_t), pinned);
  for (Reading& reading : readings_) reading.memory = Buffer(counters_ * sizeof(int64_t), pinned);
  auto* counts = reinterpret_cast<int64_t*>(counts_.data());
  for (size_t i = 0; i < layers_.size(); ++i) {
    PlacedExperts& layer = *layers_[i];
    layer.first = reinterpret_cast<const int32_t*>(lists_.data()) + at_[i];
    layer.list = layer.first + choices_of(layer) + 1;
    layer.counts = counts;
    counts += choices_of(layer);
    write_lists(i);
  }
  queue_.copy_async(lists_.data(), pinned_lists_.data(), lists_.size());
  queue_.wait();
}

void ExpertTables::write_lists(size_t i) {
  const PlacedExperts& layer = *layers_[i];
  auto* first = reinterpret_cast<int32_t*>(pinned_lists_.data()) + at_[i];
  int32_t *const list = first + choices_of(layer) + 1, *end = list;
  *first++ = 0;
  for (int32_t e = 0; e < layer.spec.experts; ++e) {
    for (int32_t p = 0; p < layer.physical(); ++p) {
      if (layer.placement.experts[static_cast<size_t>(p)] == e) *end++ = p;
    }
    *first++ = static_cast<int32_t>(end - list);
  }
  for (int32_t i = 0; i < layer.spec.identities; ++i) {
    *end++ = layer.physical() + i;
    *first++ = static_cast<int32_t>(end - list);
  }
}

void ExpertTables::place(size_t layer) {
  write_lists(layer);
  const size_t begin = at_[layer] * sizeof(int32_t), end = at_[layer + 1] * sizeof(int32_t);
  queue_.copy_async(lists_.data() + begin, pinned_lists_.data() + begin, end - begin);
  queue_.wait();
}

uint64_t ExpertTables::begin() {
  Reading& reading = readings_[begun_ % kReadings];
  queue_.copy_async(reading.memory.data(), counts_.data(), counts_.size());
  reading.event = queue_.record_event();
  return begun_++;
}

ExpertCounts ExpertTables::finish(uint64_t number) {
  CHECK(number < begun_ && number + kReadings >= begun_, "reading {} of {}", number, begun_);
  const Reading& reading = readings_[number % kReadings];
  queue_.wait_for(reading.event);
  ExpertCounts counts;
  const auto* from = reinterpret_cast<const int64_t*>(reading.memory.data());
  for (const auto& layer : layers_) {
    counts.emplace_back(from, from + choices_of(*layer));
    from += choices_of(*layer);
  }
  return counts;
}

}  // namespace sluice
