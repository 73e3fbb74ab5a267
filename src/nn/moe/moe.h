// Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router sends every row to its top k of many MLPs. Rows
// are sorted by expert and multiplied with the matrices of all experts in one op per projection. Results are added in
// ascending order of the experts, so a row's sum does not depend on the other rows of the batch.
// Fields that one or two families set (glu_alpha, glu_limit, clamp, logit_cap, identities, scaled_inputs, expert_scale)
// act between the layer's ops, so a family that kept them would have to copy the layer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/feed_forward.h"
#include "nn/mlp.h"
#include "nn/stacked_linear.h"

namespace sluice {

// Layout of the experts' matrices in the checkpoint.
enum class ExpertLayout {
  kSeparate,  // experts.N.gate.weight, experts.N.up.weight [inner, hidden], experts.N.down.weight [hidden, inner]
  kStacked,   // gate.weight [experts, 2 * inner, hidden], gate rows first; down.weight [experts, hidden, inner]
  kStackedParameters,  // like kStacked, but the tensors are named gate and down, without ".weight"
  kStackedApart,       // gate.weight, up.weight [experts, inner, hidden]; down.weight [experts, hidden, inner]
  kFlat,               // gate, up, down [experts * inner, hidden]; down is transposed
  kTransposedHalves,   // gate [experts, hidden, 2 * inner], gate columns first; down [experts, inner, hidden]
  kTransposed,  // gate [experts, hidden, 2 * inner], gate and up columns interleaved; down [experts, inner, hidden]
};

enum class ExpertBias {
  kNone,
  kEach,  // gate_bias [experts, 2 * inner], in the order of kTransposed, and down_bias [experts, hidden]
  kSum,   // one bias [hidden] for the sum; the routing weights must add up to one
};

struct MoeSpec : ops::Routing {
  int experts = 0;
  int inner = 0;      // width of an expert
  bool gated = true;  // as in MlpSpec; ungated experts support only the layout kSeparate
  ops::Activation activation = ops::Activation::kSilu;
  float glu_alpha = 0.0f, glu_limit = 0.0f;  // limit > 0: uses ops::clamped_glu, in the shared expert too
  float clamp = 0.0f, shared_clamp = 0.0f;   // > 0: see clamped_product; of experts, and of the shared expert
  bool clamp_first = false;                  // see clamped_product
  float logit_cap = 0.0f;                    // > 0: soft cap on the router's logits
  // The router's last outputs stand for this many experts that return their input (zero experts: LongCat-Flash,
  // arXiv:2509.01322). They have no weights.
  int identities = 0;
  std::string correction{};  // tensor of the corrections in ops::Routing; empty: none
  Shape correction_shape{};
  bool router_bias = false;
  ExpertBias bias = ExpertBias::kNone;
  bool scaled_inputs = false;  // routing weights scale the experts' inputs instead of their results (Llama 4)
  int shared_inner = 0;        // > 0: width of a shared expert that takes all rows
  bool shared_bias = false;    // the shared expert's projections have a bias
  bool shared_gate = false;    // a sigmoid gate scales the shared expert (tensor "shared_expert_gate")

  ExpertLayout layout = ExpertLayout::kSeparate;
  std::string router = "gate";  // empty: the caller passes the logits
  std::string expert_scale{};   // tensor [experts] that scales the weights of chosen experts; empty: none
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string shared = "shared_experts";
  std::vector<std::string> shared_in{"gate_proj", "up_proj"};
  std::string shared_out = "down_proj";

  int choices() const { return experts + identities; }
};

// The experts that rows choose, and the rows sorted by expert.
struct Choice {
  Tensor experts, weights;               // see ops::RouteArgs
  Tensor entries, rows, places, starts;  // see ops::GroupByExpertArgs

  // Computes the choice from the router's logits, in the arena.
  Choice(ops::Ctx& c, const Tensor& logits, const ops::Routing& routing, const float* correction = nullptr,
         const Tensor& given = {})
      : Choice(c, logits, routing, correction, given, Ungrouped()) {
    group(c, logits.shape[1]);
  }
  // The same without entries, rows, places and starts, which group() computes. `experts` may be changed before.
  struct Ungrouped {};
  Choice(ops::Ctx& c, const Tensor& logits, const ops::Routing& routing, const float* correction, const Tensor& given,
         Ungrouped);
  void group(ops::Ctx& c, int64_t choices);
  // Arena floats per token. Counts `starts` per token too, although there is only one.
  static int64_t floats_per_token(const ops::Routing& routing, int experts);
};

// The matrices of this rank's experts.
struct ExpertMatrices {
  StackedLinear in, out;
};

struct PlacedExperts;

class Moe {
 public:
  Moe() = default;
  Moe(const Weights& w, const MoeSpec& spec, int hidden);
  // out = or += moe(x), then `next`
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate,
                  const NextNorm* next = nullptr) const;
  // Like the above, with router logits [tokens, experts] computed elsewhere. `given`: see ops::RouteArgs.
  void operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, bool accumulate,
                  const NextNorm* next = nullptr, const Tensor& given = {}) const;
  // Like the first one, with the experts of each row.
  void with_given(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& given, bool accumulate) const {
    (*this)(c, out, x, router_(c, x), accumulate, nullptr, given);
  }
  // The type in which this takes x; see ops::input_type.
  DType input_type(const ops::Ctx& c, int64_t rows) const;
  static int64_t floats_per_token(const MoeSpec& spec, int hidden);  // arena floats

 private:
  // Whether the experts' units are activation(gate) * up.
  bool plain_units() const { return spec_.gated && spec_.clamp == 0 && spec_.glu_limit == 0; }
  // The adapters' slots of all places; none if no adapter changes the experts.
  Indices slots_of(ops::Ctx& c, const Choice& choice, const Tensor& starts) const;
  // Gathers the input rows of each expert, scaled by their weights, in order of places.
  void scale_inputs(ops::Ctx& c, const Choice& choice, const Tensor& x, const Tensor& inputs) const;
  // Multiplies the weights of chosen experts by the experts' own factors [experts].
  void scale_weights(ops::Ctx& c, const Choice& choice, const Vector& factors) const;
  // The rows' choice, of physical experts if experts are placed. Weights are scaled.
  Choice choose(ops::Ctx& c, const Tensor& logits, const Tensor& given) const;
  void run_chosen(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, const Tensor& given,
                  bool accumulate) const;
  Tensor run_units(ops::Ctx& c, const Tensor& x, const Tensor& starts, const Tensor& rows, const Indices& slots,
                   const Tensor& scratch) const;
  void run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const;
  // Runs both on ranks that have summands.
  void sum_parts(ops::Ctx& c, const Tensor& out, const Tensor& x, const Tensor& logits, const Tensor& given,
                 bool accumulate, const NextNorm* next) const;

  MoeSpec spec_;
  Linear router_, shared_gate_;
  Vector correction_, expert_scale_;
  std::shared_ptr<ExpertMatrices> experts_;
  std::shared_ptr<PlacedExperts> placed_;  // where the experts are; null: in order
  int first_ = 0;                          // this rank's first expert, or its first physical one if experts are placed
  int inner_ = 0;                          // this rank's part of the experts' width
  bool partial_ = false;                   // the experts' results are this rank's summands
  Vector mine_;  // [choices] 1 for what this rank computes, 0 for the rest; empty: it computes all
  Mlp shared_;
};

// Makes experts below NAME of a layer whose experts differ from those of DecoderSpec::moe.
MakeFeedForward experts_of(std::string name, MoeSpec spec);

}  // namespace sluice
