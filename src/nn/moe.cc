// A layer's way through its experts.
#include "nn/moe.h"

#include <algorithm>

#include "nn/expert_weights.h"

namespace sluice {

Choice::Choice(ops::Ctx& c, const Tensor& logits, const ops::Routing& routing, const float* correction) {
  const int64_t tokens = logits.rows(), top_k = routing.top_k;
  experts = c.arena.take(&kInt32, {tokens, top_k});
  weights = c.arena.take(&kFloat32, {tokens, top_k});
  for (Tensor* t : {&entries, &rows, &places}) *t = c.arena.take(&kInt32, {tokens * top_k});
  starts = c.arena.take(&kInt32, {logits.shape[1] + 1});
  ops::route(c,
             {.experts = experts, .weights = weights, .logits = logits, .correction = correction, .routing = routing});
  ops::group_by_expert(c, {.experts = experts, .entries = entries, .rows = rows, .places = places, .starts = starts});
}

int64_t Choice::floats_per_token(const ops::Routing& routing, int experts) {
  return 5 * int64_t{routing.top_k} + experts + 1;
}

Moe::Moe(const Weights& w, const MoeSpec& s, int hidden)
    : spec_(s), router_(w, {{s.router, s.experts}}, hidden, s.router_bias) {
  if (!s.correction.empty()) correction_ = Vector(w.context(), w.vector(s.correction, s.correction_shape));
  load_experts(w, s, hidden, in_, out_);
  if (s.shared_inner > 0) {
    const MlpSpec shared{
        .inner = s.shared_inner, .gated = s.gated, .activation = s.activation, .in = s.shared_in, .out = s.shared_out};
    shared_ = Mlp(w / s.shared, shared, hidden);
  }
  if (s.shared_gate) shared_gate_ = Linear(w, {{"shared_expert_gate", 1}}, hidden, false);
}

int64_t Moe::floats_per_token(const MoeSpec& s, int hidden) {
  const int64_t routed = s.experts + Choice::floats_per_token(s, s.experts) + s.top_k * (hidden + 3 * int64_t{s.inner});
  const int64_t shared = 3 * int64_t{s.shared_inner} + (s.shared_gate ? hidden + 1 : 0);
  return std::max(routed, shared);
}

void Moe::run_shared(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  Arena::Scope scope(c.arena);
  if (!spec_.shared_gate) return shared_(c, out, x, accumulate);
  const Tensor gate = shared_gate_(c, x);
  ops::unary(c, gate, ops::Activation::kSigmoid);
  const Tensor part = c.arena.take(&kFloat32, x.shape);
  shared_(c, part, x, false);
  ops::combine(c, {.out = out, .x = part, .weights = gate, .places = {}, .accumulate = accumulate});
}

void Moe::operator()(ops::Ctx& c, const Tensor& out, const Tensor& x, bool accumulate) const {
  const bool shared = spec_.shared_inner > 0;
  if (shared) run_shared(c, out, x, accumulate);
  const Choice choice(c, router_(c, x), spec_, correction_.data());
  const int64_t places = x.rows() * spec_.top_k;
  const Tensor mine = c.arena.take(&kFloat32, {places, x.shape[1]});
  ops::gather_rows(c, mine, x, choice.rows);
  const Tensor gate_up = c.arena.take(&kFloat32, {places, in_.outputs()});
  in_.experts(c, gate_up, mine, choice.starts);
  const Tensor inner = spec_.gated ? c.arena.take(&kFloat32, {places, spec_.inner}) : gate_up;
  if (!spec_.gated) {
    ops::unary(c, inner, spec_.activation);
  } else if (spec_.glu_limit > 0) {
    ops::clamped_glu(c, inner, gate_up, spec_.glu_alpha, spec_.glu_limit);
  } else {
    ops::glu(c, inner, gate_up, spec_.activation);
  }
  out_.experts(c, mine, inner, choice.starts);  // what they were given is no longer needed
  ops::combine(
      c,
      {.out = out, .x = mine, .weights = choice.weights, .places = choice.places, .accumulate = accumulate || shared});
}

}  // namespace sluice
