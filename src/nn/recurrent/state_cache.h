// Memory of recurrent layers: for every slot a fixed number of fp32 values per layer, whatever the sequence's length
// (the state of a Mamba scan, the last inputs of a convolution). Which slot belongs to whom is decided elsewhere
// (cache/state_pool.h); this is only where the values lie.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace sluice {

class StateCache {
 public:
  // `layers`: values per sequence of each recurrent layer.
  StateCache(const std::vector<int64_t>& layers, int slots, Memory& memory = host_memory());

  static size_t bytes_per_slot(const std::vector<int64_t>& layers);

  const Tensor& layer(int i) const { return layers_[i]; }    // [slots, values] fp32, rows strided
  void copy_slots(ops::Ctx& c, const Indices& pairs) const;  // of all layers, see ops::copy_rows

 private:
  Buffer memory_;
  Tensor all_;  // [slots, values of all layers]
  std::vector<Tensor> layers_;
};

}  // namespace sluice
