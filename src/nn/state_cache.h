// Memory of recurrent layers: for every slot a fixed number of fp32 values per layer, whatever the sequence's length
// (the state of a Mamba scan, the last inputs of a convolution). Which slot belongs to whom is decided elsewhere
// (cache/state_pool.h); this is only where the values lie.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace sluice {

class StateCache {
 public:
  // `layers`: values per sequence of each recurrent layer.
  StateCache(const std::vector<int64_t>& layers, int slots);

  static size_t bytes_per_slot(const std::vector<int64_t>& layers);

  const Tensor& layer(int i) const { return layers_[i]; }  // [slots, values] fp32, rows strided
  int slots() const { return slots_; }
  void copy_slot(int from, int to);  // all layers

 private:
  int slots_;
  size_t slot_bytes_;
  Buffer memory_;
  std::vector<Tensor> layers_;
};

}  // namespace sluice
