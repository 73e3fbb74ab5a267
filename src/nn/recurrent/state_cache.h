// Memory of recurrent layers. Every slot has a fixed number of fp32 values per layer, whatever the sequence's length
// (the state of a Mamba scan, the last inputs of a convolution). cache/state_pool.h decides which sequence owns a slot;
// this class only says where its values are.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace sluice {

class StateCache {
 public:
  // `layers`: for each recurrent layer, values per sequence; 0 if another stage of the pipeline computes it.
  StateCache(const std::vector<int64_t>& layers, int slots, Memory& memory = host_memory());

  static size_t bytes_per_slot(const std::vector<int64_t>& layers);

  const Tensor& layer(int i) const { return layers_[i]; }    // [slots, values] fp32, rows strided
  void copy_slots(ops::Ctx& c, const Indices& pairs) const;  // copies the slots of all layers; see ops::copy_rows

 private:
  Buffer memory_;
  Tensor all_;  // [slots, values of all layers]
  std::vector<Tensor> layers_;
};

}  // namespace sluice
