// Divides layers between stages by dynamic programming.
#include "nn/loading/stage.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/communicator.h"
#include "sluice/error.h"

namespace sluice {

OtherStage::OtherStage(LoadContext& context, bool elsewhere) : context_(elsewhere ? &context : nullptr) {
  if (context_ == nullptr) return;
  dry_ = context.dry;
  elsewhere_ = context.elsewhere;
  weight_bytes_ = context.weight_bytes;
  mapped_bytes_ = context.mapped_bytes;
  packed_sizes_ = context.packed_sizes.size();
  packed_layout_ = context.packed_layout.size();
  context.dry = context.elsewhere = true;
}

OtherStage::~OtherStage() {
  if (context_ == nullptr) return;
  context_->dry = dry_;
  context_->elsewhere = elsewhere_;
  context_->weight_bytes = weight_bytes_;
  context_->mapped_bytes = mapped_bytes_;
  context_->packed_sizes.resize(packed_sizes_);
  context_->packed_layout.resize(packed_layout_);
}

LoadContext counting_copy(const LoadContext& context) {
  LoadContext copy = context;
  copy.dry = copy.elsewhere = true;
  copy.ranks = {};
  copy.progress = nullptr;
  copy.lora = nullptr;
  return copy;
}

std::vector<int> divide_layers(std::span<const int64_t> costs, int64_t last_cost, const std::vector<bool>& cuts,
                               int stages) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const int layers = static_cast<int>(costs.size());
  std::vector<int64_t> sums(costs.size() + 1, 0);
  for (int i = 0; i < layers; ++i) sums[i + 1] = sums[i] + costs[i];
  // best[s][i]: the cost of the most expensive stage if the layers from i on are divided into s stages.
  std::vector<std::vector<int64_t>> best(stages + 1, std::vector<int64_t>(layers + 1, kNever));
  std::vector<std::vector<int>> next(stages + 1, std::vector<int>(layers + 1, layers));
  for (int i = 0; i < layers; ++i) best[1][i] = sums[layers] - sums[i] + last_cost;
  for (int s = 2; s <= stages; ++s) {
    for (int i = 0; i < layers; ++i) {
      for (int j = i + 1; j < layers; ++j) {
        if (!cuts[j] || best[s - 1][j] == kNever) continue;
        const int64_t most = std::max(sums[j] - sums[i], best[s - 1][j]);
        if (most < best[s][i]) best[s][i] = most, next[s][i] = j;
      }
    }
  }
  if (layers == 0 || best[stages][0] == kNever) return {};
  std::vector<int> bounds{0};
  for (int s = stages; s > 1; --s) bounds.push_back(next[s][bounds.back()]);
  bounds.push_back(layers);
  return bounds;
}

PipelineStage::PipelineStage(const LoadContext& context, StagedLayers layers)
    : stage_(context.stage), ranks_(context.ranks.size), stage_of_(layers.costs.size(), 0) {
  std::vector<int64_t>& costs = layers.costs;
  std::vector<bool>& cuts = layers.cuts;
  size_t own = costs.size();  // layers with weights of their own
  for (size_t i = 0; i < layers.weights_of.size(); ++i) {
    const auto owner = static_cast<size_t>(layers.weights_of[i]);
    if (owner == i) continue;
    costs[owner] += std::exchange(costs[i], 0);
    cuts[i] = false;
    --own;
  }
  if (stage_.many()) {
    const std::vector<int> bounds = divide_layers(costs, layers.last_cost, cuts, stage_.size);
    if (bounds.empty()) {
      const auto most = 1 + std::count(cuts.begin() + 1, cuts.end(), true);
      throw Error(ErrorCode::kUnsupportedModel,
                  fmt::format("--pipeline-parallel-size {}: the {} layers of this model can be divided into at most {} "
                              "stages",
                              stage_.size, own, most));
    }
    for (int i = 0; i < static_cast<int>(costs.size()); ++i) {
      const int owner = layers.weights_of.empty() ? i : layers.weights_of[i];
      stage_of_[i] = static_cast<int>(std::ranges::upper_bound(bounds, owner) - bounds.begin()) - 1;
    }
  }
  plan_passes();
}

// Follows the stream from the embedding through all layers to the head. It goes from stage to stage, and from the last
// one to the first, so that every rank sends to one other rank only.
void PipelineStage::plan_passes() {
  const int layers = static_cast<int>(stage_of_.size());
  int at = 0;
  Pass pass{.first = true};
  const auto go_to = [&](int stage, int layer) {
    while (at != stage) {
      if (at == stage_.rank) pass.end = layer, passes_.push_back(pass);
      at = (at + 1) % stage_.size;
      if (at == stage_.rank) pass = {.begin = layer};
    }
  };
  for (int i = 0; i < layers; ++i) go_to(stage_of_[i], i);
  go_to(stage_.size - 1, layers);
  if (!last()) return;
  pass.end = layers, pass.last = true;
  passes_.push_back(pass);
}

int PipelineStage::rank_beside(const ops::Ctx& c, int stages) const {
  const int ranks = stage_.size * ranks_;
  return (c.pipeline->rank() + stages * ranks_ + ranks) % ranks;
}

void PipelineStage::receive(ops::Ctx& c, std::span<const Tensor> tensors) const {
  for (const Tensor& tensor : tensors) ops::receive(c, rank_beside(c, -1), tensor);
}

void PipelineStage::send(ops::Ctx& c, std::span<const Tensor> tensors) const {
  for (const Tensor& tensor : tensors) ops::send(c, rank_beside(c, 1), tensor);
}

}  // namespace sluice
