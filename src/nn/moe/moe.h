// Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router sends every row to its top k of many MLPs. Rows
// are sorted by expert, multiplied with the matrices of all experts in one op each, and added up in ascending order of
// the experts, so that a row's sum does not depend on the other rows of the batch.
#pragma once

#include <string>
#include <vector>

#include "nn/mlp.h"
#include "nn/stacked_linear.h"

namespace sluice {

// How the experts' matrices lie in the checkpoint.
enum class ExpertLayout {
  kSeparate,  // experts.N.gate.weight, experts.N.up.weight [inner, hidden], experts.N.down.weight [hidden, inner]
  kStacked,   // gate.weight [experts, 2 * inner, hidden], gate rows first; down.weight [experts, hidden, inner]
  kStackedParameters,  // the same as tensors gate and down, not gate.weight and down.weight
  kFlat,               // gate, up, down [experts * inner, hidden], the last one transposed
  kTransposedHalves,   // gate [experts, hidden, 2 * inner], gate columns first; down [experts, inner, hidden]
  kTransposed,         // gate [experts, hidden, 2 * inner], gate and up columns in turn; down [experts, inner, hidden]
};

enum class ExpertBias {
  kNone,
  kEach,  // gate_bias [experts, 2 * inner], in the order of kTransposed, and down_bias [experts, hidden]
  kSum,   // bias [hidden] of the sum; weights must add up to one
};

struct MoeSpec : ops::Routing {
  int experts = 0;
  int inner = 0;      // width of an expert
  bool gated = true;  // as in MlpSpec; without gates only experts in the layout kSeparate are known
  ops::Activation activation = ops::Activation::kSilu;
  float glu_alpha = 0.0f, glu_limit = 0.0f;  // limit > 0: ops::clamped_glu instead
  std::string correction{};                  // tensor of Routing's corrections; empty: none
  Shape correction_shape{};
  bool router_bias = false;
  ExpertBias bias = ExpertBias::kNone;
  bool scaled_inputs = false;  // weights scale what experts are given, not their results (Llama 4)
  int shared_inner = 0;        // > 0: an expert for all rows
  bool shared_bias = false;    // of its projections
  bool shared_gate = false;    // which a sigmoid scales (tensor "shared_expert_gate")

  ExpertLayout layout = ExpertLayout::kSeparate;
  std::string router = "gate";  // empty: logits are given
  std::string expert_scale{};   // tensor [experts] that scales the weights of what is chosen; empty: none
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string shared = "shared_experts";
  std::vector<std::string> shared_in{"gate_proj", "up_proj"};
  std::string shared_out = "down_proj";
};

// What rows choose among experts, and their order by expert.
struct Choice {
  Tensor experts, weights;               // ops::RouteArgs
  Tensor entries, rows, places, starts;  // ops::GroupByExpertArgs

  // From a router's logits; takes the arena's memory.
  Choice(ops::Ctx& c, const Tensor& logits, const ops::Routing& routing, const float* correction = nullptr);
  // Of the arena, per token (`starts` counted as often, though there is one).
  static int64_t floats_per_token(const ops::Routing& routing, int experts);
};

class Moe {
 public:
  Moe() = default;
  Moe(const Weights& w, const MoeSpec& spec, int hidden);
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;  // out = or += moe(x)
  // The same with the router's logits [tokens, experts] from elsewhere.
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, bool accumulate) const;
  static int64_t floats_per_token(const MoeSpec& spec, int hidden);  // of the arena

 private:
  // The rows that each expert is given, by place.
  void scale_inputs(ops::Ctx& c, const Choice& choice, const Tensor& x, const Tensor& inputs) const;
  void scale_weights(ops::Ctx& c, const Choice& choice) const;
  void run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;

  MoeSpec spec_;
  Linear router_, shared_gate_;
  Vector correction_, expert_scale_;
  StackedLinear in_, out_;
  Mlp shared_;
};

}  // namespace sluice
