// Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router sends every row to its top k of many MLPs. The
// rows of one expert are gathered, run as one matrix product and added back; experts run in ascending order, so that a
// row's sum does not depend on the other rows of the batch.
#pragma once

#include <string>
#include <vector>

#include "nn/mlp.h"

namespace sluice {

// How the experts' matrices lie in the checkpoint.
enum class ExpertLayout {
  kSeparate,  // experts.N.gate.weight, experts.N.up.weight [inner, hidden], experts.N.down.weight [hidden, inner]
  kStacked,   // gate.weight [experts, 2 * inner, hidden], gate rows first; down.weight [experts, hidden, inner]
  kFlat,      // gate, up, down [experts * inner, hidden], the last one transposed
};

struct MoeSpec {
  int experts = 0;
  int top_k = 0;
  int inner = 0;  // width of an expert
  ops::Activation activation = ops::Activation::kSilu;
  // Scores are a softmax over all experts, or sigmoids. The k of highest score + correction are chosen, their scores
  // (without the correction) are the weights.
  bool sigmoid = false;
  std::string correction{};  // tensor of the corrections; empty: none
  Shape correction_shape{};
  int groups = 1;             // choose only in the `top_groups` groups whose two best experts sum highest
  int top_groups = 1;         // (DeepSeek-V3: arXiv:2412.19437)
  bool normalize = false;     // weights are divided by their sum,
  float smallest_sum = 0.0f;  // or by this if that is more
  float scale = 1.0f;         // of the weights
  int shared_inner = 0;       // > 0: an expert for all rows
  bool shared_gate = false;   // which a sigmoid scales (tensor "shared_expert_gate")

  ExpertLayout layout = ExpertLayout::kSeparate;
  std::string router = "gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string shared = "shared_experts";
};

class Moe {
 public:
  Moe() = default;
  Moe(const Weights& w, const MoeSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;  // out = or += moe(x)
  static int64_t floats_per_token(const MoeSpec& spec, int hidden);                         // of the arena

 private:
  struct Rows {  // of one expert
    std::vector<int32_t> rows;
    std::vector<float> weights;
  };
  std::vector<Rows> route(const Tensor& logits) const;
  void run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;

  MoeSpec spec_;
  Linear router_, shared_gate_;
  std::vector<float> correction_;
  std::vector<Linear> in_, out_;  // per expert
  Mlp shared_;
};

}  // namespace sluice
