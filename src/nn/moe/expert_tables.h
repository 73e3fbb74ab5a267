// What a device has of the experts that a balancer places. For each layer it has the lists of ops::choose_physical, and
// counters of the tokens that chose each expert. They never move, so captured graphs stay valid when experts do.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nn/moe/placement.h"
#include "ops/device.h"
#include "tensor/tensor.h"

namespace sluice {

struct PlacedExperts;

// The tokens that chose each expert since the start, layer after layer.
using ExpertCounts = std::vector<std::vector<int64_t>>;

class ExpertTables {
 public:
  static constexpr int kReadings = 3;  // that may be under way at a time

  // Tells the layers where their tables are. Copies are made on the queue, which must live as long as this.
  ExpertTables(ops::Queue& queue, std::span<const std::shared_ptr<PlacedExperts>> layers);

  // Replaces the lists of a layer by those of its placement. The copy is done when this returns.
  void place(size_t layer);
  // Begins to copy the counters as they are after all steps so far. The reading ends when finish() returns it.
  uint64_t begin();
  ExpertCounts finish(uint64_t reading);

  static size_t bytes(const PlacedExperts& layer);  // of device memory

 private:
  struct Reading {
    Buffer memory{};  // pinned
    uint64_t event = 0;
  };
  void write_lists(size_t layer);  // into pinned memory

  ops::Queue& queue_;
  const std::vector<std::shared_ptr<PlacedExperts>> layers_;
  std::vector<size_t> at_{};  // where the lists of each layer begin, in elements; then their end
  size_t counters_ = 0;
  Buffer lists_, pinned_lists_, counts_;
  std::array<Reading, kReadings> readings_{};
  uint64_t begun_ = 0;
};

}  // namespace sluice
