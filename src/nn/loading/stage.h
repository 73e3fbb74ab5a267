// Pipeline parallelism: the layers of a model are divided between stages, runs of consecutive layers (Huang et al.
// 2018, arXiv:1811.06965). A stage gets the residual stream from the stage before it and sends it to the next one. The
// first stage has the embedding, the last one the head. A stage is one rank, or the ranks that divide its layers
// between them (nn/loading/split.h).
//
// Layers with the same weights belong to one stage. Where a model runs its layers several times (Ouro), the last stage
// therefore sends the stream back to the first one, and a stage has several passes in a step.
//
// All stages construct the whole model, so that every family's code plans the same caches and reports the same
// problems. They construct the layers of other stages inside of an OtherStage, which reads no weights and counts no
// memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/loading/weights.h"

namespace sluice {

// While it lives, constructors only check the names and shapes of tensors and mark them as used. Objects that layers
// share must not be shared between layers inside and outside of it (LoadContext::elsewhere). Does nothing unless
// `elsewhere`.
class OtherStage {
 public:
  OtherStage(LoadContext& context, bool elsewhere);
  ~OtherStage();
  OtherStage(const OtherStage&) = delete;
  OtherStage& operator=(const OtherStage&) = delete;

 private:
  LoadContext* context_;  // null: does nothing
  bool dry_ = false, elsewhere_ = false;
  size_t weight_bytes_ = 0, mapped_bytes_ = 0, packed_sizes_ = 0, packed_layout_ = 0;
};

// A copy in which constructors only count the bytes of weights, those of all ranks of a stage together, so that every
// process counts the same. What they record in it does not reach the original.
LoadContext counting_copy(const LoadContext& context);

// Divides layers between stages so that the most expensive stage is as cheap as possible. `costs`: per layer.
// `last_cost`: what the last stage has besides. `cuts[i]`: whether a stage may begin with layer i. Returns the first
// layer of every stage, and the number of layers; empty if there are too few places to cut.
std::vector<int> divide_layers(std::span<const int64_t> costs, int64_t last_cost, const std::vector<bool>& cuts,
                               int stages);

// What the stages divide.
struct StagedLayers {
  std::vector<int64_t> costs;     // of each layer
  int64_t last_cost = 0;          // of what the last stage has besides
  std::vector<bool> cuts;         // see divide_layers
  std::vector<int> weights_of{};  // whose weights each layer uses: an earlier layer's or its own; empty: all their own
};

// The layers of this process's stage, and its connection to its neighbours.
class PipelineStage {
 public:
  // Consecutive layers that the stage computes before it sends the stream on; none if it only hands the stream on.
  struct Pass {
    int begin = 0, end = 0;
    bool first = false;  // begins with the embedding
    bool last = false;   // ends with the head
  };

  PipelineStage() = default;
  // Throws Error(kUnsupportedModel) if the layers cannot be divided into that many stages; see divide_layers.
  PipelineStage(const LoadContext& context, StagedLayers layers);
  bool holds(int layer) const { return stage_of_[layer] == stage_.rank; }
  bool first() const { return stage_.rank == 0; }
  bool last() const { return stage_.rank == stage_.size - 1; }
  const std::vector<Pass>& passes() const { return passes_; }

  // Exchange a step's tensors with the stage before this one or after it. The stages are a ring.
  void receive(ops::Ctx& c, std::span<const Tensor> tensors) const;
  void send(ops::Ctx& c, std::span<const Tensor> tensors) const;

 private:
  void plan_passes();
  int rank_beside(const ops::Ctx& c, int stages) const;

  Ranks stage_{};
  int ranks_ = 1;              // of each stage
  std::vector<int> stage_of_;  // each layer's
  std::vector<Pass> passes_;
};

}  // namespace sluice
