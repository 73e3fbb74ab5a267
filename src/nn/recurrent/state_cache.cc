// State memory. Each row of the buffer is one slot, so copying a slot is one copy.
#include "nn/recurrent/state_cache.h"

namespace sluice {
namespace {

constexpr int64_t kStateAlign = 16;  // in values: each layer begins on a cache line

int64_t align_state(int64_t values) { return (values + kStateAlign - 1) / kStateAlign * kStateAlign; }

}  // namespace

size_t StateCache::bytes_per_slot(const std::vector<int64_t>& layers) {
  int64_t values = 0;
  for (const int64_t n : layers) values += align_state(n);
  return static_cast<size_t>(values) * sizeof(float);
}

StateCache::StateCache(const std::vector<int64_t>& layers, int slots, Memory& memory)
    : memory_(bytes_per_slot(layers) * static_cast<size_t>(slots), memory) {
  const auto stride = static_cast<int64_t>(bytes_per_slot(layers) / sizeof(float));
  all_ = Tensor(memory_.data(), &kFloat32, {slots, stride});
  int64_t at = 0;
  for (const int64_t n : layers) {
    layers_.push_back(all_.slice_columns(at, n));
    at += align_state(n);
  }
}

void StateCache::copy_slots(ops::Ctx& c, const Indices& pairs) const {
  if (all_.row_stride > 0) ops::copy_rows(c, all_, all_, pairs);
}

}  // namespace sluice
