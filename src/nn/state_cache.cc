// One row of the buffer is a slot, so that copying a slot is one copy.
#include "nn/state_cache.h"

#include <cstring>

namespace sluice {
namespace {

constexpr int64_t kAlign = 16;  // values: a layer begins on a cache line

int64_t align(int64_t values) { return (values + kAlign - 1) / kAlign * kAlign; }

}  // namespace

size_t StateCache::bytes_per_slot(const std::vector<int64_t>& layers) {
  int64_t values = 0;
  for (const int64_t n : layers) values += align(n);
  return static_cast<size_t>(values) * sizeof(float);
}

StateCache::StateCache(const std::vector<int64_t>& layers, int slots)
    : slots_(slots), slot_bytes_(bytes_per_slot(layers)), memory_(slot_bytes_ * static_cast<size_t>(slots)) {
  const auto stride = static_cast<int64_t>(slot_bytes_ / sizeof(float));
  int64_t at = 0;
  for (const int64_t n : layers) {
    Tensor layer(memory_.data() + at * sizeof(float), &kFloat32, {slots, n});
    layer.row_stride = stride;
    layers_.push_back(layer);
    at += align(n);
  }
}

void StateCache::copy_slot(int from, int to) {
  CHECK(from >= 0 && from < slots_ && to >= 0 && to < slots_, "copy slot {} to {} of {}", from, to, slots_);
  if (from != to) std::memcpy(memory_.data() + to * slot_bytes_, memory_.data() + from * slot_bytes_, slot_bytes_);
}

}  // namespace sluice
